"""Fine-tuning on question-answer pairs with the paper's beams, for two cores."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/wiki/corpus",
            "retriever": "runs/wiki/ict/model",
            "index": "runs/wiki/index",
            "train": "runs/wiki/train.jsonl",
            "out": "runs/wiki/finetune",
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 5e-5,
            "early_update_beam": 5000,
            "reader_beam": 5,
            "reader_length": 320,
        }
    )
