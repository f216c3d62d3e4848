"""Fine-tuning as we recommend it; docs/fidelity.md names each difference to the release."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/modern/corpus",
            "retriever": "runs/modern/ict/model",
            "index": "runs/modern/index",
            "train": "runs/modern/train.jsonl",
            "out": "runs/modern/finetune",
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 5e-5,
            "head_learning_rate_factor": 10.0,
            "optimizer": "adamw",
            "early_update_beam": 5000,
            "reader_beam": 5,
            "reader_length": 320,
            "whole_word_spans": True,
            "substring_labels": False,
        }
    )
