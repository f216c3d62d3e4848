"""What cloze pairs add to 30, 300 and all real pairs, and what they do alone.

    cd runs/wiki; orqa cloze corpus --out cloze.jsonl --count 2000
    head -30 train.jsonl > real30.jsonl; cat cloze.jsonl real30.jsonl > both30.jsonl
    head -300 train.jsonl > real300.jsonl; cat cloze.jsonl real300.jsonl > both300.jsonl
    cat cloze.jsonl train.jsonl > both.jsonl

Real pairs need ids of their own where files are put together. The pairs are trained on together, in
one order; every variant makes as many updates.
"""

from ml_collections import ConfigDict

from experiments.configs import sweep_ict

RUN = "runs/wiki"
PAIRS = {"cloze": 2000, "real30": 30, "both30": 2030, "real300": 300, "both300": 2300}
UPDATED = 4000


def get_config() -> ConfigDict:
    config = sweep_ict.get_config()
    config.name = "Cloze pairs beside real ones"
    config.out = "runs/sweep_cloze"
    config.finetune.epochs = 1.0
    config.variants = [
        {"name": name, "train": f"{RUN}/{name}.jsonl", "finetune": {"epochs": UPDATED / pairs}}
        for name, pairs in PAIRS.items()
    ] + [{"name": "both", "train": f"{RUN}/both.jsonl"}]
    return config
