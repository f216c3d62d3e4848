"""Exact match as published beside the modern match, on predictions for SQuAD 1.1.

    python -m benchmarks.modern_match dev-v1.1.json PREDICTIONS.json...

Files may be .xz or .gz. As in the official scorer, a missing prediction is wrong.
"""

import argparse
from pathlib import Path

import numpy as np

from orqa_jax.eval.bootstrap import paired_bootstrap
from orqa_jax.eval.evaluate import percent
from orqa_jax.eval.scores import exact_match
from orqa_jax.qa.datasets import read_squad
from orqa_jax.text.jsonl import read_json
from orqa_jax.text.normalize import normalize_answer_modern


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("predictions", type=Path, nargs="+")
    options = parser.parse_args()
    examples = list(read_squad([options.questions]))
    for path in options.predictions:
        answers = read_json(path)
        answered = [(answers.get(example.id) or None, example.answers) for example in examples]
        published, modern = (
            np.array([a is not None and match(a, known) for a, known in answered], np.float64)
            for match in (exact_match, _modern_match)
        )
        difference, p_value = paired_bootstrap(modern, published)
        print(
            f"{path.name}: {100 * published.mean():.4f} and {100 * modern.mean():.4f}, difference "
            f"{percent(difference, 2)}, p {p_value:.2g}; {int((modern > published).sum())} answers "
            f"more, {int((modern < published).sum())} fewer"
        )


def _modern_match(prediction: str, answers: tuple[str, ...]) -> bool:
    return exact_match(prediction, answers, normalize_answer_modern)


if __name__ == "__main__":
    main()
