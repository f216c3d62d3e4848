"""Checkpoints of a running training (Orbax), and folders of finished models (safetensors).

A model folder stands on its own: ``model.json`` says what it is and what it was made from,
``weights.safetensors`` holds its parameters, ``tokenizer/`` its vocabulary.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp
from etils import epath

from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import write_json
from orqa_jax.models.weights import fingerprint_params, load_params, save_params
from orqa_jax.storage import is_url
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.state import Params, TrainState

MODEL_SCHEMA = 1

logger = logging.getLogger(__name__)


class Checkpoints:
    """The newest states of one training run, in ``folder``, with the configuration they belong to.

    A run that is started again with another configuration is refused rather than continued, once
    there is a checkpoint to continue from.
    """

    def __init__(self, folder: str | Path, *, config: dict[str, Any], keep: int = 2) -> None:
        # A URL such as gs://bucket/folder is one to Orbax too, and has no folders to make.
        remote = is_url(str(folder))
        place: Any = epath.Path(folder) if remote else Path(folder).resolve()
        place.mkdir(parents=True, exist_ok=True)
        policies = ocp.training.preservation_policies
        self._checkpointer = ocp.training.Checkpointer(
            place / "steps",
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.LatestN(keep),
            cleanup_tmp_directories=True,
        )
        described = place / "config.json"
        if described.exists() and self._checkpointer.latest is not None:
            before = json.loads(described.read_text(encoding="utf-8"))
            refuse_changed_config(place, before, config)
        if remote:
            described.write_text(json.dumps(config))
        else:
            write_json(described, config)

    def restore(self, state: TrainState) -> TrainState:
        """Returns the newest saved state with the shardings of ``state``, or ``state`` itself."""
        latest = self._checkpointer.latest
        if latest is None:
            return state
        logger.info("Continuing from the checkpoint of step %d.", latest.step)
        return self._checkpointer.load(latest, jax.tree.map(ocp_abstract, state))

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving ``state``; the copy off the devices is done when this returns."""
        self._checkpointer.save_async(step, state)

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._checkpointer.close()


def ocp_abstract(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


# Where things lie may change between two starts; what they are is told by their fingerprints.
_PLACES = {"corpus", "encoder", "retriever", "index", "bm25", "train", "out", "checkpoints"}
# How a run is watched changes nothing about what it makes.
_WATCHING = {"profile", "watch_questions", "watch_every"}


def refuse_changed_config(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ``OrqaError`` naming each setting that differs from those ``folder`` was made with.

    Paths do not count, so a run folder can be moved; the settings hold the fingerprints of what
    the paths lead to.
    """
    now = json.loads(json.dumps(now))
    keys = (before.keys() | now.keys()) - _PLACES - _WATCHING
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
    """Writes a model folder; nothing that looks like one is there before it is complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    params = jax.device_get(params)
    save_params(partial / "weights.safetensors", params)
    tokenizer.save(partial / "tokenizer")
    about = {"schema": MODEL_SCHEMA, "kind": kind, "tokenizer_fingerprint": tokenizer.fingerprint}
    about["weights_fingerprint"] = fingerprint_params(params)
    write_json(partial / "model.json", about | description)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


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
    except (ValueError, KeyError, TypeError) as error:
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
