"""The quickstart: ten thousand lead sections, six layers, two CPU cores, twelve minutes at most."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "ict": {
                "steps": 40,
                "batch_size": 48,
                "learning_rate": 5e-5,
                "warmup_steps": 4,
                "pooling": "mean",
                "question_length": 48,
                "block_length": 160,
                "frozen_layers": 4,
                "checkpoint_every": 10,
                "log_every": 5,
            },
            "finetune": {
                "epochs": 1,
                "batch_size": 8,
                "learning_rate": 1e-4,
                "head_learning_rate_factor": 10.0,
                "reader_length": 192,
                "reader_layers": 3,
                "checkpoint_every": 25,
                "log_every": 10,
            },
        }
    )
