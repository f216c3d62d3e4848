"""Pre-training of the retriever by the Inverse Cloze Task (Lee et al. 2019, section 5).

A sentence of a block is the pseudo-question; the block it came from is the one to find among the
blocks of the batch. In nine of ten examples the sentence is taken out of its block, so that the
retriever must learn more than matching words; in one it stays, so that it learns that too.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.losses import in_batch_softmax_loss
from orqa_jax.models.bert import with_dropout
from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import inputs
from orqa_jax.train.checkpoint import Checkpoints, is_finished, save_model
from orqa_jax.train.config import check_at_least
from orqa_jax.train.mesh import check_batch_size, make_mesh, place_batch, tree_shardings
from orqa_jax.train.metrics import Metrics, MetricsLog, mean_of
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
from orqa_jax.train.stop import stop_request
from orqa_jax.train.watch import StepCosts, profiled
from orqa_jax.train.watch_recall import sample_recall, watch_recall

MODEL_KIND = "dual encoder"


@dataclasses.dataclass(frozen=True)
class ICTConfig:
    """Settings of Inverse Cloze Task pre-training; the defaults suit two CPU cores.

    Attributes:
      corpus: Folder of the block store.
      encoder: Folder of the pre-trained BERT that both towers start from.
      out: Folder for checkpoints, metrics and the finished model.
      steps: Number of updates; 0 leaves the encoder as it was, under an untrained projection.
      batch_size: Pseudo-questions of one update; each has the blocks of all others as negatives.
      exclude_duplicates: Another copy of the right block is no negative. In the 2019 release it is.
      learning_rate: Peak, after a linear rise over ``warmup_steps``; falls linearly to 0.
      projection_learning_rate_factor: How much faster the new projection learns than the BERT.
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
      dtype: "float32", or "bfloat16" for accelerators.
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
    steps: int = 1000
    batch_size: int = 32
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
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    checkpoint_every: int = 100
    checkpoints: str = ""
    log_every: int = 10
    watch_questions: str = ""
    watch_every: int = 100
    profile: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.learning_rate <= 1.0:
            raise OrqaError(
                f"learning_rate is {self.learning_rate}; it has to be above 0 and at most 1."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise OrqaError(f"dropout is {self.dropout}; it has to be from 0 to below 1.")
        check_at_least(self, steps=0, batch_size=1, checkpoint_every=1, log_every=1, watch_every=1)
        check_at_least(self, question_length=3, block_length=16, projection_size=1, frozen_layers=0)
        if not 0.0 <= self.mask_rate <= 1.0:
            raise OrqaError(f"mask_rate is {self.mask_rate}; it has to be between 0 and 1.")


# --- Data: a pure function of (seed, position) ---------------------------------------------------


class ICTExamples:
    """All pseudo-questions, by position; epochs follow one another without end.

    An epoch visits every block once in random order, except that a block of one sentence can only
    be used with the sentence kept, so just a share ``1 - mask_rate`` of those blocks takes part.
    Example ``position`` is always the same, whoever asks for it and in whatever order.
    """

    def __init__(self, store: BlockStore, *, seed: int, mask_rate: float) -> None:
        self._store, self._seed, self._mask_rate = store, seed, mask_rate
        single_N = np.concatenate([np.diff(shard.sentence_offsets) == 1 for shard in store.shards])
        self._multiple, self._single = np.flatnonzero(~single_N), np.flatnonzero(single_N)
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
        return {
            "block": np.int32(block),
            "position": np.int32(position),
            "masked": np.bool_(masked),
            "question": tokens[start:end],
            "context": context,
        }


def collate(
    examples: list[dict[str, Any]], store: BlockStore, tokenizer: WordPiece, config: ICTConfig
) -> dict[str, Any]:
    """Pads examples into one batch of encoder inputs."""
    blocks = np.array([example["block"] for example in examples])
    question = [example["question"] for example in examples]
    context = inputs.ragged([example["context"] for example in examples])
    positions = np.array([example["position"] for example in examples])
    return {
        "block_id": blocks if config.exclude_duplicates else positions,
        "masked": np.array([example["masked"] for example in examples]),
        "question": inputs.question_inputs(tokenizer, question, config.question_length),
        "block": inputs.pair_inputs(tokenizer, store.titles(blocks), context, config.block_length),
    }


def batches(
    store: BlockStore, tokenizer: WordPiece, config: ICTConfig, first_step: int
) -> Iterator[dict[str, Any]]:
    """Yields this process's rows of the batch of each step from ``first_step`` on."""
    examples = ICTExamples(store, seed=config.seed, mask_rate=config.mask_rate)
    processes, process = jax.process_count(), jax.process_index()
    local_size = config.batch_size // processes

    def batch(step: int) -> dict[str, Any]:
        first = step * config.batch_size + process * local_size
        rows = [examples[position] for position in range(first, first + local_size)]
        return collate(rows, store, tokenizer, config)

    steps = grain.MapDataset.range(first_step, config.steps).map(batch)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))


# --- One step ------------------------------------------------------------------------------------


def ict_loss(
    params: Params, model: DualEncoder, batch: dict[str, Any], key: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Mean in-batch softmax loss of a batch (section 5) and its metrics.

    Another copy of the right block is no negative: it is taken out of the softmax.
    """
    question_key, block_key = jax.random.split(key)
    variables = {"params": params}
    question_BP: Any = model.apply(
        variables,
        *(batch["question"][name] for name in ("token_ids", "mask")),
        deterministic=False,
        rngs={"dropout": question_key},
        method="encode_questions",
    )
    block_BP: Any = model.apply(
        variables,
        *(batch["block"][name] for name in ("token_ids", "mask", "segment_ids")),
        deterministic=False,
        rngs={"dropout": block_key},
        method="encode_blocks",
    )
    block_id_B = batch["block_id"]
    target_B = jnp.arange(len(block_id_B))
    allowed_BB = (block_id_B[:, None] != block_id_B) | (target_B[:, None] == target_B)
    loss_B, correct_B = in_batch_softmax_loss(question_BP, block_BP, target_B, allowed_BB)
    metrics = {
        "loss": mean_of(loss_B),
        "accuracy": mean_of(correct_B),
        "accuracy_masked": mean_of(correct_B, batch["masked"]),
        "accuracy_unmasked": mean_of(correct_B, ~batch["masked"]),
    }
    return jnp.mean(loss_B), metrics


def train_step(
    state: TrainState,
    batch: dict[str, Any],
    key: jax.Array,
    *,
    model: DualEncoder,
    optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Metrics]:
    """One update. The dropout of a step depends on ``key`` and the number of the step alone."""
    gradients, metrics = jax.grad(ict_loss, has_aux=True)(
        state.params, model, batch, jax.random.fold_in(key, state.step)
    )
    return apply_gradients(state, gradients, optimizer), metrics


# --- The whole run -------------------------------------------------------------------------------


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
    }
    if is_finished(out / "model", kind=MODEL_KIND, config=described):
        return out / "model"
    tokenizer = WordPiece.load(Path(config.encoder))
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {config.corpus} was built with another tokenizer than the encoder "
            f"{config.encoder} has; build the corpus again with --encoder {config.encoder}."
        )
    mesh = make_mesh()
    check_batch_size(mesh, config.batch_size)
    retriever_config = RetrieverConfig(
        bert=with_dropout(bert_config, config.dropout),
        projection_size=config.projection_size,
        pooling=config.pooling,
        shared_towers=config.shared_towers,
        layer_norm=config.projection_layer_norm,
        projection_dropout=config.projection_dropout,
        projection_init=config.projection_init,
    )
    model = DualEncoder(retriever_config, jnp.dtype(config.dtype), config.frozen_layers)
    params_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    optimizer = make_optimizer(
        SCHEDULES[config.optimizer](config.learning_rate, config.warmup_steps, config.steps),
        name=config.optimizer,
        weight_decay=config.weight_decay,
        frozen=frozen_layer_patterns("[a-z_]*encoder", config.frozen_layers),
        # Not those of the same name inside BERT.
        faster=["[a-z_]*encoder/(projection|norm)/.*"],
        faster_factor=config.projection_learning_rate_factor,
    )
    params = init_dual_encoder(retriever_config, params_key, bert_params)
    state = initial_state(params, optimizer)
    state = jax.device_put(state, tree_shardings(mesh, state))
    checkpoints = Checkpoints(config.checkpoints or out / "checkpoints", config=described)
    state = checkpoints.restore(state)
    step_function = jax.jit(
        functools.partial(train_step, model=model, optimizer=optimizer), donate_argnums=0
    )
    first_step = int(state.step)
    log = MetricsLog(
        out / "metrics.jsonl",
        name="ict",
        first_step=first_step,
        total=config.steps,
        every=config.log_every,
        batch_size=config.batch_size,
    )
    costs = StepCosts("ict", mesh, config.batch_size, step_function.trace)
    if config.watch_questions:
        sample = sample_recall(
            store,
            tokenizer,
            load_examples(Path(config.watch_questions)),
            question_length=config.question_length,
            block_length=config.block_length,
        )
    order = profiled(batches(store, tokenizer, config, first_step), config.profile)
    with stop_request() as stop:
        for step, batch in enumerate(order, first_step + 1):
            placed = place_batch(mesh, batch)
            log.spend("flops_share", costs.seconds_at_peak(state, placed, dropout_key))
            state, metrics = step_function(state, placed, dropout_key)
            if config.watch_questions and step % config.watch_every == 0:
                metrics |= watch_recall(state.params, model, mesh, sample)
            log.add(step, metrics)
            stopping = stop.reached(step)
            if step % config.checkpoint_every == 0 or step == config.steps or stopping:
                checkpoints.save(step, state)
            if stopping:
                break
        log.close()
        checkpoints.close()
        stop.leave()
    save_model(
        out / "model",
        kind=MODEL_KIND,
        description={
            "retriever": dataclasses.asdict(retriever_config),
            "question_length": config.question_length,
            "block_length": config.block_length,
            "config": described,
        },
        params=state.params,
        tokenizer=tokenizer,
    )
    return out / "model"
