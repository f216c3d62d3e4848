"""Checkpoints of a running training (Orbax), and folders of finished models (safetensors).

A model folder stands on its own: ``model.json`` says what it is and what it was made from,
``weights.safetensors`` holds its parameters, ``tokenizer/`` its vocabulary.
"""

import contextlib
import gc
import json
import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from etils import epath
from jax.experimental import multihost_utils

from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import write_json, write_manifest
from orqa_jax.models.weights import fingerprint_params, load_params, save_params
from orqa_jax.storage import is_url, replace_folder
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.state import Params, TrainState

MODEL_SCHEMA = 1

logger = logging.getLogger(__name__)


class Checkpoints:
    """Newest and best states of one training run, in ``folder``, with the configuration of them.

    A run that is started again with another configuration is refused rather than continued, once
    there is a checkpoint to continue from. On other devices, or more or fewer processes, it
    continues.
    """

    def __init__(self, folder: str | Path, *, config: dict[str, Any], keep: int = 2) -> None:
        # A URL such as gs://bucket/folder is one to Orbax too, and has no folders to make.
        remote = is_url(str(folder))
        self.folder: Any = epath.Path(folder) if remote else Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        policies = ocp.training.preservation_policies
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics["loss"],
            n=1,
            reverse=True,
            keep_checkpoints_without_metrics=False,
        )
        self._checkpointer = ocp.training.Checkpointer(
            self.folder / "steps",
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            cleanup_tmp_directories=True,
        )
        self._losses: list[tuple[jax.Array, jax.Array]] = []
        described = self.folder / "config.json"
        if described.exists() and self._checkpointer.latest is not None:
            before = json.loads(described.read_text(encoding="utf-8"))
            refuse_changed_config(self.folder, before, config)
        if jax.process_index() == 0 and remote:
            described.write_text(json.dumps(config))
        elif jax.process_index() == 0:
            write_json(described, config)

    def restore(self, state: TrainState) -> TrainState:
        """Returns the newest saved state with the shardings of ``state``, or ``state`` itself.

        A checkpoint that cannot be read, or that holds other numbers than were saved, is told of
        and removed, and the one before is taken.

        Raises:
          OrqaError: All checkpoints are damaged.
        """
        found = sorted(self._checkpointer.checkpoints, key=lambda each: each.step, reverse=True)
        shapes = jax.tree.map(_abstract, {"state": state, "bits": sum_bits(state)})
        for checkpoint in found:
            saved, problem = _load_whole(self._checkpointer, checkpoint, shapes)
            if not problem:
                logger.info("Continuing from the checkpoint of step %d.", checkpoint.step)
                return saved["state"]
            logger.warning(
                "The checkpoint of step %d is damaged (%s); trying the one before.",
                *(checkpoint.step, problem),
            )
            if checkpoint is not found[-1]:
                self._checkpointer.delete(checkpoint)
        if found:
            raise OrqaError(
                f"All checkpoints in {self.folder} are damaged; delete that folder to begin again."
            )
        return state

    def add_loss(self, loss: tuple[jax.Array, jax.Array]) -> None:
        """Takes the loss of a step, as (sum, count), for the choice of the best checkpoint."""
        self._losses.append(loss)

    def save(self, step: int, state: TrainState) -> bool:
        """Starts saving ``state``; the copy off the devices is done when this returns.

        The best checkpoint is that of the lowest mean loss over the steps since the one before.

        Returns:
          False where the state or a loss is NaN or infinite: then nothing is saved.
        """
        pairs = np.array(jax.device_get(self._losses), np.float64).reshape(-1, 2)
        self._losses = []
        if not (np.isfinite(pairs).all() and _is_finite(state)):
            return False
        loss = pairs[:, 0].sum() / max(pairs[:, 1].sum(), 1.0)
        metrics = {"loss": float(loss)} if len(pairs) else None
        saved = {"state": state, "bits": sum_bits(state)}
        self._checkpointer.save_async(step, saved, metrics=metrics)
        return True

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint."""
        newest = self._checkpointer.latest
        return None if newest is None else int(newest.step)

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._checkpointer.close()


def check_checkpoints(folder: Path) -> dict[int, str]:
    """What is wrong with each checkpoint of a run, by its step; "" where nothing is.

    They are read as they lie, on one device, whatever devices and code wrote them.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    problems = {}
    # Orbax logs as an error, as what it is not, that other devices wrote them.
    logging.disable(logging.ERROR)
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        checkpointer = ocp.training.Checkpointer(folder.resolve() / "steps")
        stack.callback(checkpointer.close)
        for checkpoint in checkpointer.checkpoints:
            path = folder.resolve() / "steps" / str(checkpoint.step)
            try:
                shapes = jax.tree.map(
                    lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=here),
                    ocp.checkpointables_metadata(path).metadata["state"],
                )
            except Exception as error:  # whatever the damage does to Orbax
                problems[checkpoint.step] = _root_cause(error)
                continue
            problems[checkpoint.step] = _load_whole(checkpointer, checkpoint, shapes)[1]
    return problems


def _load_whole(checkpointer: Any, checkpoint: Any, shapes: Any) -> tuple[Any, str]:
    """What a checkpoint holds, and what is wrong with it; "" where nothing is."""
    with warnings.catch_warnings():
        # A load that fails leaves coroutines of Orbax behind, which complain once collected.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            saved = checkpointer.load(checkpoint, shapes)
            # Without the classes of a state, its arrays come in another order.
            if np.array_equal(np.sort(sum_bits(saved["state"])), np.sort(saved["bits"])):
                return saved, ""
            problem = "it does not hold the numbers that were saved"
        except Exception as error:
            problem = _root_cause(error)
        gc.collect()
    return None, problem


@jax.jit
def sum_bits(tree: Any) -> jax.Array:
    """The sum of the bits of each array of ``tree`` as integers, uint32 [arrays], modulo 2**32.

    It tells damage on the disk, on whatever devices and in whatever order it is summed.
    """
    words = [jax.lax.bitcast_convert_type(array, jnp.uint32) for array in jax.tree.leaves(tree)]
    return jnp.stack([jnp.sum(word, dtype=jnp.uint32) for word in words])


@jax.jit
def _is_finite(tree: Any) -> jax.Array:
    """Whether no number of ``tree`` is NaN or infinite."""
    numbers = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in numbers]))


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _abstract(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


# Where things lie may change between two starts; what they are is told by their fingerprints.
_PLACES = {
    *("corpus", "encoder", "retriever", "index", "bm25", "train", "out", "checkpoints"),
    *("start_from", "vectors", "reader", "pairs"),
}
# How a run is watched changes nothing about what it makes, how the work is divided nothing but the
# last bits.
_WATCHING = {"profile", "watch_questions", "watch_every"}
_DIVISION = {"chunk_size", "chunk_lengths", "parameter_shards", "workers"}


def refuse_changed_config(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ``OrqaError`` naming each setting that differs from those ``folder`` was made with.

    Paths do not count, so a run folder can be moved; the settings hold the fingerprints of what
    the paths lead to.
    """
    now = json.loads(json.dumps(now))
    keys = (before.keys() | now.keys()) - _PLACES - _WATCHING - _DIVISION
    changed = sorted(key for key in keys if before.get(key) != now.get(key))
    if changed:
        listed = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)}" for key in changed)
        raise OrqaError(
            f"{folder} was made with other settings ({listed}); "
            "restore them, choose another output folder, or delete this one."
        )


def save_model(
    folder: Path, *, kind: str, description: dict[str, Any], params: Params, tokenizer: WordPiece
) -> None:
    """Writes a model folder; nothing that looks like one is there before it is complete.

    Of several processes the first one writes, and all return when it has.

    Raises:
      OrqaError: A parameter is NaN or infinite.
    """
    params = jax.device_get(params)
    if not all(np.isfinite(array).all() for array in jax.tree.leaves(params)):
        raise OrqaError(
            f"Parameters for {folder} are NaN or infinite, so what is there stays; train again "
            "with a lower learning_rate, in another output folder."
        )
    if jax.process_index() == 0:
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_params(partial / "weights.safetensors", params)
        tokenizer.save(partial / "tokenizer")
        about = {"schema": MODEL_SCHEMA, "kind": kind}
        about["tokenizer_fingerprint"] = tokenizer.fingerprint
        about["weights_fingerprint"] = fingerprint_params(params)
        write_manifest(partial, about | description, name="model.json")
        replace_folder(partial, folder)
    multihost_utils.sync_global_devices(f"{folder} is written")


def describe_model(folder: Path, *, kind: str) -> dict[str, Any]:
    """Reads ``model.json``.

    Raises:
      OrqaError: There is no model of this kind in the folder.
    """
    path = folder / "model.json"
    if not path.exists():
        raise OrqaError(f"{folder} holds no trained model (no model.json); train one first.")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        schema, found = about["schema"], about["kind"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OrqaError(f"{path} is not a model description; train the model again.") from error
    if schema != MODEL_SCHEMA or found != kind:
        raise OrqaError(
            f"{path} describes a {found} of schema {schema}, but a {kind} of schema "
            f"{MODEL_SCHEMA} is needed here; point to another folder or train again."
        )
    return about


def is_finished(folder: Path, *, kind: str, config: dict[str, Any]) -> bool:
    """Whether the folder holds the model that this configuration makes.

    Raises:
      OrqaError: It holds a model made by another configuration.
    """
    if not (folder / "model.json").exists():
        return False
    refuse_changed_config(folder, describe_model(folder, kind=kind)["config"], config)
    return True


def load_model(folder: Path, *, kind: str) -> tuple[dict[str, Any], Params, WordPiece]:
    """Returns description, parameters and tokenizer of a model folder.

    Raises:
      OrqaError: The folder is incomplete, of another kind, or damaged.
    """
    about = describe_model(folder, kind=kind)
    tokenizer = WordPiece.load(folder / "tokenizer")
    params = load_params(folder / "weights.safetensors")
    for name, made, found in (
        ("tokenizer", about.get("tokenizer_fingerprint", "none"), tokenizer.fingerprint),
        ("weights", about.get("weights_fingerprint", "none"), fingerprint_params(params)),
    ):
        if made != found:
            raise OrqaError(
                f"The {name} in {folder} have fingerprint {found[:12]}, but model.json says "
                f"{made[:12]}: the folder was changed or damaged; train the model again."
            )
    return about, params, tokenizer
