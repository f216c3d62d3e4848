import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_world import documents, orqa, questions, world

from orqa_jax import fit
from orqa_jax.cli import main
from orqa_jax.errors import OrqaError
from orqa_jax.eval.evaluate import Evaluation, bootstrap_interval
from orqa_jax.fit import SIZES, FitConfig, choose, foretell_blocks, make_plan, split_pairs
from orqa_jax.models.bert import BertConfig
from orqa_jax.predict import chosen_system
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.normalize import normalize_answer
from orqa_jax.train.checkpoint import describe_model

# --- What is planned ------------------------------------------------------------------------------


ENCODER = BertConfig(30_522, 384, 6, 12, 1536)


def plan(hours: float, blocks: int, pairs: int, speed: float = 4000.0) -> fit.Plan:
    config = FitConfig("docs", "out", hours=hours)
    return make_plan(config, SIZES["cpu"], ENCODER, blocks=blocks, pairs=pairs, speed=speed)


def test_a_plan_takes_the_time_it_was_given():
    planned = plan(1.0, blocks=20_000, pairs=4000)
    assert (planned.train, planned.held_out) == (3500, 500)
    assert sum(planned.seconds.values()) == pytest.approx(3600, rel=0.02)
    # By hand: a step reads 32 x (128 + 32) wordpieces, two thirds of whose layers stay as they are.
    step = 32 * 160 / 4000 * (1 + 2 * 0.33) * 1.3
    assert planned.seconds["ict"] == pytest.approx(40 + planned.ict_steps * step)
    assert planned.seconds["index"] == pytest.approx(20 + 20_000 * 128 / 4000)
    # Half of the questions are read: 3 blocks of 160 wordpieces by half of the layers.
    question = (0.5 * 3 * 160 * 0.5 + 32) / 4000 * (1 + 2 * 5 / 6) * 1.3
    assert planned.seconds["finetune"] == pytest.approx(
        60 + planned.epochs * 3500 * question, rel=0.01
    )


def test_more_time_goes_first_to_fine_tuning_and_then_to_pre_training():
    short, long = plan(1.0, 20_000, 4000), plan(3.0, 20_000, 4000)
    assert short.epochs < long.epochs <= fit.MOST_EPOCHS
    assert short.ict_steps < long.ict_steps
    # A day is more than this corpus has use for.
    day = plan(24.0, 20_000, 4000)
    assert (day.epochs, day.ict_steps) == (fit.MOST_EPOCHS, 10 * 20_000 // 32)
    assert sum(day.seconds.values()) < 12 * 3600


def test_what_cannot_be_left_out_takes_longer_than_there_is_time():
    planned = plan(0.1, blocks=1_000_000, pairs=4000)
    assert planned.seconds["index"] > 8 * 3600
    assert (planned.ict_steps, planned.epochs) == (10, 0.5)


def test_a_faster_machine_does_more():
    assert plan(1.0, 20_000, 4000, speed=40_000).ict_steps > plan(1.0, 20_000, 4000).ict_steps


@given(st.floats(0.05, 100), st.integers(1, 10**7), st.integers(8, 10**5), st.floats(100, 10**6))
def test_every_plan_can_be_carried_out(hours, blocks, pairs, speed):
    planned = plan(hours, blocks, pairs, speed)
    assert planned.train + planned.held_out == pairs
    assert planned.held_out >= 2
    assert planned.ict_steps >= 1
    assert 0 < planned.epochs <= fit.MOST_EPOCHS
    assert all(seconds > 0 for seconds in planned.seconds.values())


@given(st.lists(st.sampled_from("abcdefghijkl"), min_size=8, max_size=60), st.integers(2, 20))
def test_pairs_are_split_by_question(letters, held_out):
    if len(set(letters)) < 2:
        return
    pairs = [Example(str(i), f"The {x}?", ("y",)) for i, x in enumerate(letters)]
    train, test = split_pairs(pairs, held_out, seed=0)
    assert sorted(int(e.id) for e in train + test) == list(range(len(pairs)))
    sides = [{normalize_answer(e.question) for e in side} for side in (train, test)]
    assert train
    assert test
    assert not sides[0] & sides[1]
    assert split_pairs(pairs, held_out, seed=0) == (train, test)


def test_the_number_of_blocks_is_foretold(monkeypatch):
    config = FitConfig(documents=str(world().documents), out="-")
    whole = foretell_blocks(config, world().tokenizer, 48)
    assert whole == len(world().store)
    monkeypatch.setattr(fit, "_SAMPLE_CHARACTERS", 3000)
    part = foretell_blocks(config, world().tokenizer, 48)
    assert part != whole
    assert part == pytest.approx(whole, rel=0.25)


# --- What is chosen -------------------------------------------------------------------------------


def results(**of_systems: tuple[float, float]) -> dict[str, Evaluation]:
    made = {}
    for name, (exact, recall) in of_systems.items():
        rows = {"exact_match": exact, "recall@5": recall}
        per_question = {m: np.linspace(0, 1, 10) < value for m, value in rows.items()}
        per_question = {m: x.astype(float) for m, x in per_question.items()}
        intervals = {m: bootstrap_interval(x) for m, x in per_question.items()}
        made[name] = Evaluation(per_question, intervals)
    return made


def test_the_best_system_is_chosen():
    assert choose(results(bm25=(0.3, 0.9), orqa=(0.5, 0.1), hybrid=(0.4, 0.9))) == "orqa"
    assert choose(results(bm25=(0.3, 0.5), orqa=(0.3, 0.5), hybrid=(0.3, 0.6))) == "hybrid"
    assert choose(results(bm25=(0.3, 0.5), orqa=(0.3, 0.5), hybrid=(0.3, 0.5))) == "bm25"


def test_the_doubt_is_told():
    found = results(bm25=(0.0, 0.5), orqa=(0.95, 0.5), hybrid=(0.85, 0.5))
    text = fit.format_choice(found, "orqa", real=True)
    assert "Chosen: orqa." in text
    assert "The 10 held-out questions are too few to tell it from hybrid for sure" in text
    assert "a little too good" in text
    assert "made from the documents" in fit.format_choice(found, "orqa", real=False)


# --- The whole ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    with (folder / "qa.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        for line in questions():
            answer = line["answer"]
            rows.writerow([line["question"], answer if isinstance(answer, str) else answer[0]])
    places = [world().documents, folder / "qa.csv", "--out", folder / "run"]
    orqa("fit", *places, "--encoder", world().encoder, "--hours", "0.03")
    return folder


def test_one_command_leads_to_a_system_that_answers(fitted, capsys):
    run = fitted / "run"
    made = json.loads((run / "fit.json").read_text())
    best = max(interval["exact_match"]["mean"] for interval in made["held_out"].values())
    assert made["held_out"][made["system"]]["exact_match"]["mean"] == best
    assert chosen_system(run) == made["system"]
    sides = [load_examples(run / f"{name}.jsonl") for name in ("train", "held_out")]
    assert [len(side) for side in sides] == [22, 8]
    orqa("ask", "--run", run, "--json", "Who founded it?")
    asked = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert asked["candidates"]
    assert "Chosen" not in asked["answer"]
    assert (run / "report" / "report.html").exists()


def test_the_parameters_of_the_best_trial_were_kept(fitted):
    about = describe_model(fitted / "run" / "finetune" / "model", kind="question answerer")
    lines = (fitted / "run" / "finetune" / "metrics.jsonl").read_text().splitlines()
    assert about["config"]["dev"] == str(fitted / "run" / "held_out.jsonl")
    assert about["step"] % about["config"]["dev_every"] == 0 or lines
    assert 0 <= about["dev_exact_match"] <= 1


def test_a_finished_fit_says_so_and_another_is_refused(fitted, capsys, caplog):
    arguments = ["fit", str(world().documents), str(fitted / "qa.csv"), "--out"]
    arguments += [str(fitted / "run"), "--encoder", str(world().encoder)]
    with caplog.at_level("INFO"):
        assert main([*arguments, "--json"]) == 0
    assert "is finished; its best system is" in caplog.text
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["system"]) == (arguments[4], chosen_system(fitted / "run"))
    assert set(told["held_out"]) == {"bm25", "orqa", "hybrid"}
    assert main([*arguments, "--seed", "1"]) == 2
    assert "was begun with seed 0, now it is 1; give another --out" in capsys.readouterr().err


def test_without_questions_pairs_come_from_the_documents(tmp_path):
    planned = dataclasses.replace(plan(0.1, blocks=72, pairs=0), train=9, held_out=3)
    paths = fit.save_pairs(tmp_path, [], planned, world().store, seed=0)
    train, held_out = (load_examples(path) for path in paths)
    assert train
    assert 1 <= len(held_out) <= 4
    texts = [document["text"] for document in documents()]
    for example in train + held_out:
        assert any(example.answers[0] in text for text in texts)
    written = [path.read_bytes() for path in paths]
    assert fit.save_pairs(tmp_path, [], planned, world().store, seed=1) == paths
    assert [path.read_bytes() for path in paths] == written


def test_too_few_pairs(tmp_path):
    path = tmp_path / "qa.csv"
    path.write_text("question,answer\nWho?,Ida\n")
    config = FitConfig(str(world().documents), str(tmp_path / "run"), str(path))
    with pytest.raises(OrqaError, match=r"qa.csv has 1 pairs, too few"):
        fit.fit(dataclasses.replace(config, encoder=str(world().encoder)))
    assert not (tmp_path / "run").exists()
    with pytest.raises(OrqaError, match="hours is 0"):
        dataclasses.replace(config, hours=0)
