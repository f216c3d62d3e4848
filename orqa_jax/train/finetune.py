"""End-to-end fine-tuning of retriever and reader on questions and answer strings alone.

Lee et al. 2019, section 6: the loss is the negative log of the probability that the answer is
derived at all, summed over every span of the beam that spells it, plus the same for retrieval
alone over a much larger beam (the early update). The block tower and so the index stay as ICT left
them; the question tower and the reader learn.

With ``refresh_every`` the block tower learns too, see ``train.refresh``: the blocks that are read
get their vectors from it within the step, so that the reading loss trains it. The early update
keeps the vectors of the index: to encode 5000 blocks a question would cost hundreds of times what
the reader does, and fresh scores of a few among stale ones of the others could not be compared.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.dense import Search, open_search
from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.index.protocol import Index
from orqa_jax.losses import marginal_log_likelihood
from orqa_jax.models.bert import truncate_bert, with_dropout
from orqa_jax.models.reader import ReaderConfig, SpanReader, init_reader
from orqa_jax.models.retriever import (
    DualEncoder,
    RetrieverConfig,
    question_tower,
    retriever_config_from_dict,
)
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.storage import recover_folder
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import (
    describe_model,
    is_finished,
    load_model,
    save_model,
)
from orqa_jax.train.config import check_at_least, check_ranges
from orqa_jax.train.encode import BlockEncoder, block_encoder
from orqa_jax.train.exclusive import alone_in_out
from orqa_jax.train.inputs import Inputs, batch_iterator
from orqa_jax.train.loop import as_it_is, run_steps
from orqa_jax.train.mesh import (
    BATCH,
    accelerator_mesh,
    check_batch_size,
    fetch_tree,
    gathered,
    jit_step,
    make_mesh,
    place_batch,
    tree_shardings,
)
from orqa_jax.train.metrics import Metrics, MetricsLog, mean_of
from orqa_jax.train.refresh import IndexRefresh, initial_towers, staleness
from orqa_jax.train.retrieve import (
    Beam,
    BeamSizes,
    BeamSource,
    beam_shapes,
    fetch_by_callback,
    fetch_by_device,
    question_batch,
)
from orqa_jax.train.sparse import (
    Evidence,
    SparseSource,
    initial_sparse_params,
    with_sparse_weight,
)
from orqa_jax.train.state import (
    SCHEDULES,
    CarryingState,
    OptimizerName,
    Params,
    TrainState,
    apply_gradients,
    frozen_layer_patterns,
    initial_state,
    make_optimizer,
    release_warmup,
)

MODEL_KIND = "question answerer"

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """Settings of end-to-end fine-tuning; the defaults suit two CPU cores.

    Attributes:
      corpus: Folder of the block store.
      retriever: Model folder that ICT wrote.
      index: Folder of the block embeddings that this retriever made.
      train: JSONL file of question-answer pairs.
      out: Folder for checkpoints, metrics and the finished model.
      dev: JSONL file of held-out pairs. The finished model has the parameters that answered most of
        them, of those tried; "" for the last parameters.
      dev_every: Steps between two trials on ``dev``.
      evidence: What finds the blocks: "dense", the question tower; "bm25", with a learned weight of
        its score, the question tower left as it is; "hybrid", both, with a learned weight.
      bm25: Folder of the BM25 index, unless the evidence is dense.
      encoder: Folder of the pre-trained BERT that the reader starts from; "" for the one that
        the retriever started from.
      reader: Folder of a model whose reader fine-tuning starts from, as `orqa read` writes it; ""
        for new span layers on the encoder.
      epochs: Times each question is seen; may be a fraction.
      batch_size: Questions of one update (1 in the paper).
      learning_rate: Peak for pre-trained weights, after a linear rise; falls linearly to 0.
      head_learning_rate_factor: How much faster the new span layers of the reader learn.
      warmup_share: Share of all steps in which the learning rate rises.
      weight_decay: Decoupled, on all but biases and LayerNorm.
      optimizer: "adamw", or "bert" for BERT's own: no bias correction, another fall, and a rise of
        100 to 10,000 steps whatever the share.
      early_update_beam: Blocks whose retrieval score is trained, C (5000 in the paper).
      early_update: Train retrieval over these blocks by a loss of its own (section 6); without it,
        retrieval learns only from what the reader makes of the blocks that are read.
      reader_beam: Blocks that are read, K (5 in the paper).
      reading_share: Share of a batch's questions whose blocks are read, those with the answer in
        their beam first. Without it a question teaches the reader nothing but costs as much, so
        this saves most of the work at little or no loss; what was left out is in the metrics.
      reader_length: Wordpieces of ``[CLS] question [SEP] block [SEP]``.
      max_span_wordpieces: Longest answer in wordpieces.
      whole_word_spans: Answers neither start nor end within a word; in the 2019 release they may.
      substring_labels: In the early update a block is right where an answer is a substring of its
        characters, as in the 2019 release ("rome" is then in "Jerome").
      span_hidden_size: Half the width of the reader's dense layer.
      reader_layers: Use this many lower layers of the encoder for the reader; 0 for all.
      frozen_layers: Embeddings and this many lower layers of both BERTs are kept as they were.
      dropout: Rate in the encoders. Random bits are dear on a CPU; a short run does without.
      search: "exact"; "bfloat16" or "int8" find the same in less memory, "scann" finds most of it
        faster. All but the first need ``orqa index --search``.
      retrieval: "callback" retrieves inside the jitted step; "two_phase" between two programs.
      stale_by_one: With "two_phase", retrieve for the next step while this one runs, so with the
        question tower as it was before this step. Search is then done by the host.
      refresh_every: Train the block tower too, and encode the corpus anew every so many steps, in
        the background; 0 to leave both as they are. See ``train.refresh``.
      dtype: "float32", or "bfloat16" for accelerators and processors with AMX: what the encoders
        compute in. Parameters, sums, scores and losses are float32 always.
      parameter_shards: Devices that share one copy of parameters and optimiser state; 1 gives each
        device a copy. The shares are gathered at the start of a step.
      seed: Of the data order, the dropout and the new parameters.
      checkpoint_every: Steps between two checkpoints.
      checkpoints: Folder of the checkpoints, or its URL (gs://bucket/folder) where the hosts of a
        pod share no disk; "" for checkpoints/ in ``out``.
      log_every: Steps between two lines of metrics.
      profile: Folder for a trace of a few steps; "" for none.
    """

    corpus: str
    retriever: str
    index: str
    train: str
    out: str
    dev: str = ""
    dev_every: int = 50
    evidence: Evidence = "dense"
    bm25: str = ""
    encoder: str = ""
    reader: str = ""
    epochs: float = 3.0
    batch_size: int = 8
    learning_rate: float = 5e-5
    head_learning_rate_factor: float = 10.0
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    optimizer: OptimizerName = "adamw"
    early_update_beam: int = 5000
    early_update: bool = True
    reader_beam: int = 5
    reading_share: float = 1.0
    reader_length: int = 320
    max_span_wordpieces: int = 10
    whole_word_spans: bool = True
    substring_labels: bool = False
    span_hidden_size: int = 256
    reader_layers: int = 0
    frozen_layers: int = 0
    dropout: float = 0.1
    search: Search = "exact"
    retrieval: Literal["callback", "two_phase"] = "callback"
    stale_by_one: bool = False
    refresh_every: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    parameter_shards: int = 1
    seed: int = 0
    checkpoint_every: int = 50
    checkpoints: str = ""
    log_every: int = 10
    profile: str = ""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_least(self, batch_size=1, checkpoint_every=1, log_every=1, dev_every=1)
        check_at_least(self, early_update_beam=1, reader_beam=1, reader_length=16)
        check_at_least(self, max_span_wordpieces=1, span_hidden_size=1)
        check_at_least(self, reader_layers=0, frozen_layers=0, parameter_shards=1, refresh_every=0)
        if self.stale_by_one and self.retrieval != "two_phase":
            raise OrqaError(
                "stale_by_one retrieves beside the step, not within it; set retrieval to two_phase."
            )
        if self.refresh_every and self.dev:
            raise OrqaError(
                "dev keeps the parameters of some step, refresh_every the vectors of the last one; "
                "leave out either."
            )
        if self.refresh_every and self.evidence == "bm25":
            raise OrqaError(
                "With bm25 as evidence there are no vectors for refresh_every to refresh."
            )


# --- Data: a pure function of (seed, step) --------------------------------------------------------


def step_rows(count: int, config: Any, step: int) -> np.ndarray:
    """Returns which of ``count`` questions the global batch of ``step`` holds.

    ``config`` has a ``batch_size`` and a ``seed``. Epochs follow one another without a gap, each in
    its own order.
    """
    positions = np.arange(step * config.batch_size, (step + 1) * config.batch_size)
    orders = {
        epoch: np.random.default_rng((config.seed, epoch)).permutation(count)
        for epoch in np.unique(positions // count)
    }
    return np.array([orders[position // count][position % count] for position in positions])


def total_steps(count: int, config: Any) -> int:
    """Steps that see ``count`` questions ``config.epochs`` times, ``config.batch_size`` at once."""
    return math.ceil(count * config.epochs / config.batch_size)


def batches(
    source: BeamSource, config: FinetuneConfig, question_length: int, first_step: int, steps: int
) -> Iterator[dict[str, Any]]:
    """Yields this process's rows of the batch of each step from ``first_step`` on.

    With ``config.stale_by_one`` each but the last has that of the step after it under "next".
    """

    def batch(step: int) -> dict[str, Any]:
        found: dict[str, Any] = local_batch(source, config, question_length, step)
        if config.stale_by_one and step + 1 < steps:
            found["next"] = local_batch(source, config, question_length, step + 1)
        return found

    return batch_iterator(batch, range(first_step, steps))


def local_batch(
    source: BeamSource, config: FinetuneConfig, question_length: int, step: int
) -> Inputs:
    """This process's rows of the batch of ``step``."""
    local_size = config.batch_size // jax.process_count()
    first_row = jax.process_index() * local_size
    rows = step_rows(len(source.questions), config, step)[first_row : first_row + local_size]
    return question_batch(source, rows, question_length)


# --- One step -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Models:
    """The two modules that fine-tuning trains; hashable, so static under jit."""

    retriever: DualEncoder
    reader: SpanReader

    def question_vectors(
        self, params: Params, batch: dict[str, Any], key: jax.Array | None = None
    ) -> jax.Array:
        """question_BP, with dropout where a key is given.

        Where BM25 takes part the last column is the weight of its score, see ``train.sparse``.
        """
        if "retriever" not in params:
            no_vector_B0 = jnp.zeros((batch["token_ids"].shape[0], 0))
            return with_sparse_weight(no_vector_B0, params["sparse"])
        question_BP: Any = self.retriever.apply(
            {"params": params["retriever"]},
            batch["token_ids"],
            batch["mask"],
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
            method="encode_questions",
        )
        if "sparse" in params:
            question_BP = with_sparse_weight(question_BP, params["sparse"])
        return question_BP

    def fresh_vectors(self, params: Params, beam: Beam, key: jax.Array | None = None) -> jax.Array:
        """Block vectors [R, K, P] of the blocks that are read, by the block tower as it is."""
        questions_read, read, length = beam["block_token_ids"].shape
        flat = (
            beam[f"block_{name}"].reshape(questions_read * read, length)
            for name in ("token_ids", "mask", "segment_ids")
        )
        block_MP: Any = self.retriever.apply(
            {"params": params["retriever"]},
            *flat,
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
            method="encode_blocks",
        )
        block_RKP = block_MP.reshape(questions_read, read, -1)
        # A BM25 score, where there is one, does not get stale.
        rest_RKX = beam["vectors"][beam["read"], :read, block_RKP.shape[2] :]
        return jnp.concatenate([block_RKP, rest_RKX], axis=2)

    def span_logits(self, params: Params, beam: Beam, key: jax.Array | None = None) -> jax.Array:
        """Reader scores [R, K, L, W] of the spans of a beam, with dropout where a key is given."""
        batch_size, read, length = beam["token_ids"].shape
        flat = (
            beam[name].reshape(batch_size * read, length)
            for name in ("token_ids", "mask", "segment_ids")
        )
        logits: Any = self.reader.apply(
            {"params": params["reader"]},
            *flat,
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
        )
        return logits.reshape(batch_size, read, length, -1)


def orqa_loss(
    params: Params,
    models: Models,
    batch: dict[str, Any],
    fetch: Any,
    key: jax.Array | None,
    *,
    early_update: bool = True,
) -> tuple[jax.Array, Metrics]:
    """Mean over the batch of the full loss and the early-update loss (section 6), and metrics.

    Args:
      params: ``{"retriever": ..., "reader": ...}``, the retriever with its block tower where that
        is trained.
      models: The modules of these parameters.
      batch: Encoder inputs of the questions and their ``rows``.
      fetch: ``(rows_B, question_BP) -> beam``, see ``BeamSource.fetch``.
      key: For dropout; None for none.
      early_update: Whether the early-update loss is part of the sum.
    """
    question_key, reader_key = (None, None) if key is None else jax.random.split(key)
    question_BP = models.question_vectors(params, batch, question_key)
    beam = fetch(batch["rows"], question_BP)
    scores_BC = jnp.einsum("bp,bcp->bc", question_BP, beam["vectors"])
    everything_BC = jnp.ones(scores_BC.shape, bool)
    early_B, early_signal_B = marginal_log_likelihood(
        scores_BC, beam["early_correct"], everything_BC
    )
    logits_RKLW = models.span_logits(params, beam, reader_key)
    questions_read, read = logits_RKLW.shape[:2]
    scores_RK = scores_BC[beam["read"], :read]
    if "block_token_ids" in beam:
        block_key = None if reader_key is None else jax.random.fold_in(reader_key, 1)
        fresh_RKP = models.fresh_vectors(params, beam, block_key)
        scores_RK = jnp.einsum("rp,rkp->rk", question_BP[beam["read"]], fresh_RKP)
    total_RKLW = logits_RKLW + scores_RK[:, :, None, None]
    flat = [
        x.reshape(questions_read, -1) for x in (total_RKLW, beam["span_correct"], beam["span_mask"])
    ]
    reading_R, reading_signal_R = marginal_log_likelihood(*flat)

    best_span_R = jnp.argmax(jnp.where(flat[2], flat[0], -jnp.inf), axis=1)
    exact_R = jnp.take_along_axis(flat[1], best_span_R[:, None], axis=1)[:, 0]
    first_correct_B = jnp.argmax(beam["early_correct"], axis=1)
    readable_B = beam["readable"]
    count = jnp.float32(len(readable_B))
    # A question that is not read counts in the mean like one whose beam lacks the answer.
    total_loss = -jnp.sum(reading_R)
    if early_update:
        total_loss -= jnp.sum(early_B)
    metrics = {
        "loss": (total_loss, count),
        "early_loss": mean_of(-early_B, early_signal_B),
        "reading_loss": mean_of(-reading_R, reading_signal_R),
        "no_signal": mean_of(~(early_signal_B | readable_B)),
        "steps_with_signal": mean_of(jnp.any(early_signal_B | readable_B)),
        "recall@5": mean_of(early_signal_B & (first_correct_B < 5)),
        "span_in_beam": mean_of(readable_B),
        "span_not_read": (mean_of(readable_B)[0] - mean_of(reading_signal_R)[0], count),
        "exact_span": mean_of(exact_R, reading_signal_R),
    }
    return total_loss / count, metrics


def train_step(
    state: TrainState,
    batch: dict[str, Any],
    beam: Beam | None,
    key: jax.Array,
    *,
    models: Models,
    optimizer: optax.GradientTransformation,
    fetch: Any,
    mesh: Mesh,
    early_update: bool = True,
) -> tuple[TrainState, Metrics]:
    """One update. With ``beam`` given (retrieved before the step) nothing is fetched inside."""
    inside = fetch if beam is None else lambda rows_B, question_BP: beam

    def loss(params: Params) -> tuple[jax.Array, Metrics]:
        step_key = jax.random.fold_in(key, state.step)
        params = gathered(mesh, params)
        return orqa_loss(params, models, batch, inside, step_key, early_update=early_update)

    gradients, metrics = jax.grad(loss, has_aux=True)(state.params)
    return apply_gradients(state, gradients, optimizer), metrics


def make_step(
    models: Models,
    optimizer: optax.GradientTransformation,
    source: BeamSource,
    mesh: Mesh,
    shardings: Any,
    retrieval: str,
    *,
    stale_by_one: bool = False,
    early_update: bool = True,
) -> tuple[Any, Any]:
    """Returns ``step(state, batch, key) -> (state, metrics)``; the given state is used up.

    Beside it stands ``trace(state, batch, key)``, the traced program that trains, for its costs.
    ``shardings`` are those of the `TrainState`. With ``stale_by_one`` the state is a
    `CarryingState`, and a batch has the one after it under "next".
    """
    update = jit_step(
        functools.partial(
            train_step,
            models=models,
            optimizer=optimizer,
            fetch=functools.partial(fetch_by_callback, source, mesh),
            mesh=mesh,
            early_update=early_update,
        ),
        mesh,
        shardings,
    )
    encode = make_question_encoder(models, mesh)
    retrieve = one_step_ahead if stale_by_one else between_programs
    find = retrieve(source, encode) if retrieval != "callback" else within_the_step

    def step(state: TrainState, batch: dict[str, Any], key: jax.Array) -> Any:
        state, beam = find(state, batch, key)
        trained, metrics = update(*_arguments(state, batch), place_batch(mesh, beam), key)
        return dataclasses.replace(state, **vars(trained)), metrics

    def trace(state: TrainState, batch: dict[str, Any], key: jax.Array) -> Any:
        beam = None
        if retrieval != "callback":
            question_BP = jax.eval_shape(encode, state.params, batch, state.step, key)
            shapes = beam_shapes(source.sizes, *question_BP.shape, devices=mesh.size)
            sharding = NamedSharding(mesh, BATCH)
            beam = jax.tree.map(lambda x: x.update(sharding=sharding), shapes)
        return update.trace(*_arguments(state, batch), beam, key)

    return step, trace


def _arguments(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, dict[str, Any]]:
    """What of both the program that trains gets: not what waits for the next step."""
    now = {name: value for name, value in batch.items() if name != "next"}
    return TrainState(state.step, state.params, state.optimizer_state), now


def within_the_step(
    state: TrainState, batch: dict[str, Any], key: jax.Array
) -> tuple[TrainState, None]:
    """Before a step that retrieves for itself there is nothing to find."""
    return state, None


def between_programs(source: BeamSource, encode: Any) -> Any:
    """``find(state, batch, key) -> (state, beam)`` by the parameters of the step."""

    def find(state: TrainState, batch: dict[str, Any], key: jax.Array) -> tuple[TrainState, Beam]:
        question_BP = encode(state.params, batch, state.step, key)
        return state, fetch_by_device(source, batch["rows"], question_BP)

    return find


def one_step_ahead(source: BeamSource, encode: Any) -> Any:
    """``find(state, batch, key) -> (state, beam)``, which also starts finding for "next".

    What the devices get first are the vectors of the next questions; a thread waits for them and
    searches while the step runs.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="stale_by_one")
    started: tuple[jax.Array, Any, Future[Beam]] | None = None

    def find(
        state: CarryingState, batch: dict[str, Any], key: jax.Array
    ) -> tuple[CarryingState, Beam]:
        nonlocal started
        question_BP = state.carried["question_BP"]
        if started and started[0] is question_BP and started[1] is source.searched:
            beam = started[2].result()
        else:  # a run that begins or continues, or the index has changed
            beam = fetch_by_device(source, batch["rows"], question_BP)
        if "next" in batch:
            question_BP = encode(state.params, batch["next"], state.step + 1, key)
            rows_B = batch["next"]["rows"]
            beam_ahead = thread.submit(fetch_by_device, source, rows_B, question_BP)
            started = question_BP, source.searched, beam_ahead
            carried = state.carried | {"question_BP": question_BP}
            state = dataclasses.replace(state, carried=carried)
        return state, beam

    return find


@functools.cache
def make_question_encoder(models: Models, mesh: Mesh) -> Any:
    """``encode(params, batch, step, key) -> question_BP``, as the loss of that step has them."""

    # Each process searches for the rows of its own devices, so the vectors have to lie there.
    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, BATCH))
    def encode(params: Params, batch: dict[str, Any], step: jax.Array, key: jax.Array) -> jax.Array:
        question_key, _ = jax.random.split(jax.random.fold_in(key, step))
        return models.question_vectors(gathered(mesh, params), batch, question_key)

    return encode


def make_trial(
    models: Models, source: BeamSource, question_length: int, batch_size: int
) -> Callable[[Params], float]:
    """Returns a function from parameters to the share of the questions of ``source`` that get one
    of their answers, wordpiece for wordpiece, from the blocks that are read."""
    vectors = jax.jit(models.question_vectors)

    @jax.jit
    def answered(params: Params, batch: dict[str, Any], beam: Beam) -> jax.Array:
        _, metrics = orqa_loss(params, models, batch, lambda rows_B, question_BP: beam, None)
        return metrics["exact_span"][0]

    def trial(params: Params) -> float:
        count, right = len(source.questions), 0.0
        for start in range(0, count, batch_size):
            rows_B = np.arange(start, min(start + batch_size, count))
            batch = question_batch(source, rows_B, question_length)
            beam = source.fetch(rows_B, np.asarray(vectors(params, batch)))
            right += float(answered(params, batch, beam))
        source.take_seconds()
        return right / count

    return trial


def make_keeper(
    trial: Callable[[Params], float], best: Path, save: Callable[[Params, dict[str, Any]], None]
) -> Callable[[int, Params], float]:
    """Returns a function that tries the parameters of a step, and keeps them if they are the best.

    Args:
      trial: Of which the returned function returns the result.
      best: Folder of the best model so far.
      save: Writes parameters, and what was found out about them, to that folder.
    """
    most = -1.0
    recover_folder(best)
    if (best / "model.json").exists():  # a run that continues
        most = describe_model(best, kind=MODEL_KIND)["dev_exact_match"]

    def keep_best(step: int, params: Params) -> float:
        nonlocal most
        share = trial(params)
        # The later of equals has seen more. A continued run tries the same parameters again.
        if share >= most:
            most = share
            save(params, {"step": step, "dev_exact_match": share})
        logger.info(
            "Step %d: %.1f%% of the held-out questions answered, %.1f%% at best.",
            *(step, 100 * share, 100 * most),
        )
        return share

    return keep_best


# --- The whole run --------------------------------------------------------------------------------


def initial_params(
    config: FinetuneConfig, retriever_params: Params, key: jax.Array
) -> tuple[ReaderConfig, Params]:
    """Returns the reader's shape, and what is trained: the question tower and a fresh reader.

    With ``config.refresh_every``, the block tower too.
    """
    bert_config, bert_params = load_bert(Path(config.encoder))
    if config.reader_layers:
        bert_config, bert_params = truncate_bert(bert_config, bert_params, config.reader_layers)
    bert_config = with_dropout(bert_config, config.dropout)
    reader_config = ReaderConfig(bert_config, config.span_hidden_size, config.max_span_wordpieces)
    params: Params = {"reader": init_reader(reader_config, key, bert_params)}
    if config.reader:
        params["reader"] = trained_reader(Path(config.reader), params["reader"])
    if config.evidence != "bm25":
        towers = retriever_params if config.refresh_every else [question_tower(retriever_params)]
        params["retriever"] = jax.tree.map(
            jnp.asarray, {tower: retriever_params[tower] for tower in towers}
        )
    if config.evidence != "dense":
        params["sparse"] = initial_sparse_params()
    return reader_config, params


def trained_reader(folder: Path, fresh: Params) -> Params:
    """The reader of a model folder, where it has the shape of the ``fresh`` one.

    Raises:
      OrqaError: There is no such model, or its reader has other sizes.
    """
    _, params, _ = load_model(folder, kind=MODEL_KIND)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (params["reader"], fresh)]
    if shapes[0] != shapes[1]:
        raise OrqaError(
            f"The reader in {folder} has other sizes than this one would; give the same encoder, "
            "reader_layers and span_hidden_size to both."
        )
    return jax.tree.map(jnp.asarray, params["reader"])


def make_models(
    config: FinetuneConfig, retriever_config: RetrieverConfig, reader_config: ReaderConfig
) -> Models:
    """The modules that ``config`` trains."""
    dtype = jnp.dtype(config.dtype)
    frozen_in_reader = min(config.frozen_layers, reader_config.bert.num_hidden_layers)
    return Models(
        DualEncoder(retriever_config, dtype, config.frozen_layers),
        SpanReader(reader_config, dtype, frozen_in_reader),
    )


def make_finetune_optimizer(config: Any, steps: int) -> optax.GradientTransformation:
    """The optimiser of a run of so many steps; ``config`` is that of this or of reader training."""
    warmup_steps = round(config.warmup_share * steps)
    if config.optimizer == "bert":
        warmup_steps = release_warmup(steps, config.warmup_share)
    return make_optimizer(
        SCHEDULES[config.optimizer](config.learning_rate, warmup_steps, steps),
        name=config.optimizer,
        weight_decay=config.weight_decay,
        frozen=frozen_layer_patterns("(retriever/.*encoder|reader)", config.frozen_layers),
        faster=["reader/(?!bert/).*", "sparse/.*"],
        faster_factor=config.head_learning_rate_factor,
    )


def beam_sizes(config: FinetuneConfig, block_length: int) -> BeamSizes:
    """What is retrieved and read for each question; ``block_length`` is that of the block tower."""
    return BeamSizes(
        early=config.early_update_beam,
        read=config.reader_beam,
        reader_length=config.reader_length,
        span_width=config.max_span_wordpieces,
        reading_share=config.reading_share,
        whole_words=config.whole_word_spans,
        substring_labels=config.substring_labels,
        block_length=block_length if config.refresh_every else 0,
    )


def open_source(
    config: FinetuneConfig,
    store: BlockStore,
    about: Mapping[str, Any],
    tokenizer: WordPiece,
    examples: Sequence[Example],
) -> BeamSource:
    """Opens what finds the blocks while training: embeddings of a retriever, BM25, or both.

    ``about`` describes the retriever.

    Raises:
      OrqaError: The embeddings or the BM25 index are missing, or of another corpus or retriever.
    """
    sizes = beam_sizes(config, about["block_length"])
    if config.evidence != "dense":
        bm25 = BM25Index.open(Path(config.bm25), corpus_fingerprint=store.fingerprint)
    if config.evidence == "bm25":
        no_vectors_NP = np.zeros((len(store), 0), np.float32)
        return SparseSource(store, bm25, None, no_vectors_NP, tokenizer, examples, sizes)
    index, vectors_NP = open_index(config, store, Path(config.index), about["weights_fingerprint"])
    if config.evidence == "hybrid":
        return SparseSource(store, bm25, index, vectors_NP, tokenizer, examples, sizes)
    return BeamSource(store, index, vectors_NP, tokenizer, examples, sizes)


def open_index(
    config: FinetuneConfig, store: BlockStore, folder: Path, weights_fingerprint: str
) -> tuple[Index[np.ndarray], np.ndarray]:
    """The search that training does over the embeddings in a folder, and these [N, P].

    Raises:
      OrqaError: They are missing, or of another corpus or other weights.
    """
    fingerprints = {
        "corpus_fingerprint": store.fingerprint,
        "weights_fingerprint": weights_fingerprint,
    }
    vectors_NP = open_embeddings(folder, **fingerprints)
    # A callback must not call jax, the rows of a process must not wait for those of others, and
    # what a thread of its own starts on devices must not wait for the step.
    on_devices = config.retrieval == "two_phase" and not config.stale_by_one
    on_devices &= jax.process_count() == 1
    mesh = accelerator_mesh() if on_devices else None
    return open_search(folder, vectors_NP, config.search, **fingerprints, mesh=mesh), vectors_NP


@alone_in_out
def finetune(config: FinetuneConfig) -> Path:
    """Runs fine-tuning, or continues an interrupted run; returns the folder of the model.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    out = Path(config.out)
    store = BlockStore(Path(config.corpus))
    about, retriever_params, tokenizer = load_model(Path(config.retriever), kind=ict.MODEL_KIND)
    examples = load_examples(Path(config.train))
    encoder = config.encoder or about["config"]["encoder"]
    config = dataclasses.replace(config, encoder=encoder)
    described = dataclasses.asdict(config) | {
        "corpus_fingerprint": store.fingerprint,
        "retriever_fingerprint": about["weights_fingerprint"],
        "train_fingerprint": fingerprint_examples(examples),
        "encoder_fingerprint": fingerprint_params(load_bert(Path(encoder))[1]),
    }
    if config.reader:
        about_reader = describe_model(Path(config.reader), kind=MODEL_KIND)
        described["reader_fingerprint"] = about_reader["weights_fingerprint"]
    if config.dev:
        dev_examples = load_examples(Path(config.dev))
        described["dev_fingerprint"] = fingerprint_examples(dev_examples)
        if jax.process_count() > 1:
            raise OrqaError("dev is tried by one process alone; leave it out with several.")
    if is_finished(out / "model", kind=MODEL_KIND, config=described):
        return out / "model"
    if WordPiece.load(Path(config.encoder)).fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The encoder {config.encoder} has another tokenizer than the corpus {config.corpus} "
            "was built with; give the encoder that the corpus and the retriever were made with."
        )
    mesh = make_mesh(parameter_shards=config.parameter_shards)
    check_batch_size(mesh, config.batch_size)
    source = open_source(config, store, about, tokenizer, examples)
    log_answers(source)
    retriever_config = retriever_config_from_dict(about["retriever"])
    retriever_config = dataclasses.replace(
        retriever_config, bert=with_dropout(retriever_config.bert, config.dropout)
    )
    params_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    reader_config, params = initial_params(config, retriever_params, params_key)
    models = make_models(config, retriever_config, reader_config)
    steps = total_steps(len(examples), config)
    optimizer = make_finetune_optimizer(config, steps)
    state = initial_state(params, optimizer)
    shardings = tree_shardings(mesh, state)
    state = jax.device_put(state, shardings)
    step_function, trace = make_step(
        *(models, optimizer, source, mesh, shardings, config.retrieval),
        stale_by_one=config.stale_by_one,
        early_update=config.early_update,
    )
    carried: dict[str, Any] = {}
    if config.stale_by_one:
        first = place_batch(mesh, local_batch(source, config, about["question_length"], 0))
        encode = make_question_encoder(models, mesh)
        carried["question_BP"] = encode(state.params, first, state.step, dropout_key)
    refresh = None
    if config.refresh_every:
        encoder = block_encoder(
            models.retriever, retriever_params, tokenizer, about, about["weights_fingerprint"]
        )
        carried["towers"] = initial_towers(
            {name: state.params["retriever"][name] for name in encoder.params}
        )
        refresh = IndexRefresh(
            every=config.refresh_every,
            steps=steps,
            store=store,
            encoder=encoder,
            folder=out / "refresh",
            search=config.search,
            mesh=mesh,
            use=lambda folder, weights: source.use(*open_index(config, store, folder, weights)),
        )
    if carried:
        state = CarryingState(**vars(state), carried=carried)

    description = {
        "retriever": dataclasses.asdict(retriever_config),
        "reader": dataclasses.asdict(reader_config),
        "question_length": about["question_length"],
        "reader_length": config.reader_length,
        "reader_beam": config.reader_beam,
        "whole_word_spans": config.whole_word_spans,
        "corpus_fingerprint": store.fingerprint,
        "retriever_fingerprint": about["weights_fingerprint"],
        "config": described,
    }

    def save(folder: Path, params: Params, found: dict[str, Any]) -> None:
        save_model(
            folder,
            kind=MODEL_KIND,
            description=description | found,
            params=fetch_tree(mesh, params),
            tokenizer=tokenizer,
        )

    best = out / "best"
    if config.dev:
        whole = dataclasses.replace(config, reading_share=1.0)
        dev_source = open_source(whole, store, about, tokenizer, dev_examples)
        trial = make_trial(models, dev_source, about["question_length"], config.batch_size)
        keep_best = make_keeper(trial, best, lambda params, found: save(best, params, found))

    def observe(step: int, state: TrainState, log: MetricsLog) -> Metrics:
        for name, seconds in source.take_seconds().items():
            log.spend(name, seconds)
        if config.refresh_every:
            return {"staleness": (staleness(step - 1, config.refresh_every), 1)}
        if not config.dev or (step % config.dev_every and step != steps):
            return {}
        return {"dev_exact_match": (keep_best(step, state.params), 1)}

    with contextlib.ExitStack() as stack:
        if refresh is not None:
            stack.callback(refresh.close)
        state = run_steps(
            "finetune",
            state,
            step_function,
            lambda first: batches(source, config, about["question_length"], first, steps),
            dropout_key,
            mesh=mesh,
            out=out,
            described=described,
            total=steps,
            batch_size=config.batch_size,
            checkpoint_every=config.checkpoint_every,
            log_every=config.log_every,
            checkpoints=config.checkpoints,
            profile=config.profile,
            trace=trace,
            prepare=as_it_is if refresh is None else refresh.before_step,
            observe=observe,
        )
    if config.dev:
        best.replace(out / "model")
        return out / "model"
    found = {}
    if refresh is not None:
        found["block_length"] = about["block_length"]
        params = fetch_tree(mesh, state.params)
        found["block_encoder_fingerprint"] = refresh.finish(params, out / "index")
    save(out / "model", state.params, found)
    return out / "model"


def trained_block_encoder(folder: Path) -> BlockEncoder | None:
    """The block tower of a model that was trained with ``refresh_every``; None for any other.

    Its embeddings are in ``index`` beside the folder of the model.
    """
    if not (folder / "model.json").exists():
        return None
    about, params, tokenizer = load_model(folder, kind=MODEL_KIND)
    if "block_encoder_fingerprint" not in about:
        return None
    model = DualEncoder(retriever_config_from_dict(about["retriever"]))
    fingerprint = about["block_encoder_fingerprint"]
    return block_encoder(model, params["retriever"], tokenizer, about, fingerprint)


def log_answers(source: BeamSource) -> None:
    """Says for how many questions the corpus holds an answer at all.

    Whether a regular expression matches somewhere would take a scan of all text to tell.
    """
    strings = [
        bool(len(blocks))
        for blocks, answers in zip(source.postings, source.answers, strict=True)
        if answers
    ]
    found = sum(strings)
    logger.info("%d of %d questions have their answer in the corpus.", found, len(strings))
    if strings and not found:
        raise OrqaError(
            "None of the training answers stands in the corpus, so there is nothing to learn from; "
            "check that questions and documents belong together."
        )


def fingerprint_examples(examples: Sequence[Example]) -> str:
    """sha256 over the questions, answers and their match modes in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()
