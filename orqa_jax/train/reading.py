"""Strong supervision of the reader: gold spans of SQuAD (Lee et al. 2019, section 9.1 and table 6).

The reader learns which span of a paragraph answers a question whose paragraph is given. The model
that comes out answers with BM25, or with the retriever as ICT left it, and fine-tuning can start
from its reader.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.losses import marginal_log_likelihood
from orqa_jax.models import reader as reader_module
from orqa_jax.models.bert import truncate_bert, with_dropout
from orqa_jax.models.reader import ReaderConfig, SpanReader, init_reader
from orqa_jax.models.retriever import question_tower
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.qa.datasets import GoldSpans, read_gold_spans
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import is_finished, load_model, save_model
from orqa_jax.train.config import check_at_least, check_ranges
from orqa_jax.train.exclusive import alone_in_out
from orqa_jax.train.finetune import (
    MODEL_KIND,
    fingerprint_examples,
    make_finetune_optimizer,
    step_rows,
    total_steps,
)
from orqa_jax.train.inputs import Inputs, batch_iterator, pair_inputs, ragged
from orqa_jax.train.loop import run_steps
from orqa_jax.train.mesh import check_batch_size, make_mesh, tree_shardings
from orqa_jax.train.metrics import Metrics, mean_of
from orqa_jax.train.state import (
    OptimizerName,
    Params,
    TrainState,
    apply_gradients,
    initial_state,
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """Settings of reader training from gold spans; the defaults suit two CPU cores.

    Attributes:
      corpus: Folder of the block store that the model is to answer from.
      retriever: Model folder that ICT wrote, which the model is to retrieve with.
      squad: SQuAD 1.1 JSON file with gold spans.
      out: Folder for checkpoints, metrics and the finished model.
      encoder: Folder of the pre-trained BERT that the reader starts from; "" for the one that
        the retriever started from.
      epochs: Times each question is seen; may be a fraction.
      batch_size: Questions of one update, each with its paragraph.
      learning_rate: Peak for pre-trained weights, after a linear rise; falls linearly to 0.
      head_learning_rate_factor: How much faster the new span layers of the reader learn.
      warmup_share: Share of all steps in which the learning rate rises.
      weight_decay: Decoupled, on all but biases and LayerNorm.
      optimizer: "adamw", or "bert" for BERT's own; see `FinetuneConfig`.
      reader_beam: Blocks that the model reads when it answers.
      reader_length: Wordpieces of ``[CLS] question [SEP] paragraph [SEP]``; of a longer paragraph
        a random part with the answer is read.
      max_span_wordpieces: Longest answer in wordpieces; questions with longer ones are left out.
      span_hidden_size: Half the width of the reader's dense layer.
      whole_word_spans: Answers neither start nor end within a word.
      reader_layers: Use this many lower layers of the encoder; 0 for all.
      frozen_layers: Embeddings and this many lower layers are kept as they were.
      dropout: Rate in the encoder.
      dtype: "float32", or "bfloat16" for accelerators and processors with AMX.
      seed: Of the data order, the dropout and the new parameters.
      checkpoint_every: Steps between two checkpoints.
      log_every: Steps between two lines of metrics.
    """

    corpus: str
    retriever: str
    squad: str
    out: str
    encoder: str = ""
    epochs: float = 2.0
    batch_size: int = 16
    learning_rate: float = 5e-5
    head_learning_rate_factor: float = 10.0
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    optimizer: OptimizerName = "adamw"
    reader_beam: int = 5
    reader_length: int = 320
    max_span_wordpieces: int = 10
    span_hidden_size: int = 256
    whole_word_spans: bool = True
    reader_layers: int = 0
    frozen_layers: int = 0
    dropout: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    checkpoint_every: int = 100
    log_every: int = 10

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_least(self, batch_size=1, checkpoint_every=1, log_every=1, reader_beam=1)
        check_at_least(self, reader_length=16, max_span_wordpieces=1, span_hidden_size=1)
        check_at_least(self, reader_layers=0, frozen_layers=0)


# --- Data: a pure function of (seed, step) --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Reading:
    """One question in wordpieces.

    Attributes:
      question: int32 ids.
      context: int32 ids of the whole paragraph.
      spans: First and last wordpiece of each gold answer, at most W apart.
    """

    question: np.ndarray
    context: np.ndarray
    spans: tuple[tuple[int, int], ...]


def readings(golds: Sequence[GoldSpans], tokenizer: WordPiece, config: ReadConfig) -> list[Reading]:
    """Puts gold spans into wordpieces; questions without a span short enough are left out.

    A span that begins or ends within a wordpiece takes in the whole of it.
    """
    contexts = list(dict.fromkeys(gold.context for gold in golds))
    encoded = dict(zip(contexts, tokenizer.encode(contexts), strict=True))
    questions = tokenizer.encode([gold.example.question for gold in golds])
    longest_question = config.reader_length // 2
    room = config.reader_length - longest_question - 3
    width = min(config.max_span_wordpieces, room)
    made = []
    for gold, question in zip(golds, questions, strict=True):
        context = encoded[gold.context]
        spans = set()
        for answer, start in zip(gold.example.answers, gold.starts, strict=True):
            first = int(np.searchsorted(context.ends, start, side="right"))
            last = int(np.searchsorted(context.starts, start + len(answer), side="left")) - 1
            if first <= last < first + width:
                spans.add((first, last))
        if spans:
            ids = question.ids[:longest_question]
            made.append(Reading(ids, context.ids, tuple(sorted(spans))))
    return made


def reading_batch(
    chosen: Sequence[Reading],
    tokenizer: WordPiece,
    config: ReadConfig,
    rng: np.random.Generator,
) -> Inputs:
    """Reader inputs of some questions: ids, mask, segments [B, L], spans [B, L, W]."""
    windows, starts = [], []
    for reading in chosen:
        room = config.reader_length - len(reading.question) - 3
        first, last = reading.spans[rng.integers(len(reading.spans))]
        # The window holds this span and lies within the paragraph.
        low = max(0, last + 1 - room)
        high = max(min(first, len(reading.context) - room), low)
        start = int(rng.integers(low, high + 1))
        windows.append(reading.context[start : start + room])
        starts.append(start)
    parts = ragged([reading.question for reading in chosen]), ragged(windows)
    batch = pair_inputs(tokenizer, *parts, config.reader_length)
    block_mask_BL = batch.pop("second_mask")
    bounds_BL = np.ones_like(block_mask_BL), np.ones_like(block_mask_BL)
    if config.whole_word_spans:
        starts_word_BL = ~tokenizer.continues_word[batch["token_ids"]]
        bounds_BL = starts_word_BL, np.roll(starts_word_BL, -1, axis=1)
    width = config.max_span_wordpieces
    span_mask_BLW = reader_module.span_mask_BLW(block_mask_BL, *bounds_BL, width)
    correct_BLW = np.zeros_like(span_mask_BLW)
    for b, (reading, start) in enumerate(zip(chosen, starts, strict=True)):
        shift = len(reading.question) + 2 - start
        for first, last in reading.spans:
            if start <= first and last < start + len(windows[b]):
                correct_BLW[b, first + shift, last - first] = True
    # A gold span is a candidate even where the annotator cut a word.
    return batch | {"span_mask": span_mask_BLW | correct_BLW, "span_correct": correct_BLW}


def batches(
    data: Sequence[Reading],
    tokenizer: WordPiece,
    config: ReadConfig,
    first_step: int,
    steps: int,
) -> Iterator[Inputs]:
    """Yields this process's rows of the batch of each step from ``first_step`` on."""
    local_size = config.batch_size // jax.process_count()
    process = jax.process_index()

    def batch(step: int) -> Inputs:
        rows = step_rows(len(data), config, step)[process * local_size : (process + 1) * local_size]
        rng = np.random.default_rng((config.seed, 1, step, process))
        return reading_batch([data[row] for row in rows], tokenizer, config, rng)

    return batch_iterator(batch, range(first_step, steps))


# --- One step -------------------------------------------------------------------------------------


def reading_loss(
    params: Params, reader: SpanReader, batch: dict[str, Any], key: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Mean negative log probability of the gold spans among all of the window, and metrics."""
    arrays = (batch[name] for name in ("token_ids", "mask", "segment_ids"))
    logits_BLW: Any = reader.apply(
        {"params": params["reader"]}, *arrays, deterministic=False, rngs={"dropout": key}
    )
    logits_BS, correct_BS, mask_BS = (
        x.reshape(len(x), -1) for x in (logits_BLW, batch["span_correct"], batch["span_mask"])
    )
    log_likelihood_B, _ = marginal_log_likelihood(logits_BS, correct_BS, mask_BS)
    best_B = jnp.argmax(jnp.where(mask_BS, logits_BS, -jnp.inf), axis=1)
    exact_B = jnp.take_along_axis(correct_BS, best_B[:, None], axis=1)[:, 0]
    metrics = {"loss": mean_of(-log_likelihood_B), "exact_span": mean_of(exact_B)}
    return -jnp.mean(log_likelihood_B), metrics


def train_step(
    state: TrainState,
    batch: dict[str, Any],
    key: jax.Array,
    *,
    reader: SpanReader,
    optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Metrics]:
    """One update."""
    gradients, metrics = jax.grad(reading_loss, has_aux=True)(
        state.params, reader, batch, jax.random.fold_in(key, state.step)
    )
    return apply_gradients(state, gradients, optimizer), metrics


# --- The whole run --------------------------------------------------------------------------------


@alone_in_out
def train_reader(config: ReadConfig) -> Path:
    """Trains a reader, or continues an interrupted run; returns the folder of the model.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    out = Path(config.out)
    store = BlockStore(Path(config.corpus))
    about, retriever_params, tokenizer = load_model(Path(config.retriever), kind=ict.MODEL_KIND)
    config = dataclasses.replace(config, encoder=config.encoder or about["config"]["encoder"])
    golds = list(read_gold_spans([Path(config.squad)]))
    bert_config, bert_params = load_bert(Path(config.encoder))
    fingerprints = {
        "corpus_fingerprint": store.fingerprint,
        "retriever_fingerprint": about["weights_fingerprint"],
    }
    described = dataclasses.asdict(config) | {
        **fingerprints,
        "train_fingerprint": fingerprint_examples([gold.example for gold in golds]),
        "encoder_fingerprint": fingerprint_params(bert_params),
    }
    if is_finished(out / "model", kind=MODEL_KIND, config=described):
        return out / "model"
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {config.corpus} was built with another tokenizer than the retriever "
            f"{config.retriever} has; give the two that belong together."
        )
    data = readings(golds, tokenizer, config)
    if not data:
        raise OrqaError(f"{config.squad} has no answers of at most {config.max_span_wordpieces}.")
    logger.info("%d of %d questions have a gold span short enough.", len(data), len(golds))
    mesh = make_mesh()
    check_batch_size(mesh, config.batch_size)
    if config.reader_layers:
        bert_config, bert_params = truncate_bert(bert_config, bert_params, config.reader_layers)
    reader_config = ReaderConfig(
        with_dropout(bert_config, config.dropout),
        config.span_hidden_size,
        config.max_span_wordpieces,
    )
    reader = SpanReader(reader_config, jnp.dtype(config.dtype), config.frozen_layers)
    params_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    steps = total_steps(len(data), config)
    optimizer = make_finetune_optimizer(config, steps)
    state = initial_state(
        {"reader": init_reader(reader_config, params_key, bert_params)}, optimizer
    )
    state = jax.device_put(state, tree_shardings(mesh, state))
    step_function = jax.jit(
        functools.partial(train_step, reader=reader, optimizer=optimizer), donate_argnums=0
    )
    state = run_steps(
        "read",
        state,
        step_function,
        lambda first: batches(data, tokenizer, config, first, steps),
        dropout_key,
        mesh=mesh,
        out=out,
        described=described,
        total=steps,
        batch_size=config.batch_size,
        checkpoint_every=config.checkpoint_every,
        log_every=config.log_every,
    )
    tower = question_tower(retriever_params)
    save_model(
        out / "model",
        kind=MODEL_KIND,
        description={
            "retriever": about["retriever"],
            "reader": dataclasses.asdict(reader_config),
            "question_length": about["question_length"],
            "reader_length": config.reader_length,
            "reader_beam": config.reader_beam,
            "whole_word_spans": config.whole_word_spans,
            "config": described,
            **fingerprints,
        },
        params={"retriever": {tower: retriever_params[tower]}, **state.params},
        tokenizer=tokenizer,
    )
    return out / "model"
