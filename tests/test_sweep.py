import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_world import FINETUNE_SETTINGS, ICT_SETTINGS, questions, world, write_jsonl

from experiments.configs import main_table, sweep_cloze, sweep_fidelity, sweep_ict, sweep_mask_rate
from experiments.new_encoder import write_new_bert
from experiments.sweep import BASELINE, BM25, SweepConfig, summarize_sweep, sweep, variants_of
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import bootstrap_interval, paired_bootstrap
from orqa_jax.models.bert import BertConfig
from orqa_jax.models.weights import load_bert
from orqa_jax.report.files import judge_file
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.config import make_config


def config(out, test, **changes):
    given = {
        "name": "Tiny",
        "corpus": str(world().store.folder),
        "encoder": str(world().encoder),
        "train": str(world().questions),
        "test": str(test),
        "out": str(out),
        "ict": {**ICT_SETTINGS, "steps": 2, "checkpoint_every": 2},
        "finetune": {},
        "variants": [],
        "seeds": [0],
    }
    return SweepConfig(**{**given, **changes})


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that was run, then run again with one variant more."""
    folder = tmp_path_factory.mktemp("sweep")
    test = write_jsonl(folder / "test.jsonl", questions()[:6])
    started = config(folder / "out", test)
    sweep(started)
    stamps = stamps_of(folder / "out")
    whole = dataclasses.replace(started, variants=[{"name": "no ICT", "ict": {"steps": 0}}])
    page = sweep(whole)
    return whole, folder / "out", page, stamps


def stamps_of(out):
    """When each finished model and embedding of a sweep was written."""
    files = [path for path in (out / "shared").rglob("*") if path.is_file()]
    kept = [path for path in files if path.parent.name == "model" or "index-" in str(path)]
    return {path: path.stat().st_mtime_ns for path in kept}


def stages_of(out):
    return [path.name.split("-")[0] for path in sorted((out / "shared").iterdir())]


def test_what_is_there_is_not_made_again(swept):
    _, out, _, stamps = swept
    assert stages_of(out) == ["bm25", "ict", "ict", "index", "index"]
    assert len(stamps) == 4
    assert stamps_of(out).items() > stamps.items()
    runs = out / "runs"
    assert (runs / BASELINE / "ict").resolve() != (runs / "no-ICT" / "ict").resolve()
    assert (runs / BASELINE / "corpus").resolve() == world().store.folder.resolve()


def test_the_table_is_that_of_the_predictions(swept):
    config, out, page, _ = swept
    summary = json.loads((out / "sweep.json").read_text())
    runs = {BASELINE: BASELINE, "no ICT": "no-ICT", BM25: BM25}
    assert [row["name"] for row in summary["rows"]] == list(runs)
    for row, run in zip(summary["rows"], runs.values(), strict=True):
        judged = judge_file(
            out / "runs" / run / "predictions" / "zero_shot.jsonl", Path(config.test)
        )
        expected = np.mean([one.rank_token is not None and one.rank_token <= 5 for one in judged])
        assert row["metrics"]["zero-shot recall@5"]["mean"] == pytest.approx(expected)
    # The world's questions share their words with the blocks that answer them.
    assert summary["rows"][2]["metrics"]["zero-shot recall@5"]["mean"] == 1
    content = page.read_text("utf-8")
    assert "Ablations: Tiny" in content
    assert "no ICT" in content


@pytest.mark.slow
def test_fine_tuned_variants_share_their_pre_training(tmp_path):
    test = write_jsonl(tmp_path / "test.jsonl", questions()[:6])
    fine = {**FINETUNE_SETTINGS, "epochs": 0.3, "checkpoint_every": 9}
    variants = [
        {"name": "no early update", "finetune": {"early_update": False}},
        {"name": "BM25 and reader", "finetune": {"evidence": "bm25"}},
        {"name": "averaged", "untrained": "static"},
    ]
    sweep(config(tmp_path / "out", test, finetune=fine, variants=variants))
    out = tmp_path / "out"
    stages = ["bm25", *["finetune"] * 4, "ict", "ict", "index", "index"]
    assert stages_of(out) == stages
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    assert [row["name"] for row in rows][-1] == BM25
    other = rows[1]
    for row in rows[:-1]:
        run = row["name"].replace(" ", "-")
        judged = judge_file(out / "runs" / run / "predictions" / "orqa.jsonl", test)
        expected = np.mean([one.exact_match for one in judged])
        assert row["metrics"]["exact_match"]["mean"] == pytest.approx(expected)
    # Fine-tuning alone differs, so retrieval before it does not.
    assert other["against_first"]["zero-shot recall@5"]["mean"] == 0
    assert 0 <= other["metrics"]["no signal"]["mean"] < 1


def test_no_ict_leaves_the_encoder_as_it_was(swept):
    _, out, _, _ = swept
    _, params, _ = load_model(out / "runs" / "no-ICT" / "ict" / "model", kind=ict.MODEL_KIND)
    _, expected = load_bert(world().encoder)
    found = params["block_encoder"]["bert"]["layer_1"]["query"]["kernel"]
    np.testing.assert_array_equal(found, expected["layer_1"]["query"]["kernel"])


def test_other_questions_are_predicted_again(swept, tmp_path):
    config, out, _, _ = swept
    test = write_jsonl(tmp_path / "other.jsonl", questions()[6:9])
    moved = tmp_path / "out"
    shutil.copytree(out, moved, symlinks=True)
    plain = dataclasses.replace(config, out=str(moved), test=str(test), variants=[])
    sweep(plain)
    summary = json.loads((moved / "sweep.json").read_text())
    assert summary["note"].startswith("3 questions")
    assert list(summary["rows"][0]["metrics"]) == [f"zero-shot recall@{k}" for k in (1, 5, 20, 100)]


def test_means_over_seeds_and_differences():
    rng = np.random.default_rng(0)
    scores = {
        BASELINE: {"x": rng.random(50), "no signal": np.full(50, 0.25)},
        "other": {"x": rng.random(50), "no signal": np.full(50, 0.5)},
    }
    summary = summarize_sweep(config("o", "t", seeds=[3, 4]), scores)
    first, second = summary["rows"]
    assert first["against_first"] == {}
    assert first["metrics"]["x"] == dataclasses.asdict(bootstrap_interval(scores[BASELINE]["x"]))
    difference, p_value = paired_bootstrap(scores["other"]["x"], scores[BASELINE]["x"])
    assert second["against_first"] == {"x": {**dataclasses.asdict(difference), "p": p_value}}
    assert "seed(s) 3, 4" in summary["note"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": [{"ict": {}}]}, "Variant 1 of the sweep needs a name"),
        ({"variants": [{"name": "x", "itc": {}}]}, "not itc"),
        ({"variants": [{"name": "x"}, {"name": "x!"}]}, "different names"),
        ({"variants": [{"name": "baseline"}]}, "different names"),
        ({"variants": [{"name": "BM25"}]}, "none of them BM25"),
        ({"variants": [{"name": "x", "untrained": "static", "ict": {}}]}, "it can have one"),
        ({"variants": [{"name": "x", "untrained": "other"}]}, "kind"),
        (
            {"variants": [{"name": "x", "ict": {"mask": 1}}]},
            "no setting mask; did you mean mask_rate",
        ),
        ({"variants": [{"name": "x", "ict": {"mask_rate": 2.0}}]}, "between 0 and 1"),
        ({"variants": [{"name": "x", "finetune": {"epochs": 1}}]}, "which this sweep does not do"),
        ({"variants": [{"name": "x", "train": "t"}]}, "which this sweep does not do"),
        ({"finetune": {"epochs": 1}, "train": ""}, "needs train"),
        ({"variants": [{"name": "!"}]}, "Variant 1 of the sweep needs a name"),
        ({"seeds": []}, "has no seeds"),
        ({}, "absent.jsonl cannot be read"),
        (
            {
                "test": str(world().questions),
                "finetune": {"epochs": 1},
                "variants": [{"name": "x", "train": "gone.jsonl"}],
            },
            "gone.jsonl cannot be read",
        ),
    ],
)
def test_mistakes_are_found_before_training(tmp_path, changes, message):
    with pytest.raises(OrqaError, match=message):
        sweep(config(tmp_path, **{"test": "absent.jsonl", **changes}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "module", [main_table, sweep_cloze, sweep_fidelity, sweep_ict, sweep_mask_rate]
)
def test_the_sweeps_that_are_there(module):
    made = make_config(SweepConfig, module.get_config().to_dict())
    names = [variant.name for variant in variants_of(made)]
    assert names[0] == BASELINE
    assert len(names) == 1 + len(made.variants)
    changed = [variant for variant in variants_of(made)[1:] if variant == variants_of(made)[0]]
    assert changed == []


def test_a_new_encoder(tmp_path):
    sizes = BertConfig(
        vocab_size=world().tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    write_new_bert(tmp_path / "e", sizes, world().tokenizer, seed=1)
    read, params = load_bert(tmp_path / "e")
    assert read == sizes
    kernel = params["layer_1"]["intermediate"]["kernel"]
    assert kernel.shape == (32, 64)
    # Cut at two deviations, a normal distribution keeps 0.88 of its deviation.
    assert np.abs(kernel).max() <= 0.04
    assert kernel.std() == pytest.approx(0.88 * 0.02, rel=0.05)
    assert WordPiece.load(tmp_path / "e").fingerprint == world().tokenizer.fingerprint
    write_new_bert(tmp_path / "same", sizes, world().tokenizer, seed=1)
    np.testing.assert_array_equal(
        load_bert(tmp_path / "same")[1]["layer_1"]["intermediate"]["kernel"], kernel
    )
    with pytest.raises(OrqaError, match="is not empty"):
        write_new_bert(tmp_path / "e", sizes, world().tokenizer, seed=1)
