"""ICT as the paper trains it, but for two cores: override with --config.corpus=... and so on."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/encoder",
            "out": "runs/wiki/ict",
            "steps": 2000,
            "batch_size": 64,
            "learning_rate": 1e-4,
            "warmup_steps": 200,
            "mask_rate": 0.9,
            "question_length": 64,
            "block_length": 288,
            "projection_size": 128,
        }
    )
