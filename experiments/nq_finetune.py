"""Fine-tunes retriever and reader end to end.

python -m experiments.nq_finetune --config=experiments/configs/nq.py
"""

from experiments.command_line import run_experiment
from orqa_jax.train.finetune import FinetuneConfig, finetune

if __name__ == "__main__":
    run_experiment(FinetuneConfig, finetune)
