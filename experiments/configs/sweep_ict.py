"""What each choice in pre-training and fine-tuning is worth: one change at a time.

Sizes for two cores and a few hours; the baseline follows experiments/configs/quickstart.py. Every
variant that shares a pre-training with another shares its block embeddings too.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "name": "One change at a time",
            "corpus": "runs/wiki/corpus",
            "encoder": "runs/encoder",
            "train": "runs/wiki/train.jsonl",
            "test": "runs/wiki/test.jsonl",
            "out": "runs/sweep_ict",
            "seeds": [0, 1, 2],
            "ict": {
                "steps": 100,
                "batch_size": 32,
                "learning_rate": 1e-4,
                "warmup_steps": 10,
                "pooling": "mean",
                "question_length": 32,
                "block_length": 112,
                "dropout": 0.0,
            },
            "finetune": {
                "epochs": 1,
                "batch_size": 8,
                "learning_rate": 2e-4,
                "head_learning_rate_factor": 5.0,
                "reader_length": 144,
                "reader_layers": 3,
                "dropout": 0.0,
            },
            "variants": [
                *({"name": f"mask rate {r}", "ict": {"mask_rate": r}} for r in (0.0, 0.5, 1.0)),
                {"name": "no ICT", "ict": {"steps": 0}},
                {"name": "shared towers", "ict": {"shared_towers": True}},
                *({"name": f"P = {p}", "ict": {"projection_size": p}} for p in (32, 64, 256)),
                *({"name": f"ICT batch {b}", "ict": {"batch_size": b}} for b in (8, 64)),
                *({"name": f"ICT rate {r:g}", "ict": {"learning_rate": r}} for r in (3e-5, 3e-4)),
                {"name": "no early update", "finetune": {"early_update": False}},
                *({"name": f"C = {c}", "finetune": {"early_update_beam": c}} for c in (100, 1000)),
                *({"name": f"K = {k}", "finetune": {"reader_beam": k}} for k in (1, 3, 10)),
                *({"name": f"rate {r:g}", "finetune": {"learning_rate": r}} for r in (5e-5, 5e-4)),
            ],
        }
    )
