"""Corpora beyond one machine, with Apache Beam; docs/beam.md says on what.

python -m experiments.beam blocks SOURCE... --out FOLDER --encoder FOLDER [Beam's options]
python -m experiments.beam answers STORE --questions FILE --out FILE [Beam's options]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orqa_jax.cli import start_logging
from orqa_jax.corpus.beam import build_with_beam, find_answers_with_beam
from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.languages import DEFAULT
from orqa_jax.text.wordpiece import WordPiece


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a pipeline; options that are not ours go to Beam. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.beam", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    blocks = commands.add_parser("blocks", help="build a block store", allow_abbrev=False)
    blocks.add_argument("sources", nargs="+", metavar="SOURCE", help="files, folders, URLs")
    blocks.add_argument("--out", required=True, help="folder or URL of the new block store")
    blocks.add_argument("--encoder", type=Path, required=True, help="BERT with the tokenizer")
    blocks.add_argument("--max-wordpieces", type=int, default=288, help="longest block (288)")
    blocks.add_argument("--language", default=DEFAULT, help=f"of the documents ({DEFAULT})")
    answers = commands.add_parser("answers", help="find answers in blocks", allow_abbrev=False)
    answers.add_argument("store", metavar="STORE", help="folder or URL of a block store")
    answers.add_argument("--questions", type=Path, required=True, help="JSONL with answers")
    answers.add_argument("--out", required=True, help="JSONL file or URL to write")
    known, options = parser.parse_known_args(arguments)
    start_logging()
    try:
        if known.command == "blocks":
            build_with_beam(
                known.sources,
                known.out,
                WordPiece.load(known.encoder),
                max_wordpieces=known.max_wordpieces,
                language=known.language,
                options=options,
            )
        else:
            questions = {each.id: each.answers for each in load_examples(known.questions)}
            find_answers_with_beam(known.store, questions, known.out, options=options)
    except OrqaError as error:
        print(f"beam: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
