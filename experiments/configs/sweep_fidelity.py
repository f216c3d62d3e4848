"""What each difference between the presets is worth to the retriever: zero-shot recall in small.

The baseline has the settings of experiments/configs/modern_ict.py that are not size, pace or place;
each variant takes one of them from faithful_ict.py, the last one all. The encoder needs a pooler.
"""

from ml_collections import ConfigDict

from experiments.configs import faithful_ict, modern_ict

SWITCHES = {
    "one shared tower": ("shared_towers",),
    "tanh pooler": ("pooling",),
    "LayerNorm and dropout after the projection": ("projection_layer_norm", "projection_dropout"),
    "Glorot projection": ("projection_init",),
    "BERT's Adam": ("optimizer",),
    "projection learns no faster": ("projection_learning_rate_factor",),
}


def get_config() -> ConfigDict:
    modern, release = dict(modern_ict.get_config()), dict(faithful_ict.get_config())
    keys = [key for switch in SWITCHES.values() for key in switch]
    changed = {name: {key: release[key] for key in switch} for name, switch in SWITCHES.items()}
    changed["all of these"] = {key: release[key] for key in keys}
    return ConfigDict(
        {
            "name": "Retrievers from modern to faithful",
            "corpus": "runs/fidelity/corpus",
            "encoder": "runs/fidelity/encoder",
            "test": "runs/fidelity/questions.jsonl",
            "out": "runs/sweep_fidelity",
            "seeds": [0],
            "ict": {
                **{key: modern[key] for key in keys if key in modern},
                "steps": 40,
                "batch_size": 32,
                "learning_rate": 1e-4,
                "warmup_steps": 4,
                "question_length": 32,
                "block_length": 112,
                "dropout": 0.0,
            },
            "finetune": {},
            "variants": [{"name": name, "ict": ict} for name, ict in changed.items()],
        }
    )
