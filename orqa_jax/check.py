"""Is a run whole? Every artefact in a folder: readable, undamaged, and of what lies beside it."""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from orqa_jax.checksums import check_files
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.predictions import load_predictions
from orqa_jax.index.manifest import NAME
from orqa_jax.models.weights import fingerprint_params, load_params
from orqa_jax.qa.examples import load_examples
from orqa_jax.report.files import about_path
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import check_checkpoints

MODEL_NAME = "model.json"
_SETTINGS = ("fit.json", "plan.json", "sweep.json")
_QUESTIONS = ("train.jsonl", "held_out.jsonl")
# A key that only this kind of index has in its manifest, what it is, and how to make it again.
_INDEXES = (
    ("k1", "BM25 index", "`orqa index`"),
    ("precision", "compressed vectors", "`orqa index --search`"),
    ("metric", "ScaNN index", "`orqa index --search scann`"),
    ("articles", "TF-IDF index", "`orqa drqa-index`"),
    ("projection_size", "block vectors", "`orqa index`"),
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What became of one artefact.

    Attributes:
      path: From the folder that was checked.
      status: "ok", "bad", or "unfinished" for what an interruption left, which does no harm.
      text: What it is; of a bad one what is wrong, and the way out.
    """

    path: str
    status: Literal["ok", "bad", "unfinished"]
    text: str

    def __str__(self) -> str:
        return f"{self.status:<10} {self.path}: {self.text}"


def check_folder(folder: Path) -> Iterator[Finding]:
    """Looks at every artefact below ``folder``, damaged or not, and yields a finding for each.

    Raises:
      OrqaError: There is no such folder, or nothing in it that could be checked.
    """
    if not folder.is_dir():
        raise OrqaError(f"There is no folder {folder} to check; give that of a run.")
    found = sorted(_artefacts(folder), key=lambda each: each[0])
    if not found:
        raise OrqaError(f"{folder} holds nothing that orqa wrote; give the folder of a run.")
    belonging = _fingerprints(path for path, check in found if check in (_corpus, _model))
    sizes = sum(_size(path) for path, _ in found)
    with tqdm(
        total=sizes, desc="check", unit="B", unit_scale=True, disable=not sys.stderr.isatty()
    ) as bar:
        for path, check in found:
            name = path.relative_to(folder).as_posix()
            before = bar.n
            try:
                text = check(path, belonging, bar.update)
                yield Finding(name, "unfinished" if check is _unfinished else "ok", text)
            except OrqaError as error:
                yield Finding(name, "bad", str(error))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                yield Finding(name, "bad", f"it cannot be read ({error!r}); make it again.")
            bar.update(before + _size(path) - bar.n)


Read = Callable[[int], Any]
Check = Callable[[Path, Mapping[str, set[str]], Read], str]


def _artefacts(folder: Path) -> Iterator[tuple[Path, "Check"]]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        for name in (*folders, *files):
            if name.endswith((".partial", ".old")) or name.startswith("progress-"):
                yield here / name, _unfinished
        folders[:] = [name for name in folders if not name.endswith((".partial", ".old"))]
        if NAME in files:
            about = _read_object(here / NAME, default={})
            yield here, _corpus if "schema_version" in about else _index
        if MODEL_NAME in files:
            yield here, _model
        if "steps" in folders and "config.json" in files:
            yield here, _checkpoints
            folders.remove("steps")
        for name in files:
            if name in _SETTINGS or name.endswith("_weight.json"):
                yield here / name, _settings
            elif name in _QUESTIONS:
                yield here / name, _questions
            elif about_path(here / name).exists():
                yield here / name, _predictions


def _fingerprints(folders: Iterator[Path]) -> dict[str, set[str]]:
    """The fingerprints of the corpora and the weights that are here, from their manifests."""
    found: dict[str, set[str]] = {"corpus": set(), "weights": set()}
    for folder in folders:
        about = _read_object(folder / NAME, default={}) | _read_object(
            folder / MODEL_NAME, default={}
        )
        for kind, key in (
            ("corpus", "fingerprint"),
            ("weights", "weights_fingerprint"),
            ("weights", "block_encoder_fingerprint"),
        ):
            if isinstance(about.get(key), str):
                found[kind].add(about[key])
    return found


def _corpus(folder: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    again = "copy the folder again, or build the corpus again with `orqa corpus`"
    store = BlockStore(folder)
    entries = {entry["file"]: entry for entry in store.manifest["shards"]}
    kept = all("checksum" in entry for entry in entries.values())
    if kept:
        _check_files(folder, entries, read, again)
    if WordPiece.load(store.tokenizer_folder).fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(f"its tokenizer/ is not the one that made the wordpieces; {again}.")
    return f"corpus of {len(store):,} blocks in {len(entries)} files{_unless(kept)}."


def _index(folder: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    manifest = _read_object(folder / NAME)
    kinds = [(kind, make) for key, kind, make in _INDEXES if key in manifest]
    if not kinds:
        raise OrqaError(f"{folder / NAME} is the manifest of nothing that is known.")
    kind, make = kinds[0]
    again = f"make it again with {make}"
    if "files" in manifest:
        _check_files(folder, manifest["files"], read, again)
    _check_belonging(manifest, belonging, ("corpus", "weights"), kind, again)
    count = manifest.get("count", manifest.get("articles"))
    return f"{kind} of {count:,}{_unless('files' in manifest)}."


def _model(folder: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    about = _read_object(folder / MODEL_NAME)
    again = "copy the folder again, or train again"
    if "files" in about:
        _check_files(folder, about["files"], read, again)
    elif (
        fingerprint_params(load_params(folder / "weights.safetensors"))
        != (about["weights_fingerprint"])
    ):
        raise OrqaError(f"its weights are not those that were saved; {again}.")
    kind = f"{about['kind']} model"
    _check_belonging(about, belonging, ("corpus",), kind, again)
    made_from = {"weights_fingerprint": about.get("retriever_fingerprint")}
    _check_belonging(made_from, belonging, ("weights",), kind, again)
    return f"{kind} {about['weights_fingerprint'][:12]}."


def _checkpoints(folder: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    problems = check_checkpoints(folder)
    whole = sorted(step for step, problem in problems.items() if not problem)
    bad = [f"{step} ({problem})" for step, problem in sorted(problems.items()) if problem]
    if bad:
        left = f"that of step {whole[-1]} is whole" if whole else "none is whole"
        raise OrqaError(
            f"checkpoints are damaged: step {', '.join(bad)}; {left}. Start the training again: "
            "it goes on from the newest whole one; or delete the folder to begin anew."
        )
    return f"checkpoints of steps {', '.join(map(str, whole)) or 'none'}."


def _settings(path: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    _read_object(path)
    return "settings and choices."


def _questions(path: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    return f"{len(load_examples(path)):,} question-answer pairs."


def _predictions(path: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    about = _read_object(about_path(path))
    again = "make them again with `orqa predict`"
    _check_belonging(about, belonging, ("corpus", "weights"), "predictions", again)
    return f"predictions for {len(load_predictions(path)):,} questions."


def _unfinished(path: Path, belonging: Mapping[str, set[str]], read: Read) -> str:
    return "left by an interruption, or being written; the command that makes it goes on or anew."


def _check_files(
    folder: Path, described: Mapping[str, Mapping[str, Any]], read: Read, again: str
) -> None:
    try:
        check_files(folder, described, read)
    except OrqaError as error:
        raise OrqaError(f"{error}; {again}.") from error


def _check_belonging(
    about: Mapping[str, Any],
    belonging: Mapping[str, set[str]],
    words: tuple[str, ...],
    kind: str,
    again: str,
) -> None:
    """Nothing is said where the corpus, or the model, lies elsewhere."""
    for word in words:
        made_from, here = about.get(f"{word}_fingerprint"), belonging[word]
        if made_from and here and made_from not in here:
            raise OrqaError(
                f"{kind} of {word} {made_from[:12]}, but here is {word} "
                f"{', '.join(sorted(each[:12] for each in here))}; {again}."
            )


def _unless(kept: bool) -> str:
    return "" if kept else "; no checksums, it was made before they were kept"


def _read_object(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        problem = "it is no JSON object"
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    if default is not None:
        return default
    raise OrqaError(f"{path} cannot be read ({problem}); copy or make the folder again.")


def _size(path: Path) -> int:
    """Bytes of a file, or of what lies in a folder but not below that."""
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.iterdir() if each.is_file())
