"""The mask-rate figure (Lee et al. 2019, figure 3) in small: zero-shot recall over the mask rate.

The encoder is meant to be one of random weights (experiments/new_encoder.py), so that whatever
retrieval there is comes from the Inverse Cloze Task on this corpus.
"""

from ml_collections import ConfigDict

RATES = (0.0, 0.5, 1.0)


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "name": "How often the sentence is taken out of its block",
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/new_encoder",
            "test": "runs/wiki/test.jsonl",
            "out": "runs/sweep_mask_rate",
            "seeds": [0],
            "ict": {
                "steps": 300,
                "batch_size": 64,
                "learning_rate": 5e-4,
                "projection_learning_rate_factor": 1.0,
                "warmup_steps": 30,
                "mask_rate": 0.9,
                "pooling": "mean",
                "shared_towers": True,
                "question_length": 32,
                "block_length": 64,
                "dropout": 0.0,
                "dtype": "float32",
            },
            "finetune": {},
            "variants": [
                {"name": "no ICT", "ict": {"steps": 0}},
                *({"name": f"mask rate {rate}", "ict": {"mask_rate": rate}} for rate in RATES),
            ],
        }
    )
