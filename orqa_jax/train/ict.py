"""Pre-training of the retriever by the Inverse Cloze Task (Lee et al. 2019, section 5).

A sentence of a block is the pseudo-question; the block it came from is the one to find among the
blocks of the batch. In nine of ten examples the sentence is taken out of its block, so that the
retriever must learn more than matching words; in one it stays, so that it learns that too.
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.losses import in_batch_softmax_loss
from orqa_jax.models.bert import BertConfig, with_dropout
from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import inputs
from orqa_jax.train.checkpoint import is_finished, save_model
from orqa_jax.train.chunks import in_chunks
from orqa_jax.train.config import check_at_least, check_ranges
from orqa_jax.train.exclusive import alone_in_out
from orqa_jax.train.loop import Observe, nothing_more, run_steps
from orqa_jax.train.mesh import (
    check_batch_size,
    fetch_tree,
    gathered,
    jit_step,
    make_mesh,
    tree_shardings,
)
from orqa_jax.train.metrics import Metrics, MetricsLog, mean_of
from orqa_jax.train.mining import fingerprint_file, load_pairs
from orqa_jax.train.state import (
    SCHEDULES,
    OptimizerName,
    Params,
    TrainState,
    apply_gradients,
    frozen_layer_patterns,
    initial_state,
    make_optimizer,
)
from orqa_jax.train.watch_recall import sample_recall, watch_recall

MODEL_KIND = "dual encoder"


@dataclasses.dataclass(frozen=True)
class ICTConfig:
    """Settings of Inverse Cloze Task pre-training; the defaults suit two CPU cores.

    Attributes:
      corpus: Folder of the block store.
      encoder: Folder of the pre-trained BERT that both towers start from.
      out: Folder for checkpoints, metrics and the finished model.
      pairs: JSONL file of questions with the block that answers each and hard negatives, as `orqa
        mine` writes it: strong supervision (Karpukhin et al. 2020) instead of pseudo-questions,
        and ``mask_rate`` has no say. "" for the Inverse Cloze Task.
      steps: Number of updates; 0 leaves the encoder as it was, under an untrained projection.
      batch_size: Pseudo-questions of one update, on all devices together; each has the blocks of
        all others as negatives.
      chunk_size: Rows that one device encodes at a time, computing them again for the gradient: a
        third more arithmetic, and memory for so many rows instead of for the batch. It divides
        the rows of a device; 0 encodes all of them at once.
      chunk_lengths: Each chunk is padded to the shortest of so many lengths that holds its longest
        row, rows being sorted by length; each length has to be compiled. 1 pads all to the full
        ``question_length`` and ``block_length``, as does a batch without chunks.
      exclude_duplicates: Blocks that hold the pseudo-question's sentence too are no negatives,
        with ``pairs`` copies of the right block. In the 2019 release they are.
      learning_rate: Peak, after a linear rise over ``warmup_steps``; falls linearly to 0.
      projection_learning_rate_factor: How much faster the new projection learns than the BERT.
      warmup_steps: Steps in which the learning rate rises.
      weight_decay: Decoupled, on all but biases and LayerNorm.
      optimizer: "adamw", or "bert" for BERT's own: no bias correction, another fall.
      mask_rate: How often the pseudo-question is taken out of its block (0.9 in the paper).
      question_length: Longest pseudo-question in wordpieces, [CLS] and [SEP] counted.
      block_length: Longest block in wordpieces, title, [CLS] and two [SEP] counted.
      projection_size: Size P of a retrieval vector (128 in the paper).
      pooling: What the projection reads: "cls", "mean" or "pooler".
      shared_towers: One BERT for questions and blocks, as in the 2019 release.
      projection_layer_norm: LayerNorm after the projection, as in the 2019 release.
      projection_dropout: Rate on the finished vector (0.1 in the 2019 release).
      projection_init: "orthogonal", or "glorot_uniform" as in the 2019 release.
      frozen_layers: Embeddings and this many lower layers are kept as they were.
      dropout: Rate in the encoders. Random bits are dear on a CPU; a short run does without.
      attention_dropout: Whether attention weights are dropped too, as in BERT. Without that, a GPU
        trains in bfloat16 through cuDNN's fused attention.
      dtype: "float32", or "bfloat16" for accelerators and processors with AMX: what the encoders
        compute in. Parameters, sums, vectors and loss are float32 always.
      parameter_shards: Devices that share one copy of parameters and optimiser state; 1 gives each
        device a copy. The shares are gathered at the start of a step.
      workers: Processes that prepare batches; 0 for a thread of this one.
      seed: Of the data order, the dropout and the new parameters.
      checkpoint_every: Steps between two checkpoints.
      checkpoints: Folder of the checkpoints, or its URL (gs://bucket/folder) where the hosts of a
        pod share no disk; "" for checkpoints/ in ``out``.
      log_every: Steps between two lines of metrics.
      watch_questions: JSONL file of question-answer pairs, for zero-shot recall on a sample of the
        corpus, beside BM25, in the metrics; "" for none.
      watch_every: Steps between two looks at that recall.
      profile: Folder for a trace of a few steps; "" for none.
    """

    corpus: str
    encoder: str
    out: str
    pairs: str = ""
    steps: int = 1000
    batch_size: int = 32
    chunk_size: int = 0
    chunk_lengths: int = 3
    exclude_duplicates: bool = True
    learning_rate: float = 5e-5
    projection_learning_rate_factor: float = 10.0
    warmup_steps: int = 100
    weight_decay: float = 0.01
    optimizer: OptimizerName = "adamw"
    mask_rate: float = 0.9
    question_length: int = 64
    block_length: int = 288
    projection_size: int = 128
    pooling: Literal["cls", "mean", "pooler"] = "cls"
    shared_towers: bool = False
    projection_layer_norm: bool = False
    projection_dropout: float = 0.0
    projection_init: Literal["orthogonal", "glorot_uniform"] = "orthogonal"
    frozen_layers: int = 0
    dropout: float = 0.1
    attention_dropout: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    parameter_shards: int = 1
    workers: int = 0
    seed: int = 0
    checkpoint_every: int = 100
    checkpoints: str = ""
    log_every: int = 10
    watch_questions: str = ""
    watch_every: int = 100
    profile: str = ""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_least(self, steps=0, batch_size=1, checkpoint_every=1, log_every=1, watch_every=1)
        check_at_least(self, chunk_size=0, chunk_lengths=1, parameter_shards=1, workers=0)
        check_at_least(self, question_length=3, block_length=16, projection_size=1, frozen_layers=0)


# --- Data: a pure function of (seed, position) ---------------------------------------------------


class ICTExamples:
    """All pseudo-questions, by position; epochs follow one another without end.

    An epoch visits every block once in random order, except that a block of one sentence can only
    be used with the sentence kept, so just a share ``1 - mask_rate`` of those blocks takes part.
    Example ``position`` is always the same, whoever asks for it and in whatever order.
    """

    def __init__(self, store: BlockStore, *, seed: int, mask_rate: float) -> None:
        self._store, self._seed, self._mask_rate = store, seed, mask_rate
        sentences_N = np.concatenate([np.diff(shard.sentence_offsets) for shard in store.shards])
        self._most_sentences = int(sentences_N.max())
        self._multiple = np.flatnonzero(sentences_N > 1)
        self._single = np.flatnonzero(sentences_N == 1)
        self._single_share = round((1.0 - mask_rate) * len(self._single))
        self.epoch_size = len(self._multiple) + self._single_share
        if not self.epoch_size:
            raise OrqaError(
                "No block of the corpus has two sentences, so the Inverse Cloze Task has nothing "
                "to take out; add longer documents or lower mask_rate."
            )
        self._order = functools.lru_cache(maxsize=2)(self._epoch_order)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng((self._seed, 0, epoch))
        single = rng.choice(self._single, self._single_share, replace=False)
        return rng.permutation(np.concatenate([self._multiple, single]))

    def __getitem__(self, position: int) -> dict[str, Any]:
        epoch, place = divmod(int(position), self.epoch_size)
        block = int(self._order(epoch)[place])
        rng = np.random.default_rng((self._seed, 1, position))
        tokens = self._store.block_tokens(block)
        bounds = np.append(self._store.sentence_starts(block), len(tokens))
        sentence = rng.integers(len(bounds) - 1)
        start, end = bounds[sentence], bounds[sentence + 1]
        masked = len(bounds) > 2 and rng.random() < self._mask_rate
        context = np.concatenate([tokens[:start], tokens[end:]]) if masked else tokens
        # What a block holds is told by the sentences it had, so that a copy of it whose own
        # pseudo-question was taken out is still known as a copy.
        hashes = np.zeros(self._most_sentences, np.int32)
        hashes[: len(bounds) - 1] = [
            sentence_hash(tokens[a:b]) for a, b in itertools.pairwise(bounds)
        ]
        return {
            "block": np.int32(block),
            "masked": np.bool_(masked),
            "sentence_hashes": hashes,
            "question_hash": hashes[sentence],
            "question": tokens[start:end],
            "context": context,
        }


def sentence_hash(tokens: np.ndarray) -> np.int32:
    """A number above 0 that equal sentences share, and different ones hardly ever."""
    return np.int32(zlib.crc32(tokens.tobytes()) & 0x7FFFFFFE) + np.int32(1)


class PairExamples:
    """Questions with the blocks that answer them and hard negatives, by position, without end."""

    def __init__(self, store: BlockStore, tokenizer: WordPiece, pairs: Path, *, seed: int) -> None:
        self._store, self._seed = store, seed
        self._pairs = load_pairs(pairs, store)
        self._questions = [e.ids for e in tokenizer.encode([pair.question for pair in self._pairs])]
        self.epoch_size = len(self._pairs)
        self._order = functools.lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((seed, 0, epoch)).permutation(self.epoch_size)
        )

    def __getitem__(self, position: int) -> dict[str, Any]:
        epoch, place = divmod(int(position), self.epoch_size)
        row = int(self._order(epoch)[place])
        pair = self._pairs[row]
        context = self._store.block_tokens(pair.block)
        # A whole block counts as its only sentence: copies of it are told by that.
        hashes = [sentence_hash(self._store.block_tokens(block)) for block in pair.negatives]
        return {
            "block": np.int32(pair.block),
            "negatives": np.array(pair.negatives, np.int32),
            "negative_hashes": np.array(hashes, np.int32).reshape(-1, 1),
            "masked": np.bool_(False),
            "sentence_hashes": np.array([sentence_hash(context)], np.int32),
            "question_hash": sentence_hash(context),
            "question": self._questions[row],
            "context": context,
        }


def collate(
    examples: list[dict[str, Any]], store: BlockStore, tokenizer: WordPiece, config: ICTConfig
) -> dict[str, Any]:
    """Pads examples into one batch of encoder inputs."""
    question = [example["question"] for example in examples]
    negatives = [block for example in examples for block in example.get("negatives", ())]
    blocks = np.array([*(example["block"] for example in examples), *negatives])
    context = inputs.ragged(
        [*(example["context"] for example in examples), *map(store.block_tokens, negatives)]
    )
    block = inputs.pair_inputs(tokenizer, store.titles(blocks), context, config.block_length)
    del block["second_mask"]
    hashes = np.stack([example["sentence_hashes"] for example in examples])
    if negatives:
        hashes = np.concatenate([hashes, *(example["negative_hashes"] for example in examples)])
    return {
        "target": np.arange(len(examples), dtype=np.int32),
        "masked": np.array([example["masked"] for example in examples]),
        "question_hash": np.array([example["question_hash"] for example in examples]),
        "sentence_hashes": hashes if config.exclude_duplicates else hashes[:, :0],
        "question": inputs.question_inputs(tokenizer, question, config.question_length),
        "block": block,
    }


def batch_shapes(config: ICTConfig, *, most_sentences: int) -> dict[str, Any]:
    """Shapes and types of a whole batch, where no block has more than so many sentences."""

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)

    def encoder_inputs(length: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: array(bool if name == "mask" else np.int32, length) for name in names}

    return {
        "target": array(np.int32),
        "masked": array(bool),
        "question_hash": array(np.int32),
        "sentence_hashes": array(np.int32, most_sentences if config.exclude_duplicates else 0),
        "question": encoder_inputs(config.question_length, "token_ids", "mask"),
        "block": encoder_inputs(config.block_length, "token_ids", "mask", "segment_ids"),
    }


@functools.lru_cache(maxsize=1)
def _open_examples(
    corpus: str, encoder: str, seed: int, mask_rate: float, pairs: str
) -> tuple[BlockStore, WordPiece, ICTExamples | PairExamples]:
    """What a worker process needs of the corpus, opened there once."""
    store, tokenizer = BlockStore(Path(corpus)), WordPiece.load(Path(encoder))
    if pairs:
        return store, tokenizer, PairExamples(store, tokenizer, Path(pairs), seed=seed)
    return store, tokenizer, ICTExamples(store, seed=seed, mask_rate=mask_rate)


def step_batch(config: ICTConfig, processes: int, process: int, step: int) -> dict[str, Any]:
    """The rows that process number ``process`` has in the batch of ``step`` (counted from 0)."""
    store, tokenizer, examples = _open_examples(
        config.corpus, config.encoder, config.seed, config.mask_rate, config.pairs
    )
    rows = config.batch_size // processes
    first = step * config.batch_size + process * rows
    batch = collate(
        [examples[position] for position in range(first, first + rows)], store, tokenizer, config
    )
    # The blocks of all processes stand one after the other.
    batch["target"] += np.int32(process * len(batch["sentence_hashes"]))
    return batch


def batches(config: ICTConfig, first_step: int) -> Iterator[dict[str, Any]]:
    """Yields this process's rows of the batch of each step from ``first_step`` on."""
    batch = functools.partial(step_batch, config, jax.process_count(), jax.process_index())
    return inputs.batch_iterator(batch, range(first_step, config.steps), workers=config.workers)


# --- One step ------------------------------------------------------------------------------------


def encode(
    params: Params, model: DualEncoder, method: str, arrays_BL: Any, key: jax.Array, **chunks: Any
) -> jax.Array:
    """Vectors [B, P] of a batch by one tower, with dropout; ``chunks`` are those of `in_chunks`.

    ``arrays_BL`` are wordpieces, mask and, for blocks, segments. Every row has a dropout key of its
    own, so that it drops the same in whichever chunk it is.
    """
    dropout = model.config.has_dropout

    def encode_rows(params: Params, arrays_BL: Any, keys_B: Any) -> jax.Array:
        apply = functools.partial(model.apply, {"params": params}, method=method)
        if not dropout:
            return apply(*arrays_BL)  # type: ignore[return-value]

        def encode_row(arrays_L: Any, key: jax.Array) -> Any:
            arrays_1L = (array[None] for array in arrays_L)
            return apply(*arrays_1L, deterministic=False, rngs={"dropout": key})[0]

        return jax.vmap(encode_row)(arrays_BL, keys_B)

    keys_B = jax.random.split(key, len(arrays_BL[0])) if dropout else None
    length_B = arrays_BL[1].sum(axis=1)
    return in_chunks(encode_rows, params, arrays_BL, keys_B, length_B, **chunks)


def ict_loss(
    params: Params,
    model: DualEncoder,
    batch: dict[str, Any],
    key: jax.Array,
    *,
    mesh: Mesh,
    chunk_size: int = 0,
    chunk_lengths: int = 1,
) -> tuple[jax.Array, Metrics]:
    """Mean in-batch softmax loss of a batch (section 5) and its metrics.

    The negatives of a question are the blocks of the whole batch, on whichever device they were
    encoded, but for those that hold its sentence as well.
    """
    question_key, block_key = jax.random.split(key)
    params = gathered(mesh, params)
    encode_in_chunks = functools.partial(
        encode, params, model, mesh=mesh, chunk_size=chunk_size, chunk_lengths=chunk_lengths
    )
    question = tuple(batch["question"][name] for name in ("token_ids", "mask"))
    question_BP = encode_in_chunks("encode_questions", question, question_key)
    block = tuple(batch["block"][name] for name in ("token_ids", "mask", "segment_ids"))
    block_MP = gathered(mesh, encode_in_chunks("encode_blocks", block, block_key))

    sentences_MS = gathered(mesh, batch["sentence_hashes"])
    allowed_BM = ~(batch["question_hash"][:, None, None] == sentences_MS).any(axis=2)
    target_B = batch["target"]
    loss_B, correct_B = in_batch_softmax_loss(question_BP, block_MP, target_B, allowed_BM)
    others_BM = allowed_BM & (jnp.arange(len(block_MP)) != target_B[:, None])
    metrics = {
        "loss": mean_of(loss_B),
        "accuracy": mean_of(correct_B),
        "accuracy_masked": mean_of(correct_B, batch["masked"]),
        "accuracy_unmasked": mean_of(correct_B, ~batch["masked"]),
        "negatives": mean_of(others_BM.sum(axis=1)),
    }
    return jnp.mean(loss_B), metrics


def train_step(
    state: TrainState,
    batch: dict[str, Any],
    key: jax.Array,
    *,
    model: DualEncoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    chunk_size: int = 0,
    chunk_lengths: int = 1,
) -> tuple[TrainState, Metrics]:
    """One update. The dropout of a step depends on ``key`` and the number of the step alone."""
    loss = functools.partial(
        ict_loss, mesh=mesh, chunk_size=chunk_size, chunk_lengths=chunk_lengths
    )
    gradients, metrics = jax.grad(loss, has_aux=True)(
        state.params, model, batch, jax.random.fold_in(key, state.step)
    )
    return apply_gradients(state, gradients, optimizer), metrics


# --- The whole run -------------------------------------------------------------------------------


def make_model(config: ICTConfig, bert_config: BertConfig) -> DualEncoder:
    """The dual encoder that ``config`` describes, around this BERT."""
    retriever_config = RetrieverConfig(
        bert=with_dropout(bert_config, config.dropout, attention=config.attention_dropout),
        projection_size=config.projection_size,
        pooling=config.pooling,
        shared_towers=config.shared_towers,
        layer_norm=config.projection_layer_norm,
        projection_dropout=config.projection_dropout,
        projection_init=config.projection_init,
    )
    return DualEncoder(retriever_config, jnp.dtype(config.dtype), config.frozen_layers)


def make_ict_optimizer(config: ICTConfig) -> optax.GradientTransformation:
    """The optimiser that ``config`` describes."""
    return make_optimizer(
        SCHEDULES[config.optimizer](config.learning_rate, config.warmup_steps, config.steps),
        name=config.optimizer,
        weight_decay=config.weight_decay,
        frozen=frozen_layer_patterns("[a-z_]*encoder", config.frozen_layers),
        # Not those of the same name inside BERT.
        faster=["[a-z_]*encoder/(projection|norm)/.*"],
        faster_factor=config.projection_learning_rate_factor,
    )


def make_step(
    config: ICTConfig,
    model: DualEncoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: Any,
) -> Any:
    """Returns ``step(state, batch, key) -> (state, metrics)``, jitted; the given state is used up.

    ``shardings`` are those of the state.
    """
    step = functools.partial(
        train_step,
        model=model,
        optimizer=optimizer,
        mesh=mesh,
        chunk_size=config.chunk_size,
        chunk_lengths=config.chunk_lengths,
    )
    return jit_step(step, mesh, shardings)


@alone_in_out
def pretrain(config: ICTConfig) -> Path:
    """Runs pre-training, or continues an interrupted run; returns the folder of the model.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    out = Path(config.out)
    store = BlockStore(Path(config.corpus))
    bert_config, bert_params = load_bert(Path(config.encoder))
    described = dataclasses.asdict(config) | {
        "corpus_fingerprint": store.fingerprint,
        "encoder_fingerprint": fingerprint_params(bert_params),
        "pairs_fingerprint": fingerprint_file(Path(config.pairs)) if config.pairs else "",
    }
    if is_finished(out / "model", kind=MODEL_KIND, config=described):
        return out / "model"
    tokenizer = WordPiece.load(Path(config.encoder))
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {config.corpus} was built with another tokenizer than the encoder "
            f"{config.encoder} has; build the corpus again with --encoder {config.encoder}."
        )
    mesh = make_mesh(parameter_shards=config.parameter_shards)
    check_batch_size(mesh, config.batch_size, config.chunk_size)
    model = make_model(config, bert_config)
    params_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    optimizer = make_ict_optimizer(config)
    state = initial_state(init_dual_encoder(model.config, params_key, bert_params), optimizer)
    shardings = tree_shardings(mesh, state)
    state = jax.device_put(state, shardings)
    step_function = make_step(config, model, optimizer, mesh, shardings)
    state = run_steps(
        "ict",
        state,
        step_function,
        functools.partial(batches, config),
        dropout_key,
        mesh=mesh,
        out=out,
        described=described,
        total=config.steps,
        batch_size=config.batch_size,
        checkpoint_every=config.checkpoint_every,
        log_every=config.log_every,
        checkpoints=config.checkpoints,
        profile=config.profile,
        observe=watcher(config, model, mesh, store, tokenizer),
    )
    save_model(
        out / "model",
        kind=MODEL_KIND,
        description={
            "retriever": dataclasses.asdict(model.config),
            "question_length": config.question_length,
            "block_length": config.block_length,
            "config": described,
        },
        params=fetch_tree(mesh, state.params),
        tokenizer=tokenizer,
    )
    return out / "model"


def watcher(
    config: ICTConfig, model: DualEncoder, mesh: Mesh, store: BlockStore, tokenizer: WordPiece
) -> Observe:
    """Looks at zero-shot recall every so many steps, where there are questions to watch."""
    if not config.watch_questions:
        return nothing_more
    sample = sample_recall(
        store,
        tokenizer,
        load_examples(Path(config.watch_questions)),
        question_length=config.question_length,
        block_length=config.block_length,
    )

    def look(step: int, state: TrainState, log: MetricsLog) -> Metrics:
        if step % config.watch_every:
            return {}
        return watch_recall(state.params, model, mesh, sample)

    return look
