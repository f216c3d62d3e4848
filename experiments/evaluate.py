"""Compares the systems of a run.

python -m experiments.evaluate --config=experiments/configs/evaluate.py
"""

from experiments.command_line import run_experiment
from orqa_jax.predict import CompareConfig, compare_systems

if __name__ == "__main__":
    run_experiment(CompareConfig, lambda config: print(compare_systems(config)))
