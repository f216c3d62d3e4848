import contextlib
import io
import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import (
    documents,
    finetune_config,
    indexed_run,
    questions,
    trained_run,
    world,
    write_jsonl,
)

from orqa_jax import cli
from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.eval.calibration import calibrate
from orqa_jax.eval.judge import read_details
from orqa_jax.index.bm25 import tune_bm25
from orqa_jax.qa.cloze import cloze_examples
from orqa_jax.qa.examples import load_examples, save_examples
from orqa_jax.report.files import read_calibration
from orqa_jax.train.finetune import finetune
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.metrics import read_metrics

QUESTION = "Who founded the salt market of Tarnholt in 1226?"


def run_orqa(capsys, *arguments):
    """Status, standard output and standard error of a command in this process."""
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def orqa_process(*arguments, **changes):
    """The same in a process of its own, as the console script starts it."""
    code = "import sys; from orqa_jax.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=200,
        **changes,
    )


# --- From documents to answers; `tiny_world` went that way by these commands up to `finetune` ---


def test_ask_prints_json(capsys):
    status, out, _ = run_orqa(
        capsys, "ask", "--run", trained_run(), "--json", QUESTION, "When was the flood?"
    )
    assert status == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["id"], first["question"]) == ("1", QUESTION)
    assert second["id"] == "2"
    best = first["candidates"][0]
    text = {document["id"]: document["text"] for document in documents()}[best["document_id"]]
    assert text[best["start"] : best["end"]] == best["answer"] == first["answer"]


def test_ask_prints_the_sentence_with_its_answer(capsys, monkeypatch):
    status, out, _ = run_orqa(capsys, "ask", "--run", trained_run(), "--json", QUESTION)
    best, *others = json.loads(out)["candidates"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\n  {QUESTION}  \n\n"))
    status, out, _ = run_orqa(capsys, "ask", "--run", trained_run())
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"Q: {QUESTION}"
    assert lines[1].startswith(f"A: {best['answer']}   [{best['title']}, score ")
    marked = lines[2].strip()
    before, answer, after = re.fullmatch(r"(.*)\*\*(.*)\*\*(.*)", marked).groups()
    assert answer == best["answer"]
    assert before + answer + after in best["block_text"]
    assert lines[3].strip().startswith(f"Also: {others[0]['answer']} (")


def test_index_tunes_bm25_on_questions(capsys, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for part in ("corpus", "ict", "index"):
        (run / part).symlink_to(indexed_run() / part)
    status, _, err = run_orqa(capsys, "index", "--run", run, "--tune", world().questions)
    assert status == 0, err
    manifest = json.loads((run / "bm25" / "manifest.json").read_text())
    expected = tune_bm25(world().store, load_examples(world().questions))
    assert (manifest["k1"], manifest["b"]) == expected


def test_predict_and_eval(capsys, tmp_path):
    few = write_jsonl(tmp_path / "few.jsonl", questions()[:5])
    out = tmp_path / "p.jsonl"
    arguments = ["predict", "--run", trained_run(), few, "--out", out, "--system", "bm25"]
    assert run_orqa(capsys, *arguments)[0] == 0
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["q0", "q1", "q2", "q3", "q4"]

    status, printed, _ = run_orqa(capsys, "eval", out, few, "--json")
    assert status == 0
    found = json.loads(printed)
    names = ["exact_match", "modern_match", "f1", "recall@1", "recall@5", "recall@20", "recall@100"]
    assert list(found) == names
    assert found["recall@100"]["mean"] == 1.0
    status, printed, _ = run_orqa(capsys, "eval", out, few)
    head, _, row = printed.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["system", *names]
    assert row.startswith("| p ")
    mean = 100 * found["f1"]["mean"]
    assert row.split("|")[3].strip().startswith(f"{mean:.1f} [")


def test_eval_with_details_and_compare(capsys, tmp_path):
    test, dev = (
        write_jsonl(tmp_path / f"{name}.jsonl", part)
        for name, part in (("test", questions()[:9]), ("dev", questions()[9:]))
    )
    made = {}
    for system, asked in (("orqa", test), ("bm25", test), ("orqa", dev)):
        made[system, asked] = tmp_path / f"{system}_{asked.stem}.jsonl"
        arguments = ["predict", "--run", trained_run(), asked, "--out", made[system, asked]]
        assert run_orqa(capsys, *arguments, "--system", system)[0] == 0
    details = tmp_path / "details.jsonl"
    ours, bm25 = made["orqa", test], made["bm25", test]
    arguments = ["eval", ours, test, "--details", details, "--train", dev]
    status, printed, _ = run_orqa(capsys, *arguments, "--dev", made["orqa", dev], dev)
    assert status == 0
    judged = read_details(details)
    assert [one.id for one in judged] == [f"q{number}" for number in range(9)]
    assert all(0 < one.confidence <= 1 for one in judged)
    titles = [line[4:] for line in printed.splitlines() if line.startswith("### ")]
    assert titles[:4] == ["Answers", "Retrieval", "What went wrong", "Confidence"]
    assert "By answer in training: orqa_test" in titles

    calibrating = ["eval", ours, test, "--calibrate", tmp_path, "--wrong-cost", "0.25"]
    assert run_orqa(capsys, *calibrating)[0] == 0
    weights = json.loads((tmp_path / "orqa_test.jsonl.about.json").read_text())[
        "weights_fingerprint"
    ]
    right = [one.exact_match for one in judged]
    expected = calibrate([one.confidence for one in judged], right, wrong_cost=0.25)
    assert read_calibration(tmp_path, system="orqa", weights_fingerprint=weights) == expected

    status, printed, _ = run_orqa(capsys, "compare", ours, bm25, test, "--json")
    assert status == 0
    found = json.loads(printed)["recall@1"]
    ranks = [one.rank_token == 1 for one in judged]
    assert found["a"]["mean"] == pytest.approx(sum(ranks) / 9)
    status, printed, _ = run_orqa(capsys, "compare", ours, bm25, test)
    assert printed.startswith("### orqa_test against bm25_test")


def test_report_of_a_run(capsys, tmp_path):
    run = tmp_path / "run"
    run.symlink_to(trained_run(), target_is_directory=True)
    predictions = tmp_path / "seen" / "predictions" / "orqa.jsonl"
    arguments = ["predict", "--run", run, world().questions, "--out", predictions]
    assert run_orqa(capsys, *arguments)[0] == 0
    (tmp_path / "seen" / "finetune").symlink_to(run / "finetune")
    status, printed, _ = run_orqa(capsys, "report", tmp_path / "seen", "--out", tmp_path / "out")
    assert status == 0
    page, text = (Path(line) for line in printed.splitlines())
    assert "Learning curves" in page.read_text("utf-8")
    assert "exact match" in text.read_text("utf-8")


def test_cloze(capsys, tmp_path):
    pairs = tmp_path / "cloze.jsonl"
    arguments = ["cloze", world().store.folder, "--out", pairs, "--count", "16"]
    status, _, err = run_orqa(capsys, *arguments)
    assert status == 0
    assert "16 questions" in err
    for example in load_examples(pairs):
        place = example.taken_from
        text = {d["id"]: d["text"] for d in documents()}[place.document_id]
        assert example.answers[0] in text[place.start :]


@pytest.mark.slow
def test_cloze_pairs_train(tmp_path):
    pairs = tmp_path / "cloze.jsonl"
    save_examples(pairs, cloze_examples(world().store, count=16))
    config = finetune_config(trained_run(), train=str(pairs), out=str(tmp_path / "out"), epochs=1)
    finetune(config)
    found = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert all(line["no_signal"] < 1 for line in found)


def test_index_again_keeps_what_is_there_and_says_little():
    embeddings = indexed_run() / "index" / "embeddings.npy"
    written = embeddings.stat().st_mtime_ns
    done = orqa_process("index", "--run", indexed_run())
    assert done.returncode == 0
    assert embeddings.stat().st_mtime_ns == written
    lines = [line for line in done.stderr.splitlines() if line]
    assert [line for line in lines if not line.startswith(str(indexed_run()))] == []


# --- Settings ---


def test_flags_win_over_the_config_file_and_that_over_the_run(tmp_path):
    config = tmp_path / "c.py"
    config.write_text(
        "def get_config():\n    return {'out': 'there', 'steps': 7, 'seed': 3, 'encoder': 'e'}\n"
    )
    arguments = ["--run", "r", "--config", str(config), "--seed", "4", "--learning-rate", "1"]
    found = cli._settings("ict", arguments)
    expected = ICTConfig("r/corpus", "e", "there", steps=7, seed=4, learning_rate=1.0)
    assert found == expected


@pytest.mark.parametrize(
    ("flags", "shared"),
    [(["--shared-towers"], True), (["--no-shared-towers"], False), ([], False)],
)
def test_switches(flags, shared):
    arguments = ["--run", "r", "--encoder", "e", *flags]
    assert cli._settings("ict", arguments).shared_towers is shared


def test_help_and_version(capsys):
    for arguments, words in (
        (["--help"], ["corpus", "finetune", "Open-retrieval"]),
        (["ict", "--help"], ["--mask-rate", "How often", "Default: 0.9"]),
        (["ask", "--help"], ["--system", "zero_shot"]),
        (["--version"], ["orqa_jax"]),
    ):
        with contextlib.suppress(SystemExit):
            cli.main(arguments)
        printed = capsys.readouterr().out
        for word in words:
            assert word in printed


# --- JSON ---


def printed_json(capsys, *arguments):
    """All that a command prints on standard output has to be JSON, an object a line."""
    status, out, err = run_orqa(capsys, *arguments, "--json")
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_what_makes_files_tells_how_many(capsys, tmp_path):
    encoder = ["--encoder", world().encoder]
    (made,) = printed_json(
        capsys, "corpus", world().documents, "--out", tmp_path / "c", *encoder, "--workers", "1"
    )
    store = BlockStore(tmp_path / "c")
    assert (made["corpus"], made["documents"]) == (str(tmp_path / "c"), 60)
    assert (made["blocks"], made["fingerprint"]) == (len(store), store.fingerprint)

    (more,) = printed_json(
        capsys,
        *(
            "corpus",
            write_jsonl(tmp_path / "new.jsonl", [{"title": "T", "text": "A lamp is lit."}]),
        ),
        *("--append", "--out", tmp_path / "c"),
    )
    assert (more["documents"], more["blocks"]) == (61, made["blocks"] + 1)

    cloze = tmp_path / "cloze.jsonl"
    (told,) = printed_json(capsys, "cloze", tmp_path / "c", "--out", cloze, "--count", "7")
    assert told == {"out": str(cloze), "questions": len(load_examples(cloze))}

    trec = write_jsonl(tmp_path / "trec.jsonl", [{"question": "Who?", "answer": ["An.*"]}])
    out = tmp_path / "data.jsonl"
    (told,) = printed_json(capsys, "data", "curated_trec", trec, "--out", out)
    assert told == {"out": str(out), "questions": 1}


def test_mine_tells_how_many_pairs(capsys, tmp_path):
    mined = tmp_path / "mined.jsonl"
    (told,) = printed_json(
        capsys, "mine", "--run", indexed_run(), world().questions, "--out", mined
    )
    assert told == {"out": str(mined), "pairs": len(mined.read_text().splitlines())}


def test_report_tells_its_files(capsys, tmp_path):
    (told,) = printed_json(capsys, "report", trained_run(), "--out", tmp_path / "r")
    assert Path(told["html"]).read_text("utf-8").startswith("<!")
    assert Path(told["markdown"]).exists()


# --- History ---


def type_questions(lines: list[bytes], folder: Path, code: str) -> str:
    """What a person at a terminal sees, who types a line at each prompt and then ends the input."""
    ours, theirs = pty.openpty()
    environment = {
        "PYTHONPATH": str(Path(cli.__file__).parent.parent),
        "XDG_STATE_HOME": str(folder),
        "TERM": "dumb",
    }
    started = subprocess.Popen(
        [sys.executable, "-c", f"from orqa_jax.cli import *; {code}"],
        env=os.environ | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen, waiting = b"", [*(line + b"\n" for line in lines), b"\x04"]
    with contextlib.suppress(OSError):  # how Linux tells that the other side is closed
        while part := os.read(ours, 1024):
            seen += part
            if waiting and seen.endswith(b"? "):
                os.write(ours, waiting.pop(0))
    assert started.wait(60) == 0, seen
    return seen.decode()


def test_typed_questions_are_remembered_for_the_user_alone(tmp_path):
    ask = "print(*[f'<{q}>' for q in typed_questions(history_path())])"
    seen = type_questions([b"Who", b"", b"  When  "], tmp_path, ask)
    assert "<Who> <When>" in seen
    history = tmp_path / "orqa" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    # The arrow brings back the last one.
    seen = type_questions([b"\x1b[A"], tmp_path, ask)
    assert "<When>" in seen
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    kept = [line for line in history.read_text().splitlines() if not line.startswith("_")]
    assert [line.strip() for line in kept[:2]] == ["Who", "When"]


def test_typed_questions_are_forgotten_where_that_is_wanted_or_unavoidable(tmp_path):
    ask = "print(*[f'<{q}>' for q in typed_questions(None)])"
    assert "<Who>" in type_questions([b"Who"], tmp_path, ask)
    assert not (tmp_path / "orqa").exists()
    (tmp_path / "orqa").write_text("a file where the folder should be")
    ask = "print(*[f'<{q}>' for q in typed_questions(history_path())])"
    seen = type_questions([b"Who"], tmp_path, ask)
    assert "No history of questions" in seen
    assert "<Who>" in seen


# --- Completion ---


def completed(line: str, script: Path) -> set[str]:
    """What bash offers where the cursor stands at the end of a line."""
    words = line.split(" ")
    code = (
        f"source {script}; COMP_WORDS=({' '.join(words[:-1])} {words[-1]!r}); "
        f"COMP_CWORD={len(words) - 1}; COMP_LINE={line!r}; COMP_POINT={len(line)}; "
        f'_shtab_orqa orqa {words[-1]!r} {words[-2]!r}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {word for word in done.stdout.split("\n") if word}


def test_bash_completes_commands_settings_choices_and_files(capsys, tmp_path, monkeypatch):
    status, out, err = run_orqa(capsys, "completion", "bash")
    assert (status, err) == (0, "")
    script = tmp_path / "orqa.bash"
    script.write_text(out)
    (tmp_path / "wiki.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("orqa fi", script) == {"finetune", "fit"}
    assert completed("orqa ict --mask", script) == {"--mask-rate"}
    assert completed("orqa finetune --evidence ", script) == {"bm25", "dense", "hybrid"}
    assert completed("orqa import retr", script) == {"retriever"}
    assert completed("orqa corpus wi", script) == {"wiki.jsonl"}
    assert completed("orqa finetune --train wi", script) == {"wiki.jsonl"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_are_told_every_setting(capsys, shell):
    status, out, _ = run_orqa(capsys, "completion", shell)
    assert status == 0
    for word in (
        "mask-rate",
        "evidence",
        "How often the pseudo-question is taken out",
        "retriever",
    ):
        assert word in out
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", out], check=True, timeout=60)


def test_the_command_line_starts_without_jax_or_settings():
    code = "import sys; import orqa_jax.cli as c; c._parser(); print(*sorted(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert modules.isdisjoint({"jax", "numpy", "shtab", "readline", "orqa_jax.train.config"})


# --- Mistakes ---


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Files with a defect each."""
    folder = tmp_path_factory.mktemp("hostile")
    good = [json.dumps(line) + "\n" for line in questions()[:4]]
    (folder / "broken.jsonl").write_text("".join([*good[:2], '{"question": "Who\n', good[3]]))
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.jsonl").write_text('{"question": " ", "answer": "a"}\n')
    (folder / "bytes.jsonl").write_bytes(b"\xff\xfe\x00\x01")
    other = [{"question": "Who?", "answer": "Nobody Known"}] * 8
    write_jsonl(folder / "other.jsonl", other)
    texts = [{"title": "A", "text": "One."}, {"title": "B", "text": ""}]
    lines = [json.dumps(line) + "\n" for line in texts]
    (folder / "documents.jsonl").write_text("".join([*lines, '{"title": "C", "text"\n']))
    (folder / "config.py").write_text("def get_config():\n    return {'step': 3}\n")
    return folder


def training(command, **changes):
    run = indexed_run()
    out = f"--out={changes.pop('out')}"
    flags = [f"--{name}={value}" for name, value in changes.items()]
    return [command, "--run", run, "--encoder", world().encoder, out, *flags]


MISTAKES = {
    "no such source": (
        lambda f: ["corpus", f / "none.jsonl", "--out", f / "c", "--encoder", world().encoder],
        ["none.jsonl"],
    ),
    "broken document": (
        lambda f: ["corpus", f / "documents.jsonl", "--out", f / "c", "--encoder", world().encoder],
        ["documents.jsonl:3"],
    ),
    "no tokenizer": (
        lambda f: ["corpus", world().documents, "--out", f / "c", "--encoder", f],
        ["hostile", "tokenizer"],
    ),
    "corpus exists": (
        lambda f: [
            *("corpus", world().documents, "--encoder", world().encoder),
            *("--out", indexed_run() / "corpus"),
        ],
        ["run/corpus"],
    ),
    "corpus size": (
        lambda f: [
            *("corpus", world().documents, "--out", f / "c", "--encoder", world().encoder),
            *("--max-wordpieces", "3"),
        ],
        ["max_wordpieces", "3"],
    ),
    "no command": (lambda f: [], ["COMMAND"]),
    "unknown command": (lambda f: ["train"], ["train"]),
    "unknown flag": (lambda f: ["ask", "--run", f, "--loud", "Who?"], ["--loud"]),
    "no run": (lambda f: ["ask", "Who?"], ["--run"]),
    "unknown setting": (lambda f: training("ict", out=f / "o", setps=3), ["--setps"]),
    "unknown setting in a file": (
        lambda f: training("ict", out=f / "o", config=f / "config.py"),
        ["step", "did you mean steps?"],
    ),
    "no config file": (
        lambda f: training("ict", out=f / "o", config=f / "none.py"),
        ["none.py"],
    ),
    "no number": (lambda f: training("ict", out=f / "o", steps="many"), ["--steps", "many"]),
    "no choice": (
        lambda f: training("finetune", out=f / "o", retrieval="mail"),
        ["--retrieval", "mail", "two_phase"],
    ),
    "a setting is missing": (lambda f: ["ict", "--run", f], ["encoder"]),
    "a run of nothing": (lambda f: ["ask", "--run", f / "nowhere", "Who?"], ["nowhere"]),
    "an empty question": (lambda f: ["ask", "--run", trained_run(), "  "], ["empty"]),
    "broken questions": (
        lambda f: training("finetune", out=f / "o", train=f / "broken.jsonl"),
        ["broken.jsonl:3"],
    ),
    "no questions": (
        lambda f: training("finetune", out=f / "o", train=f / "empty.jsonl"),
        ["empty.jsonl"],
    ),
    "a blank question": (
        lambda f: training("finetune", out=f / "o", train=f / "blank.jsonl"),
        ["blank.jsonl:1", "question"],
    ),
    "not text": (
        lambda f: training("finetune", out=f / "o", train=f / "bytes.jsonl"),
        ["bytes.jsonl:1"],
    ),
    "answers of another corpus": (
        lambda f: training("finetune", out=f / "o", train=f / "other.jsonl"),
        ["None of the training answers"],
    ),
    "no questions to predict": (
        lambda f: ["predict", "--run", trained_run(), f / "none.jsonl", "--out", f / "p.jsonl"],
        ["none.jsonl"],
    ),
    "no predictions": (
        lambda f: ["eval", f / "none.jsonl", world().questions],
        ["none.jsonl"],
    ),
    "details of nothing": (
        lambda f: ["eval", f / "none.jsonl", world().questions, "--details", f / "d.jsonl"],
        ["none.jsonl"],
    ),
    "comparison with nothing": (
        lambda f: ["compare", world().questions, f / "none.jsonl", world().questions],
        ["answer"],
    ),
    "a report of nothing": (
        lambda f: ["report", f / "nowhere", "--out", f / "o"],
        ["nowhere"],
    ),
    "cloze pairs of no corpus": (
        lambda f: ["cloze", f / "nowhere", "--out", f / "c"],
        ["nowhere"],
    ),
    "predictions without answers": (
        lambda f: ["eval", world().questions, world().questions],
        ["questions.jsonl:1", "answer"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(capsys, hostile, mistake):
    arguments, words = MISTAKES[mistake]
    status, out, err = run_orqa(capsys, *arguments(hostile))
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("orqa: ")
    for word in words:
        assert word in err
    assert not (hostile / "p.jsonl").exists()
    assert not (hostile / "c").exists()


@pytest.mark.parametrize("mistake", ["broken document", "unknown flag", "broken questions"])
def test_a_mistake_in_a_process_of_its_own(hostile, mistake):
    arguments, words = MISTAKES[mistake]
    done = orqa_process(*arguments(hostile))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_debug_shows_where_it_happened(hostile):
    done = orqa_process(
        "corpus", hostile / "none.jsonl", "--out", "c", "--encoder", hostile, "--debug"
    )
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr


def test_an_interruption_is_no_traceback(capsys, monkeypatch, tmp_path):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("orqa_jax.corpus.build.build_corpus", interrupt)
    status, _, err = run_orqa(
        capsys, "corpus", world().documents, "--out", tmp_path, "--encoder", world().encoder
    )
    assert status == 130
    assert len(err.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error():
    code = "import sys; from orqa_jax.cli import main; sys.exit(main())"
    command = f"{sys.executable} -c '{code}' ask --run {trained_run()} | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        input=f"{QUESTION}\n" * 3,
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_a_corpus_of_one_block(capsys, tmp_path):
    """The smallest corpus goes the whole way, so sizes are clipped where they must be."""
    source = write_jsonl(tmp_path / "d.jsonl", [{"title": "A", "text": "A lamp. A river is lit."}])
    build_corpus([source], tmp_path / "run" / "corpus", world().tokenizer, workers=1)
    train = write_jsonl(tmp_path / "t.jsonl", [{"question": "What is lit?", "answer": "a river"}])
    run, inputs = tmp_path / "run", ["--encoder", world().encoder]
    sizes = ["--batch-size=8", "--log-every=1"]
    small = ["--steps=1", "--question-length=32", "--block-length=48", "--projection-size=16"]
    assert run_orqa(capsys, "ict", "--run", run, *inputs, *sizes, *small)[0] == 0
    assert run_orqa(capsys, "index", "--run", run)[0] == 0
    config = finetune_config(run)
    small = ["--reader-length=64", "--max-span-wordpieces=6", "--span-hidden-size=16"]
    flags = ["--train", train, "--retrieval=two_phase", "--epochs=1", *small, *sizes]
    assert run_orqa(capsys, "finetune", "--run", run, *flags)[0] == 0
    assert Path(config.out, "model", "model.json").exists()
    status, out, _ = run_orqa(capsys, "ask", "--run", run, "--json", "What is lit?")
    assert status == 0
    assert json.loads(out)["retrieved"] == [0]
