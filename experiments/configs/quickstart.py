"""The quickstart: ten thousand lead sections, six layers, two CPU cores, twelve minutes at most.

Two cores read some four thousand wordpieces a second forward, a quarter of that with gradients. So
lower layers stay frozen, sequences are short, three blocks are read instead of five, by a reader
of three layers, and only for the half of a batch that has its answer there. The defaults of the
package are the paper's sizes.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "ict": {
                "steps": 20,
                "batch_size": 32,
                "learning_rate": 1e-4,
                "warmup_steps": 2,
                "pooling": "mean",
                "question_length": 32,
                "block_length": 112,
                "frozen_layers": 4,
                "dropout": 0.0,
                "checkpoint_every": 8,
                "log_every": 4,
            },
            "finetune": {
                "epochs": 1.7,
                "batch_size": 16,
                "reading_share": 0.5,
                "learning_rate": 2e-4,
                "head_learning_rate_factor": 5.0,
                "reader_beam": 3,
                "reader_length": 144,
                "reader_layers": 3,
                "frozen_layers": 1,
                "dropout": 0.0,
                "checkpoint_every": 25,
                "log_every": 10,
            },
        }
    )
