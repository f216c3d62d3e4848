"""Trains DrQA's reader and its three ablations on 36 articles of SQuAD, and tests on 12.

python -m experiments.drqa_squad --config=experiments/configs/drqa_squad.py --config.squad=FILE
"""

from experiments.command_line import run_experiment
from orqa_jax.baselines.drqa.squad import DrqaSquadConfig, compare_readers


def main(config: DrqaSquadConfig) -> None:
    print(compare_readers(config))


if __name__ == "__main__":
    run_experiment(DrqaSquadConfig, main)
