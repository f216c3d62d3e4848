"""Encodes every block of a corpus.

python -m experiments.encode_blocks --config=experiments/configs/encode.py
"""

from experiments.command_line import run_experiment
from orqa_jax.train.encode import EncodeConfig, encode_corpus

if __name__ == "__main__":
    run_experiment(EncodeConfig, encode_corpus)
