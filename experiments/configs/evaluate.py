"""The table of a run: BM25, zero-shot after ICT, and fine-tuned."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "run": "runs/wiki",
            "dev": "runs/wiki/dev.jsonl",
            "test": "runs/wiki/test.jsonl",
            "out": "runs/wiki/predictions",
        }
    )
