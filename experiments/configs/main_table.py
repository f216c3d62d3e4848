"""The paper's main table (Lee et al. 2019, table 5) in small: each system on the same blocks.

Every row is fine-tuned on the same pairs with the same settings, so that rows differ in how blocks
are found and in nothing else. `no signal` is the share of training questions that no retrieved
block answers.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "name": "The systems of the paper",
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/encoder",
            "train": "runs/wiki/train.jsonl",
            "test": "runs/wiki/test.jsonl",
            "out": "runs/main_table",
            "seeds": [0],
            "ict": {
                "steps": 100,
                "batch_size": 32,
                "learning_rate": 1e-4,
                "warmup_steps": 10,
                "pooling": "mean",
                "question_length": 32,
                "block_length": 112,
                "dropout": 0.0,
                "dtype": "float32",
            },
            "finetune": {
                "epochs": 1.0,
                "batch_size": 16,
                "reading_share": 0.5,
                "learning_rate": 2e-4,
                "head_learning_rate_factor": 5.0,
                "reader_length": 144,
                "reader_layers": 3,
                "dropout": 0.0,
                "dtype": "float32",
            },
            "variants": [
                {"name": "BM25 and reader", "finetune": {"evidence": "bm25"}},
                {"name": "hybrid", "finetune": {"evidence": "hybrid"}},
                {"name": "averaged word vectors", "untrained": "static"},
                {"name": "encoder without ICT", "untrained": "mean_pooled"},
            ],
        }
    )
