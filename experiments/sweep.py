"""Runs one setting against others, one table and one plot at the end.

    python -m experiments.sweep --config=experiments/configs/sweep_ict.py --config.out=runs/sweep

Each variant becomes an ordinary run folder, ``OUT/runs/NAME``, on which every `orqa` command works.
What two variants have in common is made once: a retriever is known by its settings, the corpus and
the encoder that it starts from, block embeddings by the retriever's weights, a reader by all of
these. So a sweep that was stopped goes on where it was, and a new variant costs only what is new.
Retrieval by BM25 alone stands in the last row, for all to be held against.
"""

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command_line import run_experiment
from orqa_jax.baselines.dense import UntrainedConfig, save_untrained
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import bootstrap_interval, paired_bootstrap
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.index.exact import ExactIndex
from orqa_jax.index.manifest import write_json
from orqa_jax.index.protocol import Index
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.predict import Answer, DenseRetriever, load_answerer, predict_file
from orqa_jax.qa.examples import load_examples
from orqa_jax.report.files import evaluate_file, read_about
from orqa_jax.report.page import SWEEP_NAME, write_report
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import describe_model, load_model
from orqa_jax.train.config import make_config
from orqa_jax.train.encode import EncodeConfig, encode_corpus
from orqa_jax.train.finetune import FinetuneConfig, finetune, fingerprint_examples
from orqa_jax.train.mesh import accelerator_mesh
from orqa_jax.train.metrics import read_metrics

logger = logging.getLogger("orqa_jax.sweep")

BASELINE = "baseline"
BM25 = "BM25"
RETRIEVED = 100
# What is reported of retrieval alone, and of the fine-tuned whole.
_ZERO_SHOT_METRICS = ("recall@1", "recall@5", "recall@20", "recall@100")
_FINE_TUNED_METRICS = ("exact_match", "f1", "recall@5", "recall@20")
_PLACES = {"corpus", "encoder", "retriever", "index", "train", "out"}


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """What a sweep compares.

    Attributes:
      name: Title of the table.
      corpus: Folder of the block store that all variants share.
      encoder: Folder of the BERT that all variants start from.
      test: JSONL file of question-answer pairs that the table is about.
      out: Folder of the sweep.
      ict: Settings of ``ICTConfig`` in the baseline; ``steps = 0`` is no ICT at all.
      finetune: Settings of ``FinetuneConfig`` in the baseline; empty to stop at zero-shot
        retrieval.
      variants: List of ``{"name": ..., "ict": {...}, "finetune": {...}, "train": ...}``: what each
        changes. ``"untrained": KIND`` in the place of ``ict`` is a retriever without pre-training,
        see ``UntrainedConfig``. With ``evidence`` in ``finetune`` the beam is that of BM25, or of
        both.
      seeds: Each variant is trained with each; the table has the means of every question over them.
      train: JSONL file of question-answer pairs to fine-tune on.
    """

    name: str
    corpus: str
    encoder: str
    test: str
    out: str
    ict: dict
    finetune: dict
    variants: list
    seeds: list
    train: str = ""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the table: its name and the settings of its two trainings, without places.

    Attributes:
      name: Of the row.
      ict: Settings of ICT; of ``UntrainedConfig``, if they have a ``kind``.
      finetune: Settings of fine-tuning, or None for none.
      train: File of question-answer pairs.
    """

    name: str
    ict: Mapping[str, Any]
    finetune: Mapping[str, Any] | None
    train: str

    @property
    def evidence(self) -> str:
        return (self.finetune or {}).get("evidence", "dense")


def variants_of(config: SweepConfig) -> list[Variant]:
    """The baseline and what is compared with it.

    Raises:
      OrqaError: A variant has no name, or that of another, or a key that no training reads.
    """
    found = [Variant(BASELINE, config.ict, config.finetune or None, config.train)]
    for number, given in enumerate(config.variants, 1):
        unknown = given.keys() - {"name", "ict", "untrained", "finetune", "train"}
        name = given.get("name")
        if unknown or not (isinstance(name, str) and _folder_name(name)):
            raise OrqaError(
                f"Variant {number} of the sweep needs a name, and may have ict or untrained, "
                f"finetune and train, not {', '.join(sorted(unknown)) or 'no name'}."
            )
        if "ict" in given and "untrained" in given:
            raise OrqaError(f"Variant {name!r} has both ict and untrained; it can have one.")
        changes = given.get("finetune", {})
        if (changes or "train" in given) and not config.finetune:
            raise OrqaError(
                f"Variant {name!r} changes fine-tuning, which this sweep does not do; "
                "give the baseline settings in finetune."
            )
        fine = {**config.finetune, **changes} if config.finetune else None
        pretraining = {**config.ict, **given.get("ict", {})}
        if "untrained" in given:
            lengths = ("question_length", "block_length")
            kept = {name: config.ict[name] for name in lengths if name in config.ict}
            pretraining = {"kind": given["untrained"], **kept}
        found.append(Variant(name, pretraining, fine, given.get("train", config.train)))
    names = [variant.name for variant in found]
    folders = [_folder_name(name) for name in names]
    if len({*folders, BM25}) <= len(folders):
        raise OrqaError(
            f"The variants of a sweep need different names, none of them {BM25}, not "
            f"{', '.join(names)}."
        )
    placed = {key: "-" for key in _PLACES}
    for variant in found:
        # Every mistake is found before the first hour of training.
        places = {key: placed[key] for key in ("corpus", "encoder", "out")}
        make_config(_pretraining(variant), {**variant.ict, **places})
        if variant.finetune is not None:
            bm25 = {} if variant.evidence == "dense" else {"bm25": "-"}
            make_config(FinetuneConfig, {**variant.finetune, **placed, **bm25})
    return found


def sweep(config: SweepConfig) -> Path:
    """Runs, or continues, all variants; writes ``sweep.json``, ``sweep.md`` and the report.

    Returns:
      The page of the report.

    Raises:
      OrqaError: Settings are wrong, or an input is missing.
    """
    variants = variants_of(config)
    if not config.seeds:
        raise OrqaError("The sweep has no seeds; give at least one.")
    if config.finetune and not config.train:
        raise OrqaError("The sweep fine-tunes, so it needs train, a file of question-answer pairs.")
    for questions in {config.test, *(v.train for v in variants if v.finetune is not None)}:
        # A file that is missing or broken is found now, not after the hours before it is needed.
        load_examples(questions)
    encoder = fingerprint_params(load_bert(Path(config.encoder))[1])
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    scores: dict[str, dict[str, np.ndarray]] = {}
    for number, variant in enumerate(variants, 1):
        of_seeds = []
        for seed in config.seeds:
            logger.info("[%d/%d] %s, seed %d", number, len(variants), variant.name, seed)
            run = run_variant(config, variant, seed, encoder)
            of_seeds.append(measure(run, Path(config.test)))
        scores[variant.name] = {
            name: np.mean([found[name] for found in of_seeds], axis=0) for name in of_seeds[0]
        }
    scores[BM25] = measure(retrieve_by_bm25(config), Path(config.test))
    summary = summarize_sweep(config, scores)
    write_json(out / SWEEP_NAME, summary)
    page, _ = write_report([out], out / "report")
    return page


def run_variant(config: SweepConfig, variant: Variant, seed: int, encoder: str) -> Path:
    """Trains, encodes and predicts what is not there yet; returns the run folder.

    Args:
      config: The sweep.
      variant: One of `variants_of` it.
      seed: Of both trainings.
      encoder: Fingerprint of the encoder's weights.
    """
    out, corpus = Path(config.out), Path(config.corpus)
    name = _folder_name(variant.name) + (f"-seed{seed}" if len(config.seeds) > 1 else "")
    run = out / "runs" / name
    run.mkdir(parents=True, exist_ok=True)
    _link(run / "corpus", corpus)
    store = BlockStore(corpus)
    settings = {**variant.ict, "seed": seed}
    trained = out / "shared" / _key("ict", settings, store.fingerprint, encoder)
    places = {"corpus": config.corpus, "encoder": config.encoder, "out": str(trained)}
    made = make_config(_pretraining(variant), settings | places)
    if isinstance(made, UntrainedConfig):
        save_untrained(made)
    else:
        ict.pretrain(made)
    _link(run / "ict", trained)
    model = trained / "model"
    weights = describe_model(model, kind=ict.MODEL_KIND)["weights_fingerprint"]
    # All rows alike: a retriever without pre-training has no dtype of its own.
    dtype = config.ict.get("dtype", "float32")
    index = out / "shared" / _key("index", {"dtype": dtype}, store.fingerprint, weights)
    encode_corpus(EncodeConfig(config.corpus, str(model), str(index), dtype=dtype))
    _link(run / "index", index)
    retrieve_file(run, Path(config.test), run / "predictions" / "zero_shot.jsonl")
    if variant.finetune is None:
        return run
    settings = {**variant.finetune, "seed": seed}
    train = fingerprint_examples(load_examples(variant.train))
    tuned = out / "shared" / _key("finetune", settings, store.fingerprint, weights, train, encoder)
    places = {
        "corpus": config.corpus,
        "encoder": config.encoder,
        "retriever": str(model),
        "index": str(index),
        "train": variant.train,
        "out": str(tuned),
    }
    bm25 = bm25_folder(config, store)
    _link(run / "bm25", bm25)
    system, folder = "orqa", run / "finetune"
    if variant.evidence != "dense":
        places["bm25"] = str(bm25)
        system, folder = f"trained_{variant.evidence}", run / f"finetune_{variant.evidence}"
    finetune(make_config(FinetuneConfig, settings | places))
    _link(folder, tuned)
    predictions = run / "predictions" / "orqa.jsonl"
    made_by = describe_model(tuned / "model", kind="question answerer")["weights_fingerprint"]
    if not _is_made_by(predictions, made_by, Path(config.test)):
        about = {"weights_fingerprint": made_by}
        answerer = load_answerer(run, system=system)
        predict_file(answerer, Path(config.test), predictions, about=about)
    return run


def bm25_folder(config: SweepConfig, store: BlockStore) -> Path:
    """The BM25 index that all variants share; made if it is not there."""
    folder = Path(config.out) / "shared" / _key("bm25", {}, store.fingerprint)
    BM25Index.build(store, folder)
    return folder


def retrieve_by_bm25(config: SweepConfig) -> Path:
    """Writes what BM25 finds for the test questions; returns its run folder."""
    store, run = BlockStore(config.corpus), Path(config.out) / "runs" / BM25
    run.mkdir(parents=True, exist_ok=True)
    _link(run / "corpus", Path(config.corpus))
    folder = bm25_folder(config, store)
    _link(run / "bm25", folder)
    out, made_by = run / "predictions" / "zero_shot.jsonl", f"BM25 of {store.fingerprint}"
    if not _is_made_by(out, made_by, Path(config.test)):
        bm25 = BM25Index.open(folder, corpus_fingerprint=store.fingerprint)
        system = RetrieverAlone(store, bm25)
        predict_file(system, Path(config.test), out, about={"weights_fingerprint": made_by})
    return run


@dataclasses.dataclass(frozen=True)
class RetrieverAlone:
    """A `predict.System` that finds blocks and answers nothing."""

    store: BlockStore
    retriever: Index[Sequence[str]]
    reader_beam: int | None = None

    def answer(self, questions: Sequence[str], /) -> list[Answer]:
        ids_BC, scores_BC = self.retriever.search(questions, min(RETRIEVED, len(self.store)))
        found = zip(questions, ids_BC.tolist(), scores_BC.tolist(), strict=True)
        return [Answer(asked, (), tuple(ids), tuple(scores)) for asked, ids, scores in found]


def retrieve_file(run: Path, questions: Path, out: Path) -> None:
    """Writes what the retriever of a run finds before fine-tuning; without answers."""
    about, params, tokenizer = load_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    weights = about["weights_fingerprint"]
    if _is_made_by(out, weights, questions):
        return
    store = BlockStore(run / "corpus")
    vectors_NP = open_embeddings(
        run / "index", corpus_fingerprint=store.fingerprint, weights_fingerprint=weights
    )
    retriever = DenseRetriever(
        DualEncoder(retriever_config_from_dict(about["retriever"])),
        params,
        ExactIndex(vectors_NP, mesh=accelerator_mesh()),
        tokenizer,
        about["question_length"],
    )
    system = RetrieverAlone(store, retriever)
    predict_file(system, questions, out, about={"weights_fingerprint": weights})


def measure(run: Path, test: Path) -> dict[str, np.ndarray]:
    """Every metric of the table for each question, float64 [questions], from a run's predictions.

    ``no signal`` is the same for all questions: the share of training examples without any answer
    among the blocks retrieved for them, over the whole of fine-tuning.
    """
    scores = evaluate_file(run / "predictions" / "zero_shot.jsonl", test).per_question
    found = {f"zero-shot {name}": scores[name] for name in _ZERO_SHOT_METRICS}
    if (run / "predictions" / "orqa.jsonl").exists():
        scores = evaluate_file(run / "predictions" / "orqa.jsonl", test).per_question
        found |= {name: scores[name] for name in _FINE_TUNED_METRICS}
        (tuned,) = run.glob("finetune*")
        lines = read_metrics(tuned / "metrics.jsonl")
        share = np.mean([line["no_signal"] for line in lines])
        found["no signal"] = np.full(len(scores["exact_match"]), share)
    return found


def summarize_sweep(
    config: SweepConfig, scores: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, Any]:
    """The table of a sweep as `orqa_jax.report.page.sweep_section` reads it."""
    baseline = scores[BASELINE]
    rows = []
    for name, of_variant in scores.items():
        row: dict[str, Any] = {"name": name, "metrics": {}, "against_first": {}}
        for key, values in of_variant.items():
            row["metrics"][key] = dataclasses.asdict(bootstrap_interval(values))
            if name != BASELINE and key != "no signal" and key in baseline:
                difference, p_value = paired_bootstrap(values, baseline[key])
                row["against_first"][key] = dataclasses.asdict(difference) | {"p": p_value}
        rows.append(row)
    questions = len(next(iter(baseline.values())))
    seeds = ", ".join(map(str, config.seeds))
    note = (
        f"{questions} questions, seed(s) {seeds}; percent, means over the seeds, 95% bootstrap "
        "intervals over the questions. In brackets after it the difference from the first row, and "
        "its two-sided p-value by paired bootstrap. No signal: share of training examples without "
        "an answer among the blocks retrieved for them."
    )
    return {"name": config.name, "note": note, "rows": rows}


def _key(stage: str, settings: Mapping[str, Any], *fingerprints: str) -> str:
    told = json.dumps([dict(sorted(settings.items())), *fingerprints])
    return f"{stage}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _pretraining(variant: Variant) -> type[ict.ICTConfig] | type[UntrainedConfig]:
    return UntrainedConfig if "kind" in variant.ict else ict.ICTConfig


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")


def _link(link: Path, target: Path) -> None:
    relative = os.path.relpath(target.resolve(), link.parent.resolve())
    if link.is_symlink() and os.readlink(link) == relative:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(relative, target_is_directory=True)


def _is_made_by(predictions: Path, weights: str, questions: Path) -> bool:
    wanted = {"weights_fingerprint": weights, "questions": str(questions.resolve())}
    return predictions.exists() and read_about(predictions).items() >= wanted.items()


def main(config: SweepConfig) -> None:
    print(sweep(config))


if __name__ == "__main__":
    run_experiment(SweepConfig, main)
