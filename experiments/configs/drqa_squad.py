"""DrQA's reader on SQuAD, smaller than the paper's, as four of them train on two CPU cores."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "squad": "runs/squad_v1.1_dev.json.xz",
            "out": "runs/drqa_squad",
            "variants": "full,no_exact_match,no_aligned,neither",
            "hidden_size": 64,
            "epochs": 6,
        }
    )
