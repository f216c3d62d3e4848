"""The ``orqa`` command: from documents and question-answer pairs to cited answers.

Each subcommand is a thin wrapper around one function of the package, imported only when it runs.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_args, get_type_hints

from orqa_jax import __version__
from orqa_jax.errors import OrqaError, explain_refusal

if TYPE_CHECKING:
    from orqa_jax.predict import Answer, Candidate, System


# Adds a command: its name, the function that runs it, what it does in a few words.
_Command = Callable[..., argparse.ArgumentParser]


# Questions that are remembered.
_HISTORY_LENGTH = 1000


class _Settings(NamedTuple):
    """Whose fields are the flags of a command, and which of them a run folder sets to what."""

    module: str
    name: str
    places: dict[str, str]


_SETTINGS = {
    "ict": _Settings("orqa_jax.train.ict", "ICTConfig", {"corpus": "corpus", "out": "ict"}),
    "finetune": _Settings(
        "orqa_jax.train.finetune",
        "FinetuneConfig",
        {
            "corpus": "corpus",
            "retriever": "ict/model",
            "index": "index",
            "out": "finetune",
            "bm25": "bm25",
        },
    ),
    "read": _Settings(
        "orqa_jax.train.reading",
        "ReadConfig",
        {"corpus": "corpus", "retriever": "ict/model", "out": "read"},
    ),
    "untrained": _Settings(
        "orqa_jax.baselines.dense", "UntrainedConfig", {"corpus": "corpus", "out": "ict"}
    ),
    "drqa-train": _Settings("orqa_jax.baselines.drqa.train", "DrqaTrainConfig", {"out": "drqa"}),
}


class _Parser(argparse.ArgumentParser):
    """Tells of a wrong command line as of any other mistake: one sentence, not all the usage."""

    def error(self, message: str) -> NoReturn:
        raise OrqaError(f"{message}; see `{self.prog} --help`.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status: 0, 2 for a user's error, 130 when interrupted."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    start_logging()
    try:
        parser = _parser()
        options, rest = parser.parse_known_args(arguments)
        if options.settings:
            options.function(rest)
        elif rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        else:
            options.function(options)
    except OrqaError as error:
        if "--debug" in arguments:
            raise
        print(f"orqa: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("orqa: interrupted; the same command continues where it can.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        lower = _NEEDS_MEMORY.get(arguments[0], "what is done at once, or use a larger machine")
        refusal = explain_refusal(error, lower=lower)
        if refusal is None or "--debug" in arguments:
            raise
        print(f"orqa: {refusal}", file=sys.stderr)
        # What threads of Orbax were still writing fails too, later, and each would tell of it.
        sys.excepthook = lambda *_: None
        return 2
    return 0


# What to lower where memory runs out, by command.
_NEEDS_MEMORY = {
    "corpus": "--workers",
    "fit": "the sizes of the single steps, `orqa ict --chunk-size` and `orqa finetune "
    "--batch-size`",
    "ict": "--chunk-size (rows of the batch on a device at once; equal gradients), or --batch-size",
    "finetune": "--batch-size, --reader-beam, --early-update-beam or --reader-length",
    "read": "--batch-size or --reader-length",
    "drqa-train": "--batch-size",
    "index": "the bits of a vector (--search int8)",
    "ask": "the bits of a vector (--search int8)",
    "predict": "the bits of a vector (--search int8)",
    "serve": "--max-batch, or the bits of a vector (--search int8)",
}


def start_logging() -> None:
    """Our own messages go to standard error as they are; libraries only warn."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("orqa_jax").setLevel(logging.INFO)
    # Orbax tells there of every save that waits for the one before, and of errors, with their
    # tracebacks, that it raises as well.
    logging.getLogger("absl").setLevel(logging.CRITICAL)


def _parser(*, whole: bool = False) -> argparse.ArgumentParser:
    """The command line; ``whole`` with the settings of the commands that parse their own."""
    parser = _Parser(
        prog="orqa",
        description="Open-retrieval question answering: learn to retrieve and to read from "
        "documents and question-answer pairs alone.",
    )
    parser.add_argument("--version", action="version", version=f"orqa_jax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, function: Any, text: str, *, settings: bool = False
    ) -> argparse.ArgumentParser:
        """Adds a command; one with ``settings`` parses its own flags, from a dataclass."""
        about = text[0].upper() + text[1:] + "."
        add_help = whole or not settings
        added = commands.add_parser(name, help=text, description=about, add_help=add_help)
        added.set_defaults(function=function, settings=settings)
        if not settings:
            added.add_argument("--debug", action="store_true", help="show an error's traceback")
        elif whole:  # these modules import jax, which takes a second
            _add_settings(added, name)
        return added

    for add_commands in (
        _add_corpus_commands,
        _add_training_commands,
        _add_answering_commands,
        _add_evaluation_commands,
        _add_baseline_commands,
        _add_exchange_commands,
    ):
        add_commands(command)
    return parser


def _add_corpus_commands(command: _Command) -> None:
    """Documents to blocks, and question-answer pairs."""
    corpus = command("corpus", _corpus, "cut documents into blocks of evidence")
    corpus.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="files or folders")
    corpus.add_argument("--out", type=Path, required=True, help="folder of the new block store")
    corpus.add_argument("--encoder", type=Path, help="folder of the BERT whose tokenizer is used")
    corpus.add_argument(
        "--append",
        action="store_true",
        help="add the documents to the finished store --out, with the tokenizer it has",
    )
    corpus.add_argument("--max-wordpieces", type=int, help="longest block (288)")
    corpus.add_argument("--language", help="of the documents (english); none suits any")
    _add_on_error(corpus)
    corpus.add_argument("--workers", type=int, help="processes (as many as cores)")
    _add_json(corpus)

    answers = command("answers", _answers, "count the questions that a corpus can answer at all")
    answers.add_argument("corpus", type=Path, help="block store")
    answers.add_argument("questions", type=Path, help="JSONL file of question-answer pairs")
    _add_json(answers)

    data = command("data", _data, "convert a published dataset to question-answer pairs")
    data.add_argument("name", help="natural_questions, web_questions, ...: see docs/datasets.md")
    data.add_argument("files", nargs="*", type=Path, help="its files (without: from TFDS)")
    data.add_argument("--split", choices=("train", "dev", "test"), help="check the published count")
    data.add_argument("--tfds-dir", type=Path, help="where TFDS keeps prepared datasets")
    data.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    _add_json(data)

    cloze = command("cloze", _cloze, "make question-answer pairs from the corpus itself")
    cloze.add_argument("corpus", type=Path, help="block store")
    cloze.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    cloze.add_argument("--count", type=int, default=10_000, help="pairs at most (10000)")
    cloze.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    _add_json(cloze)


def _add_training_commands(command: _Command) -> None:
    """Everything that learns, and what it needs."""
    fit = command("fit", _fit, "documents and question-answer pairs in, a system that answers out")
    fit.add_argument("documents", metavar="DOCUMENTS", help="file or folder, as for `orqa corpus`")
    fit.add_argument(
        "questions",
        nargs="?",
        default="",
        metavar="QUESTIONS",
        help="question-answer pairs: .jsonl, .csv, .tsv or SQuAD's .json (without: pairs made from "
        "the documents)",
    )
    fit.add_argument("--out", required=True, help="folder of the run")
    fit.add_argument("--encoder", default="", help="folder of the BERT to start from")
    fit.add_argument("--language", default="english", help="of the documents (english)")
    _add_on_error(fit)
    fit.add_argument("--hours", type=float, default=0.25, help="time to plan for (0.25)")
    fit.add_argument("--seed", type=int, default=0, help="of everything drawn at random (0)")
    _add_json(fit)

    command("ict", _ict, "pre-train the retriever with the Inverse Cloze Task", settings=True)

    mine = command("mine", _mine, "find positive blocks and hard negatives for `orqa ict --pairs`")
    _add_run(mine)
    mine.add_argument("train", type=Path, help="JSONL of question-answer pairs, or SQuAD JSON")
    mine.add_argument("--out", type=Path, required=True, help="JSONL file of pairs to write")
    mine.add_argument("--squad", action="store_true", help="the file is SQuAD JSON with paragraphs")
    mine.add_argument("--negatives", type=int, default=1, help="hard negatives a question (1)")
    _add_json(mine)

    index = command("index", _index, "encode all blocks, and index them for BM25")
    _add_run(index)
    _add_search(index)
    index.add_argument(
        "--tune", type=Path, metavar="DEV", help="JSONL of questions to tune BM25's k1 and b on"
    )

    command(
        "finetune", _finetune, "train retriever and reader on question-answer pairs", settings=True
    )

    command("read", _read, "train the reader from gold spans (SQuAD)", settings=True)

    plan = command("plan", _plan, "say what a run will cost on devices that are not here")
    plan.add_argument("--config", type=Path, required=True, help="settings, as `orqa ict` has them")
    plan.add_argument(
        "--topology", default="host", help='as "v5e:4x8" (v4, v5e, v5p, v6e); "host" for this one'
    )
    plan.add_argument(
        "--blocks", type=int, default=13_353_718, help="of the corpus (13,353,718: Wikipedia 2018)"
    )
    plan.add_argument(
        "--questions", type=int, default=79_168, help="to fine-tune on (79,168: Natural Questions)"
    )
    plan.add_argument("--chunk", action="store_true", help="find the largest chunk_size that fits")
    _add_json(plan, "an object for each program")


def _add_answering_commands(command: _Command) -> None:
    """Questions to answers."""
    ask = command("ask", _ask, "answer questions, with evidence")
    _add_run(ask)
    ask.add_argument(
        "questions",
        nargs="*",
        metavar="QUESTION",
        help="read from standard input where none is given",
    )
    _add_system(ask)
    _add_search(ask)
    ask.add_argument(
        "--no-history",
        action="store_true",
        help="keep no list of the questions that are typed",
    )
    _add_json(ask, "an object for each question")

    predict = command("predict", _predict, "answer a file of questions")
    _add_run(predict)
    predict.add_argument("questions", type=Path, help="JSONL file with a question a line")
    predict.add_argument(
        "--out", type=Path, required=True, help="JSONL file of predictions to write"
    )
    _add_system(predict)
    _add_search(predict)
    predict.add_argument(
        "--closed", type=Path, help="text file of the only answers to accept, one a line (DrQA)"
    )

    serve = command("serve", _serve, "answer questions over HTTP, with a page to ask on")
    serve.add_argument("run", metavar="RUN", help="run folder, or a link to one")
    _add_system(serve)
    _add_search(serve)
    serve.add_argument("--host", help="address to listen on (127.0.0.1: this machine alone)")
    serve.add_argument("--port", type=int, help="0 for any that is free (8080)")
    serve.add_argument("--max-batch", type=int, help="questions answered together (32)")
    serve.add_argument(
        "--max-wait-ms", type=float, help="how long the first of a batch waits for others (5)"
    )
    serve.add_argument(
        "--max-queue", type=int, help="questions that may wait; more are refused (128)"
    )
    serve.add_argument("--max-questions", type=int, help="questions of one request (64)")
    serve.add_argument("--max-characters", type=int, help="characters of one question (1000)")
    serve.add_argument(
        "--rate", type=float, help="questions a second of one client, in the long run (any)"
    )
    serve.add_argument(
        "--allowed-hosts",
        nargs="+",
        metavar="NAME",
        help="names that it is reached by (localhost alone where it listens there, else any)",
    )
    serve.add_argument(
        "--cors-origins", nargs="+", metavar="ORIGIN", help="pages elsewhere that may ask (none)"
    )
    serve.add_argument(
        "--trust-proxy",
        nargs="+",
        metavar="ADDRESS",
        help="proxies whose X-Forwarded-For tells who asks (none)",
    )
    serve.add_argument(
        "--log-questions", action="store_true", help="write the questions to the log"
    )
    serve.add_argument(
        "--watch-seconds",
        type=float,
        help="how often to look for a newer model in the folder; 0: only on SIGHUP (5)",
    )


def _add_evaluation_commands(command: _Command) -> None:
    """Answers to numbers."""
    evaluate = command("eval", _eval, "score predictions, with confidence intervals")
    evaluate.add_argument(
        "predictions",
        type=Path,
        help="what `orqa predict` wrote, or predictions in the format of NQ-open (JSONL), SQuAD "
        "(JSON), or DPR's retriever or reader (JSON)",
    )
    evaluate.add_argument("references", type=Path, help="JSONL file of question-answer pairs")
    _add_corpus(evaluate)
    _add_json(evaluate)
    evaluate.add_argument(
        "--details",
        type=Path,
        metavar="FILE",
        help="write what was found out about each question (JSONL), and print every table: what "
        "went wrong, by kind of question, calibration",
    )
    evaluate.add_argument(
        "--train", type=Path, help="training pairs, for a table by frequency of the answer"
    )
    evaluate.add_argument(
        "--dev",
        type=Path,
        nargs=2,
        metavar=("PREDICTIONS", "REFERENCES"),
        help="other questions, to calibrate the confidence and choose when to abstain",
    )
    evaluate.add_argument(
        "--wrong-cost",
        type=float,
        help="with --dev or --calibrate: what a wrong answer costs, if a right one earns 1 and "
        "none nothing (1)",
    )
    evaluate.add_argument(
        "--calibrate",
        type=Path,
        metavar="RUN",
        help="learn from these predictions when the run's answers are right, for `orqa serve`",
    )

    compare = command(
        "compare", _compare, "test two systems against each other on one question set"
    )
    compare.add_argument("a", type=Path, metavar="A", help="predictions, as for `orqa eval`")
    compare.add_argument("b", type=Path, metavar="B", help="predictions of the other system")
    compare.add_argument("references", type=Path, help="JSONL file of question-answer pairs")
    _add_corpus(compare)
    _add_json(compare)

    report = command(
        "report", _report, "one page about runs: tables, plots, questions side by side"
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run or sweep folders")
    report.add_argument("--out", type=Path, required=True, help="folder of the report")
    report.add_argument(
        "--references",
        type=Path,
        help="question-answer pairs (those the predictions were made for)",
    )
    _add_json(report)


def _add_baseline_commands(command: _Command) -> None:
    """The systems to compare with."""
    command("untrained", _untrained, "write a dense retriever without pre-training", settings=True)

    tfidf = command("drqa-index", _drqa_index, "index whole articles by TF-IDF, for DrQA")
    _add_run(tfidf)

    supervise = command(
        "drqa-supervise", _drqa_supervise, "find paragraphs that DrQA's reader can learn from"
    )
    _add_run(supervise)
    supervise.add_argument("questions", type=Path, help="JSONL file of question-answer pairs")
    supervise.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    supervise.add_argument(
        "--regex", action="store_true", help="answers are regular expressions (CuratedTREC)"
    )
    supervise.add_argument(
        "--tagger", default="", help="spaCy pipeline that finds names (capital letters do)"
    )

    command("drqa-train", _drqa_train, "train DrQA's reader of paragraphs", settings=True)

    align = command("align", _align, "rank or choose answers by word alignment, tuned on dev")
    align.add_argument(
        "--format",
        choices=("selqa", "wikiqa", "yahoo", "arc", "science", "evidence"),
        required=True,
        help="of the files",
    )
    align.add_argument("--dev", nargs="+", type=Path, required=True, help="files to tune on")
    align.add_argument("--test", nargs="+", type=Path, required=True, help="files to measure on")
    align.add_argument("--run", type=Path, help="corpus/ and bm25/, to find evidence in")
    align.add_argument("--vectors", default="", help="GloVe text file (the installed package)")
    align.add_argument(
        "--raw-vectors", action="store_true", help="keep the directions that all words share"
    )
    _add_json(align)


def _add_exchange_commands(command: _Command) -> None:
    """From and to the formats and places of others."""
    imported = command("import", _import, "take in BERT, ORQA and REALM as they were released")
    kinds = imported.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(name: str, text: str, out: str) -> argparse.ArgumentParser:
        added = kinds.add_parser(name, help=text, description=f"{text}; see docs/fidelity.md.")
        added.add_argument("source", type=Path, help="folder or checkpoint of the release")
        added.add_argument("out", type=Path, help=out)
        added.add_argument("--debug", action="store_true", help="show an error's traceback")
        return added

    gelus = ("gelu_new", "gelu")
    bert = kind("bert", "BERT's TensorFlow checkpoint, config and vocabulary", "encoder folder")
    bert.add_argument("--cased", action="store_true", help="its vocabulary is cased")
    bert.add_argument(
        "--hidden-act", choices=gelus, help="GELU by tanh, or exact (default: as its config says)"
    )
    for name, text in (
        ("corpus", "blocks.tfr, titles.tfr and examples.tfr"),
        ("retriever", "ICT module of ORQA, or embedder of REALM"),
        ("answerer", "fine-tuned checkpoint of ORQA"),
        ("realm", "REALM in the form of Hugging Face"),
    ):
        added = kind(name, text, "run folder")
        added.add_argument(
            "--encoder", type=Path, required=True, help="the BERT that it was made with"
        )
        if name in ("retriever", "answerer"):
            added.add_argument(
                "--hidden-act", choices=gelus, default="gelu_new", help="GELU by tanh, or exact"
            )
            added.add_argument(
                "--heads", type=int, default=0, help="attention heads (hidden size / 64)"
            )

    export = command("export", _export, "write encoders or predictions in the formats of others")
    export.add_argument("what", choices=("encoders", "predictions"))
    export.add_argument("source", type=Path, help="run folder, or JSONL file of predictions")
    export.add_argument("out", type=Path, help="folder, or JSONL file, to write")

    check = command("check", _check, "verify that a run is whole and its parts belong together")
    check.add_argument("folder", type=Path, metavar="DIR", help="folder with anything orqa wrote")
    _add_json(check, "an object for each artefact")

    copy = command("copy", _copy, "copy a file or folder from or to an object store")
    copy.add_argument("source", help="path, or a URL such as gs://bucket/run/corpus")
    copy.add_argument("target", help="path or URL; newer files there stay")

    completion = command("completion", _completion, "print a script that completes this command")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_json(parser: argparse.ArgumentParser, what: str = "one object") -> None:
    parser.add_argument("--json", action="store_true", help=f"print JSON instead: {what}")


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        help="folder with corpus/, ict/, index/, bm25/, finetune/",
    )


def _add_on_error(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a broken document: stop (default), or skip it and name it in skipped.jsonl",
    )


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corpus", type=Path, help="block store, for recall (the one predicted from)"
    )
    parser.add_argument(
        "--beam", type=int, help="blocks that were read, K (as the predictions say, or 5)"
    )


def _add_system(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--system",
        choices=(
            *("orqa", "zero_shot", "bm25", "hybrid", "trained_bm25", "trained_hybrid"),
            "drqa",
        ),
        help="fine-tuned (default, unless `orqa fit` chose another); as it was before fine-tuning; "
        "BM25 with the reader; both retrievers fused; fine-tuned with BM25 as or among the "
        "evidence; or DrQA",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--search",
        choices=("exact", "bfloat16", "int8", "scann"),
        default="exact",
        help="how block vectors are searched: exact (default), the same from fewer bits, or most "
        "of it much faster by ScaNN; `orqa index` has to have prepared it",
    )


def _corpus(options: argparse.Namespace) -> None:
    from orqa_jax.corpus.build import append_to_corpus, build_corpus
    from orqa_jax.corpus.store import read_manifest
    from orqa_jax.text.wordpiece import WordPiece

    choices = {name: getattr(options, name) for name in ("max_wordpieces", "language")}
    if options.append:
        if any(given is not None for given in (options.encoder, *choices.values())):
            raise OrqaError(
                "--append cuts blocks as the store has them; leave out --encoder, "
                "--max-wordpieces and --language."
            )
        append_to_corpus(
            options.sources, options.out, on_error=options.on_error, workers=options.workers
        )
    elif options.encoder is None:
        raise OrqaError("A new corpus needs --encoder, the folder of the BERT that will read it.")
    else:
        build_corpus(
            options.sources,
            options.out,
            WordPiece.load(options.encoder),
            **{name: given for name, given in choices.items() if given is not None},
            on_error=options.on_error,
            workers=options.workers,
        )
    if options.json:
        about = read_manifest(options.out)
        told = ("documents", "skipped", "blocks", "wordpieces", "fingerprint")
        _print_json({"corpus": str(options.out)} | {name: about[name] for name in told})


def _answers(options: argparse.Namespace) -> None:
    from orqa_jax.corpus.statistics import answer_statistics, format_statistics
    from orqa_jax.corpus.store import BlockStore
    from orqa_jax.qa.examples import load_examples

    examples = load_examples(options.questions)
    if any(example.match == "regex" for example in examples):
        raise OrqaError(
            f"Answers of {options.questions} are regular expressions, which are not searched in a "
            "whole corpus; count them in what is retrieved, with `orqa eval`."
        )
    found = answer_statistics(BlockStore(options.corpus), [x.answers for x in examples])
    if options.json:
        _print_json(dataclasses.asdict(found))
    else:
        print(format_statistics(found))


def _data(options: argparse.Namespace) -> None:
    from orqa_jax.qa.datasets import load_dataset
    from orqa_jax.qa.examples import save_examples

    examples = load_dataset(options.name, options.split, options.files, tfds_dir=options.tfds_dir)
    save_examples(options.out, examples)
    _tell_count(options, len(examples), "questions")


def _cloze(options: argparse.Namespace) -> None:
    from orqa_jax.corpus.store import BlockStore
    from orqa_jax.qa.cloze import cloze_examples
    from orqa_jax.qa.examples import save_examples

    examples = cloze_examples(BlockStore(options.corpus), count=options.count, seed=options.seed)
    save_examples(options.out, examples)
    _tell_count(options, len(examples), "questions")


def _tell_count(options: argparse.Namespace, count: int, what: str) -> None:
    if options.json:
        _print_json({"out": str(options.out), what: count})
    else:
        print(f"{options.out}: {count:,} {what}.", file=sys.stderr)


def _fit(options: argparse.Namespace) -> None:
    _start_jax()
    from orqa_jax.fit import FitConfig, fit
    from orqa_jax.predict import CHOICE_NAME

    names = [field.name for field in dataclasses.fields(FitConfig)]
    fit(FitConfig(**{name: getattr(options, name) for name in names}))
    if options.json:
        chosen = json.loads(Path(options.out, CHOICE_NAME).read_text(encoding="utf-8"))
        _print_json({"run": options.out} | chosen)
        return
    print(f"Ask it:   orqa ask --run {options.out} 'Who ...?'")
    print(f"Serve it: orqa serve {options.out}")


def _ict(arguments: Sequence[str]) -> None:
    _start_processes()
    from orqa_jax.train.ict import pretrain

    pretrain(_settings("ict", arguments))


def _untrained(arguments: Sequence[str]) -> None:
    _start_jax()
    from orqa_jax.baselines.dense import save_untrained

    save_untrained(_settings("untrained", arguments))


def _index(options: argparse.Namespace) -> None:
    _start_processes()
    import jax

    from orqa_jax.corpus.store import BlockStore
    from orqa_jax.index.bm25 import K1, B, BM25Index, tune_bm25
    from orqa_jax.qa.examples import load_examples
    from orqa_jax.train.encode import EncodeConfig, encode_corpus, encode_store
    from orqa_jax.train.finetune import trained_block_encoder

    run = options.run
    store = BlockStore(run / "corpus")
    # One process of several would keep the others waiting; alone it can be done at any time.
    if jax.process_count() == 1:
        k1, b = tune_bm25(store, load_examples(options.tune)) if options.tune else (K1, B)
        BM25Index.build(store, run / "bm25", k1=k1, b=b)
    encode_corpus(
        EncodeConfig(
            corpus=str(run / "corpus"),
            retriever=str(run / "ict" / "model"),
            out=str(run / "index"),
            search=options.search,
        )
    )
    for tuned in (run / "finetune", run / "finetune_hybrid"):
        encoder = trained_block_encoder(tuned / "model")
        if encoder is not None:
            encode_store(store, encoder, tuned / "index", options.search)


def _finetune(arguments: Sequence[str]) -> None:
    _start_processes()
    from orqa_jax.train.finetune import finetune

    finetune(_settings("finetune", arguments))


def _plan(options: argparse.Namespace) -> None:
    # What is planned for is not here, and an accelerator that is stays free.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from orqa_jax.train.config import load_config_file
    from orqa_jax.train.plan import print_plan

    print_plan(
        load_config_file(options.config),
        options.topology,
        blocks=options.blocks,
        questions=options.questions,
        find_chunk=options.chunk,
        as_json=options.json,
    )


def _mine(options: argparse.Namespace) -> None:
    from orqa_jax.corpus.store import BlockStore
    from orqa_jax.index.bm25 import BM25Index
    from orqa_jax.qa.datasets import read_gold_spans
    from orqa_jax.qa.examples import load_examples
    from orqa_jax.train.mining import mine_pairs, save_pairs

    if options.negatives < 0:
        raise OrqaError(f"--negatives is {options.negatives}; it has to be at least 0.")
    store = BlockStore(options.run / "corpus")
    index = BM25Index.open(options.run / "bm25", corpus_fingerprint=store.fingerprint)
    paragraphs = None
    if options.squad:
        golds = list(read_gold_spans([options.train]))
        examples, paragraphs = [gold.example for gold in golds], [gold.context for gold in golds]
    else:
        examples = load_examples(options.train)
    pairs = mine_pairs(store, index, examples, paragraphs, negatives=options.negatives)
    save_pairs(options.out, pairs, store.fingerprint)
    if options.json:
        _tell_count(options, len(pairs), "pairs")


def _read(arguments: Sequence[str]) -> None:
    _start_processes()
    from orqa_jax.train.reading import train_reader

    train_reader(_settings("read", arguments))


def _settings(command: str, arguments: Sequence[str]) -> Any:
    """Reads a settings dataclass from a run folder, a config file and flags; the last one wins."""
    from orqa_jax.train.config import load_config_file, make_config

    parser = _Parser(prog=f"orqa {command}")
    cls = _add_settings(parser, command)
    parser.description = cls.__doc__.splitlines()[0]
    flags = vars(parser.parse_args(arguments))
    run, config = flags.pop("run"), flags.pop("config")
    flags.pop("debug")
    values: dict[str, Any] = {}
    if run is not None:
        values = {name: str(run / place) for name, place in _SETTINGS[command].places.items()}
    if config is not None:
        values |= load_config_file(config)
    return make_config(cls, values | flags)


def _add_settings(parser: argparse.ArgumentParser, command: str) -> Any:
    """Adds the fields of a command's dataclass as flags, and returns the class."""
    from orqa_jax.train.config import describe_fields

    module, name, places = _SETTINGS[command]
    cls = getattr(importlib.import_module(module), name)
    parser.add_argument("--run", type=Path, help=f"run folder; sets {', '.join(places)}")
    parser.add_argument("--config", type=Path, help="Python file with get_config()")
    parser.add_argument("--debug", action="store_true", help="show an error's traceback")
    hints, described = get_type_hints(cls), describe_fields(cls)
    for field in dataclasses.fields(cls):
        flag, hint = "--" + field.name.replace("_", "-"), hints[field.name]
        kind: dict[str, Any] = {"type": str if get_args(hint) else hint}
        if hint is bool:  # as a type it would take any text, "false" too, for true
            kind = {"action": argparse.BooleanOptionalAction}
        told = described[field.name].replace("``", "").replace("%", "%%")
        if field.default not in (dataclasses.MISSING, ""):
            told += f" Default: {field.default}."
        parser.add_argument(
            flag,
            **kind,
            choices=get_args(hint) or None,
            default=argparse.SUPPRESS,
            help=told,
        )
    return cls


def _ask(options: argparse.Namespace) -> None:
    _start_jax()
    from orqa_jax.predict import chosen_system

    system = options.system or chosen_system(options.run)
    answerer = _load_system(options.run, system, options.search)
    color = sys.stdout.isatty()
    questions: Iterable[str] = options.questions
    if not questions and sys.stdin.isatty() and color:
        questions = typed_questions(None if options.no_history else history_path())
    elif not questions:
        questions = filter(None, (line.strip() for line in sys.stdin))
    for number, question in enumerate(questions, 1):
        answer = answerer.answer([question])[0]
        if options.json:
            _print_json(answer.to_dict(str(number)))
        else:
            print(format_answer(answer, color=color), flush=True)


def history_path() -> Path:
    """Where the questions typed at `orqa ask` are kept: the user's folder for such things."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "orqa" / "history"


def typed_questions(history: Path | None) -> Iterator[str]:
    """Questions from the terminal until the end of input (Ctrl-D, or Ctrl-C at the prompt).

    Args:
      history: File of earlier questions, for the arrow keys; each new one is added to it at once,
        and nobody but the user may read it. None to keep nothing.
    """
    import readline

    if history is not None:
        try:
            history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(history, os.O_CREAT | os.O_RDONLY, 0o600))
            history.chmod(0o600)
            readline.set_history_length(_HISTORY_LENGTH)
            readline.read_history_file(history)
        except OSError as error:
            print(f"No history of questions: {history}: {error.strerror}.", file=sys.stderr)
            history = None
    # What macOS has in the place of readline can only write all of it.
    append = getattr(readline, "append_history_file", None)
    save = readline.write_history_file if append is None else functools.partial(append, 1)
    print("Type a question; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            question = input("? ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not question:
            continue
        if history is not None:
            with contextlib.suppress(OSError):  # a full disk is no reason not to answer
                save(history)
        yield question


def _predict(options: argparse.Namespace) -> None:
    from orqa_jax.predict import check_predictions_path, chosen_system, predict_file

    check_predictions_path(options.questions, options.out)
    _start_jax()
    system = options.system or chosen_system(options.run)
    answerer = _load_system(options.run, system, options.search, options.closed)
    about = {"run": str(options.run.resolve()), "system": system}
    predict_file(answerer, options.questions, options.out, about=about)


def _serve(options: argparse.Namespace) -> None:
    _start_jax()
    try:
        from orqa_jax.serve.config import ServeConfig
        from orqa_jax.serve.server import serve
    except ModuleNotFoundError as error:
        raise OrqaError(
            f"`orqa serve` needs {error.name}; install the extra: pip install 'orqa_jax[serve]'."
        ) from error

    given: dict[str, Any] = {
        field.name: tuple(value) if isinstance(value, list) else value
        for field in dataclasses.fields(ServeConfig)
        if (value := getattr(options, field.name)) is not None
    }
    serve(ServeConfig(**given))


def _drqa_index(options: argparse.Namespace) -> None:
    from orqa_jax.baselines.drqa.retrieve import TfIdfIndex
    from orqa_jax.corpus.store import BlockStore

    TfIdfIndex.build(BlockStore(options.run / "corpus"), options.run / "tfidf")


def _drqa_supervise(options: argparse.Namespace) -> None:
    from orqa_jax.baselines.drqa.distant import supervise_file

    supervise_file(
        options.run,
        options.questions,
        options.out,
        regex_answers=options.regex,
        tagger=options.tagger,
    )


def _drqa_train(arguments: Sequence[str]) -> None:
    from orqa_jax.baselines.drqa.train import train_reader

    _start_jax()
    train_reader(_settings("drqa-train", arguments))


def _align(options: argparse.Namespace) -> None:
    from orqa_jax.baselines.alignment.evaluate import compare_files, format_comparison

    found = compare_files(
        options.format,
        options.dev,
        options.test,
        vectors=options.vectors,
        remove_common=not options.raw_vectors,
        run=options.run,
    )
    if options.json:
        _print_json(
            {
                "tuned": dataclasses.asdict(found.weights)
                | {"justifications": found.justifications},
                "scores": {
                    system: {name: dataclasses.asdict(value) for name, value in scores.items()}
                    for system, scores in found.intervals().items()
                },
                "p_values": found.p_values,
            }
        )
    else:
        print(format_comparison(found))


def _import(options: argparse.Namespace) -> None:
    from orqa_jax.train import importing

    _start_jax()
    source, out = options.source, options.out
    match options.kind:
        case "bert":
            lowercase = not options.cased
            importing.import_bert(source, out, lowercase=lowercase, hidden_act=options.hidden_act)
        case "corpus":
            importing.import_corpus(source, out, options.encoder)
        case "retriever":
            shape = {"hidden_act": options.hidden_act, "heads": options.heads}
            importing.import_retriever(source, out, options.encoder, **shape)
        case "answerer":
            shape = {"hidden_act": options.hidden_act, "heads": options.heads}
            importing.import_answerer(source, out, options.encoder, **shape)
        case "realm":
            importing.import_realm(source, out, options.encoder)


def _export(options: argparse.Namespace) -> None:
    from orqa_jax.train import exporting

    _start_jax()
    if options.what == "encoders":
        exporting.export_encoders(options.source, options.out)
    else:
        exporting.export_predictions(options.source, options.out)


def _eval(options: argparse.Namespace) -> None:
    from orqa_jax.eval.evaluate import format_table
    from orqa_jax.eval.judge import write_details
    from orqa_jax.report.files import evaluate_file, judge_file, save_calibration
    from orqa_jax.report.tables import system_tables

    predictions, references, corpus = options.predictions, options.references, options.corpus
    if options.wrong_cost is not None and not (options.dev or options.calibrate):
        raise OrqaError("--wrong-cost chooses when to abstain, which needs --dev or --calibrate.")
    more = (options.details, options.train, options.dev, options.beam, options.calibrate)
    if not any(more):
        found = evaluate_file(predictions, references, corpus=corpus).intervals
        if options.json:
            _print_json({name: dataclasses.asdict(value) for name, value in found.items()})
        else:
            print(format_table({predictions.stem: found}))
        return
    judged = judge_file(
        predictions, references, corpus=corpus, beam=options.beam, train=options.train
    )
    dev = judge_file(*options.dev, corpus=corpus, beam=options.beam) if options.dev else None
    if options.details:
        write_details(options.details, judged)
    cost = 1.0 if options.wrong_cost is None else options.wrong_cost
    if options.calibrate:
        save_calibration(options.calibrate, predictions, judged, wrong_cost=cost)
    tables = system_tables(predictions.stem, judged, dev, wrong_cost=cost)
    if options.json:
        _print_json({table.title: table.cells for table in tables})
    else:
        print("\n".join(table.to_markdown() for table in tables), end="")


def _compare(options: argparse.Namespace) -> None:
    from orqa_jax.eval.analysis import compare
    from orqa_jax.report.files import judge_file
    from orqa_jax.report.tables import comparison_table

    a, b = (
        judge_file(path, options.references, corpus=options.corpus, beam=options.beam)
        for path in (options.a, options.b)
    )
    if options.json:
        _print_json({name: dataclasses.asdict(value) for name, value in compare(a, b).items()})
    else:
        name_a, name_b = options.a.stem, options.b.stem
        if name_a == name_b:
            name_a, name_b = str(options.a), str(options.b)
        print(comparison_table(name_a, name_b, {name_a: a, name_b: b}).to_markdown(), end="")


def _check(options: argparse.Namespace) -> None:
    _start_jax()
    from orqa_jax.check import check_folder

    bad = count = 0
    for finding in check_folder(options.folder):
        if options.json:
            _print_json(dataclasses.asdict(finding))
        else:
            print(finding, flush=True)
        bad += finding.status == "bad"
        count += finding.status != "unfinished"
    if bad:
        raise OrqaError(f"{bad} of {count} artefacts in {options.folder} are bad; see above.")


def _copy(options: argparse.Namespace) -> None:
    from orqa_jax.storage import copy

    copy(options.source, options.target)


def _completion(options: argparse.Namespace) -> None:
    import shtab

    parser = _parser(whole=True)
    waiting: list[argparse.ArgumentParser] = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting.extend(action.choices.values())
            elif action.choices is None and action.type in (Path, str, None) and action.nargs != 0:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))


def _report(options: argparse.Namespace) -> None:
    from orqa_jax.report.page import write_report

    page, text = write_report(options.runs, options.out, references=options.references)
    if options.json:
        _print_json({"html": str(page), "markdown": str(text)})
    else:
        print(f"{page}\n{text}")


def _load_system(run: Path, system: str, search: Any, closed: Path | None = None) -> "System":
    if system == "drqa":
        from orqa_jax.baselines.drqa.answer import load_drqa

        return load_drqa(run, closed=closed)
    if closed is not None:
        raise OrqaError("Only --system drqa can be restricted to a list of answers by --closed.")
    from orqa_jax.predict import load_answerer

    return load_answerer(run, system=system, search=search)


def _start_jax() -> None:
    from orqa_jax.train.mesh import prepare_host

    prepare_host()


def _start_processes() -> None:
    """Joins the other processes of this run; to be called before anything touches a device."""
    from orqa_jax.train.mesh import start_processes

    start_processes()


def format_answer(answer: "Answer", *, color: bool) -> str:
    """An answer for people: title, the sentence with the answer marked, and the runners-up."""
    lines = [f"Q: {answer.question}"]
    if not answer.candidates:
        return "\n".join([*lines, "A: (nothing in the retrieved blocks can be an answer)", ""])
    best, *others = answer.candidates
    lines.append(f"A: {_bold(best.answer, color)}   [{best.title}, score {best.score:.2f}]")
    lines.append(f"   {_sentence_with_answer(best, color)}")
    if others:
        listed = "; ".join(f"{other.answer} ({other.score:.2f}, {other.title})" for other in others)
        lines.append(f"   Also: {listed}")
    return "\n".join([*lines, ""])


def _sentence_with_answer(candidate: "Candidate", color: bool) -> str:
    text = candidate.block_text
    start, end = candidate.start - candidate.block_start, candidate.end - candidate.block_start
    first, last = candidate.sentence
    marked = text[first:start] + _bold(text[start:end], color, "**") + text[end:last]
    return re.sub(r"\s+", " ", marked)


def _bold(text: str, color: bool, plain: str = "") -> str:
    return f"\x1b[1;32m{text}\x1b[0m" if color else f"{plain}{text}{plain}"


if __name__ == "__main__":
    sys.exit(main())
