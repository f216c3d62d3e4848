"""The decomposition of DrQA's score on held-out articles of SQuAD."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "squad": "runs/squad_v1.1_dev.json.xz",
            "reader": "runs/drqa_squad/full/model",
            "run": "runs/drqa_corpus",
            "questions": 500,
        }
    )
