"""Block embeddings of the corpus that experiments/configs/ict.py trains on."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/wiki/corpus",
            "retriever": "runs/wiki/ict/model",
            "out": "runs/wiki/index",
        }
    )
