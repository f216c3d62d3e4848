"""ICT as in the paper, batch 4096, for a TPU slice of 16 chips with 16 GB each.

orqa plan --config experiments/configs/ict_pod.py --topology v5e:4x4
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/encoder",
            "out": "runs/wiki/ict",
            "steps": 100_000,
            "batch_size": 4096,
            "chunk_size": 32,
            "learning_rate": 1e-4,
            "warmup_steps": 10_000,
            "mask_rate": 0.9,
            "question_length": 64,
            "block_length": 288,
            "projection_size": 128,
            "dtype": "bfloat16",
            "workers": 4,
            "checkpoint_every": 500,
            "log_every": 50,
        }
    )
