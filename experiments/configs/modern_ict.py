"""The Inverse Cloze Task as we recommend it; docs/fidelity.md names each difference to the release.

For two cores; on accelerators --config.batch_size=4096 --config.dtype=bfloat16.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/modern/corpus",
            "encoder": "runs/encoder",
            "out": "runs/modern/ict",
            "steps": 2000,
            "batch_size": 64,
            "exclude_duplicates": True,
            "learning_rate": 1e-4,
            "projection_learning_rate_factor": 10.0,
            "warmup_steps": 200,
            "optimizer": "adamw",
            "weight_decay": 0.01,
            "mask_rate": 0.9,
            "question_length": 64,
            "block_length": 288,
            "projection_size": 128,
            "pooling": "cls",
            "shared_towers": False,
            "projection_layer_norm": False,
        }
    )
