"""Training of DrQA's document reader (Chen et al. 2017, section 3.2 and 5.2), start to end."""

import dataclasses
import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from orqa_jax.baselines.drqa.encode import (
    PARAGRAPH_LENGTH,
    Encoded,
    Encoder,
    frequent_question_words,
    token_span,
)
from orqa_jax.baselines.drqa.examples import ReadingExample, load_reading
from orqa_jax.baselines.drqa.reader import DrqaReader, DrqaReaderConfig, span_loss
from orqa_jax.baselines.drqa.tokens import load_tagger, tokenize
from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import write_manifest
from orqa_jax.models.weights import fingerprint_params, load_params, save_params
from orqa_jax.storage import replace_folder
from orqa_jax.text.word_vectors import WordVectors, load_word_vectors
from orqa_jax.train.checkpoint import MODEL_SCHEMA, describe_model, is_finished
from orqa_jax.train.config import check_at_least, check_ranges
from orqa_jax.train.exclusive import alone_in_out
from orqa_jax.train.loop import run_steps
from orqa_jax.train.mesh import make_mesh
from orqa_jax.train.metrics import Metrics, mean_of
from orqa_jax.train.state import Params, TrainState, apply_gradients, initial_state

MODEL_KIND = "DrQA reader"
_GRADIENT_NORM = 10.0

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DrqaTrainConfig:
    """Settings of the reader's training.

    Attributes:
      train: SQuAD file, or JSONL of `orqa drqa-supervise`; several, with commas between them,
        are learned together.
      out: Folder for checkpoints, metrics and the finished reader.
      start_from: Folder of a finished reader to fine-tune, whose sizes, tuned words and features
        are kept whatever is said of them here; "" for a new one.
      vectors: File of word vectors in GloVe's text format; "" for the installed package.
      tagger: Installed spaCy pipeline for tags; "" for none, as over the whole of Wikipedia.
      epochs: Times each example is seen.
      batch_size: Examples of one update (32 in the paper).
      learning_rate: Of Adamax.
      dropout: Rate (0.3).
      hidden_size: Of one direction of one LSTM layer (128).
      layers: Of each LSTM (3).
      tuned_words: Frequent question words whose vectors are trained (1000).
      exact_match: False leaves out the exact match features (an ablation of table 5).
      aligned_embedding: False leaves out the aligned question embedding (another).
      seed: Of the data order, the dropout and the new parameters.
      checkpoint_every: Steps between two checkpoints.
      log_every: Steps between two lines of metrics.
    """

    train: str
    out: str
    start_from: str = ""
    vectors: str = ""
    tagger: str = ""
    epochs: int = 6
    batch_size: int = 32
    learning_rate: float = 2e-3
    dropout: float = 0.3
    hidden_size: int = 128
    layers: int = 3
    tuned_words: int = 1000
    exact_match: bool = True
    aligned_embedding: bool = True
    seed: int = 0
    checkpoint_every: int = 500
    log_every: int = 50

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_least(self, epochs=1, batch_size=1, hidden_size=1, layers=1, tuned_words=0)
        check_at_least(self, checkpoint_every=1, log_every=1)


# --- Data: a pure function of (seed, step) --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Targets:
    """Encoded examples with the first and last token of their answers, int32 [examples]."""

    encoded: list[Encoded]
    starts: np.ndarray
    ends: np.ndarray


def encode_examples(encoder: Encoder, examples: Sequence[ReadingExample]) -> Targets:
    """Encodes what can be learned from; says how many answers are no whole tokens.

    Raises:
      OrqaError: None is left.
    """
    encoded, spans = [], []
    for example in examples:
        tokens = tokenize(example.paragraph)
        found = (token_span(tokens, *span, PARAGRAPH_LENGTH) for span in example.spans)
        span = next((span for span in found if span is not None), None)
        if span is not None and tokenize(example.question).words:
            encoded.append(encoder.encode(example.question, example.paragraph))
            spans.append(span)
    dropped = len(examples) - len(encoded)
    logger.info("%d examples, %d without an answer in whole tokens", len(encoded), dropped)
    if not encoded:
        raise OrqaError("No training example has an answer in its paragraph; check the file.")
    starts, ends = np.array(spans, np.int32).T
    return Targets(encoded, starts, ends)


def epoch_batches(lengths: np.ndarray, config: DrqaTrainConfig, epoch: int) -> list[np.ndarray]:
    """The rows of each batch: like lengths together, the batches in random order.

    A last batch that is not full takes rows of the one before, so that shapes are few.
    """
    rng = np.random.default_rng((config.seed, epoch))
    shuffled = rng.permutation(len(lengths))
    order = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    count = -(-len(order) // config.batch_size)
    rows = np.resize(order, count * config.batch_size).reshape(count, config.batch_size)
    if len(order) % config.batch_size and count > 1:
        rows[-1] = order[-config.batch_size :]
    return list(rows[rng.permutation(count)])


def batches(
    targets: Targets, encoder: Encoder, config: DrqaTrainConfig, first_step: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the batch of each step from `first_step` on, until the last epoch is over."""
    lengths = np.array([len(encoded.words) for encoded in targets.encoded])
    per_epoch = -(-len(lengths) // config.batch_size)
    for step in range(first_step, config.epochs * per_epoch):
        epoch, place = divmod(step, per_epoch)
        if place == 0 or step == first_step:
            order = epoch_batches(lengths, config, epoch)
        rows = order[place]
        batch = encoder.batch([targets.encoded[row] for row in rows])
        yield batch | {"start": targets.starts[rows], "end": targets.ends[rows]}


# --- One step -------------------------------------------------------------------------------------


def train_step(
    state: TrainState,
    batch: dict[str, jax.Array],
    key: jax.Array,
    *,
    model: DrqaReader,
    optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Metrics]:
    """One update on the cross entropy of start and end."""

    def loss(params: Params) -> tuple[jax.Array, Metrics]:
        dropout = {"dropout": jax.random.fold_in(key, state.step)}
        logits: Any = model.apply({"params": params}, batch, deterministic=False, rngs=dropout)
        start_BL, end_BL = logits
        loss_B = span_loss(start_BL, end_BL, batch["start"], batch["end"])
        right_B = jnp.argmax(start_BL, axis=1) == batch["start"]
        right_B &= jnp.argmax(end_BL, axis=1) == batch["end"]
        return jnp.mean(loss_B), {"loss": mean_of(loss_B), "exact_span": mean_of(right_B)}

    gradients, metrics = jax.grad(loss, has_aux=True)(state.params)
    return apply_gradients(state, gradients, optimizer), metrics


# --- The whole run --------------------------------------------------------------------------------


@alone_in_out
def train_reader(config: DrqaTrainConfig) -> Path:
    """Trains a reader, or continues an interrupted training; returns the folder of the reader.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    out = Path(config.out)
    files = [Path(name) for name in config.train.split(",")]
    examples = [example for file in files for example in load_reading(file)]
    vectors = load_word_vectors(config.vectors)
    described = dataclasses.asdict(config) | {
        "train_fingerprint": hashlib.sha256(repr(examples).encode()).hexdigest(),
        "vectors_fingerprint": fingerprint_vectors(vectors),
    }
    start: ReaderFolder | None = None
    if config.start_from:
        start = load_reader(Path(config.start_from), vectors)
        described["start_fingerprint"] = fingerprint_params(start.params)
        # The features are those that it was trained with.
        about = describe_model(Path(config.start_from), kind=MODEL_KIND)
        described["tagger"] = about["config"]["tagger"]
    if is_finished(out / "model", kind=MODEL_KIND, config=described):
        return out / "model"
    if start:
        encoder, shape = start.encoder, start.config
    else:
        tuned = frequent_question_words(
            (example.question for example in examples), vectors, config.tuned_words
        )
        tagger = load_tagger(config.tagger) if config.tagger else None
        encoder = Encoder(vectors, tuned, config.exact_match, tagger)
        shape = DrqaReaderConfig(
            vector_size=vectors.matrix_VD.shape[1],
            features=encoder.features,
            tuned_words=len(tuned),
            hidden_size=config.hidden_size,
            layers=config.layers,
            aligned_embedding=config.aligned_embedding,
        )
    shape = dataclasses.replace(shape, dropout=config.dropout)
    targets = encode_examples(encoder, examples)
    model = DrqaReader(shape)
    init_key = jax.random.key(config.seed)
    # There are many bits to draw in a step, and this generator is the fastest.
    dropout_key = jax.random.key(config.seed, impl="rbg")
    params = start.params if start else initial_params(model, encoder, targets.encoded[0], init_key)
    optimizer = optax.chain(
        optax.clip_by_global_norm(_GRADIENT_NORM), optax.adamax(config.learning_rate)
    )
    state = initial_state(jax.tree.map(jnp.asarray, params), optimizer)
    steps = config.epochs * -(-len(targets.encoded) // config.batch_size)
    step_function = jax.jit(
        functools.partial(train_step, model=model, optimizer=optimizer), donate_argnums=0
    )
    state = run_steps(
        "drqa",
        state,
        step_function,
        functools.partial(batches, targets, encoder, config),
        dropout_key,
        mesh=make_mesh(jax.devices()[:1]),
        out=out,
        described=described,
        total=steps,
        batch_size=config.batch_size,
        checkpoint_every=config.checkpoint_every,
        log_every=config.log_every,
    )
    save_reader(out / "model", shape, encoder, state.params, described)
    return out / "model"


def initial_params(model: DrqaReader, encoder: Encoder, example: Encoded, key: jax.Array) -> Params:
    """Fresh parameters; the trained word vectors start as they are in the file."""
    params: Params = dict(jax.jit(model.init)(key, encoder.batch([example]))["params"])
    words = sorted(encoder.tuned, key=encoder.tuned.__getitem__)
    params["tuned_vectors"] = params["tuned_vectors"].at[1:].set(encoder.vectors.lookup(words))
    return params


# --- Finished readers -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReaderFolder:
    """A finished reader as it was read from its folder."""

    config: DrqaReaderConfig
    encoder: Encoder
    params: Params


def save_reader(
    folder: Path,
    config: DrqaReaderConfig,
    encoder: Encoder,
    params: Params,
    described: dict[str, Any],
) -> None:
    """Writes a reader's folder; nothing that looks like one is there before it is complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    params = jax.device_get(params)
    save_params(partial / "weights.safetensors", params)
    (partial / "tuned_words.json").write_text(json.dumps(encoder.tuned), encoding="utf-8")
    about = {
        "schema": MODEL_SCHEMA,
        "kind": MODEL_KIND,
        "weights_fingerprint": fingerprint_params(params),
        "reader": dataclasses.asdict(config),
        "exact_match": encoder.exact_match,
        "config": described,
    }
    write_manifest(partial, about, name="model.json")
    replace_folder(partial, folder)


def load_reader(folder: Path, vectors: WordVectors) -> ReaderFolder:
    """The finished reader in `folder`, for the word vectors it was trained with.

    Raises:
      OrqaError: None is there, or it was trained with other vectors.
    """
    about = describe_model(folder, kind=MODEL_KIND)
    trained, given = about["config"]["vectors_fingerprint"], fingerprint_vectors(vectors)
    if trained != given:
        raise OrqaError(
            f"{folder} was trained with word vectors {trained[:16]}, but these are {given[:16]}; "
            "give the file it was trained with."
        )
    name = about["config"]["tagger"]
    tuned = json.loads((folder / "tuned_words.json").read_text(encoding="utf-8"))
    encoder = Encoder(vectors, tuned, about["exact_match"], load_tagger(name) if name else None)
    params = load_params(folder / "weights.safetensors")
    if fingerprint_params(params) != about["weights_fingerprint"]:
        raise OrqaError(
            f"The weights in {folder} are not those that model.json tells of: the folder was "
            "changed or damaged; train the reader again."
        )
    return ReaderFolder(DrqaReaderConfig(**about["reader"]), encoder, params)


def reader_vectors(folder: Path) -> WordVectors:
    """The word vectors that a finished reader says it was trained with."""
    return load_word_vectors(describe_model(folder, kind=MODEL_KIND)["config"]["vectors"])


def fingerprint_vectors(vectors: WordVectors) -> str:
    """sha256 over words and numbers."""
    digest = hashlib.sha256("\n".join(vectors.rows).encode())
    digest.update(np.ascontiguousarray(vectors.matrix_VD).data)
    return digest.hexdigest()
