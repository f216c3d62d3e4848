"""The Inverse Cloze Task as the 2019 release trains it; docs/fidelity.md says where it differs.

The batch of 4096 is the paper's, on the paper's hardware; --config.batch_size=... for less. The
encoder is what `orqa import bert --hidden-act gelu_new` makes of the BERT that the release started
from.
"""

from ml_collections import ConfigDict

from orqa_jax.train.state import release_warmup

STEPS = 100_000


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/faithful/corpus",
            "encoder": "runs/bert_uncased_L-12_H-768_A-12",
            "out": "runs/faithful/ict",
            "steps": STEPS,
            "batch_size": 4096,
            "exclude_duplicates": False,
            "learning_rate": 1e-4,
            "projection_learning_rate_factor": 1.0,
            "warmup_steps": release_warmup(STEPS),
            "optimizer": "bert",
            "weight_decay": 0.01,
            "mask_rate": 0.9,
            "question_length": 64,
            "block_length": 288,
            "projection_size": 128,
            "pooling": "pooler",
            "shared_towers": True,
            "projection_layer_norm": True,
            "projection_dropout": 0.1,
            "projection_init": "glorot_uniform",
            "frozen_layers": 0,
            "dropout": 0.1,
            "checkpoint_every": 1000,
            "log_every": 100,
        }
    )
