"""Pre-trains the retriever with the Inverse Cloze Task.

python -m experiments.ict_pretrain --config=experiments/configs/ict.py
"""

from experiments.command_line import run_experiment
from orqa_jax.train.ict import ICTConfig, pretrain

if __name__ == "__main__":
    run_experiment(ICTConfig, pretrain)
