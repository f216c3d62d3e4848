"""The retriever under strong supervision: DPR's recipe (Karpukhin et al. 2020) on the step of ICT.

Make the pairs first: `orqa mine --run runs/wiki train.jsonl --out runs/wiki/pairs.jsonl`. DPR
trains with batches of 128, one hard negative and a learning rate of 2e-5, for 40 epochs.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/encoder",
            "pairs": "runs/wiki/pairs.jsonl",
            "out": "runs/wiki/dpr",
            "steps": 2000,
            "batch_size": 128,
            "learning_rate": 2e-5,
            "projection_learning_rate_factor": 1.0,
            "warmup_steps": 100,
            "question_length": 64,
            "block_length": 288,
            "pooling": "cls",
            "shared_towers": False,
        }
    )
