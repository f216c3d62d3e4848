"""What README.md and docs/ say is true of the code.

Every `python` block runs; every `orqa` command line has to be one that the command takes; the walks
through the commands are executed on the made-up world.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny_world import (
    FINETUNE_SETTINGS,
    ICT_SETTINGS,
    documents,
    flags,
    questions,
    trained_run,
    world,
    write_jsonl,
)

from orqa_jax import cli
from orqa_jax.errors import OrqaError
from orqa_jax.train.config import load_config_file

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Programs of others, whose options are not checked.
OTHERS = {"curl", "docker", "ln", "mv", "pip", "sbatch", "source", "tensorboard"}
# Command lines that the parser does not take as they stand.
EXEMPT = {
    "orqa ict ...": "three dots stand for any settings",
}
# What makes a walk through the commands small.
SMALL = {
    "corpus": ["--max-wordpieces", "48", "--workers", "1"],
    "ict": flags(ICT_SETTINGS),
    "finetune": flags(FINETUNE_SETTINGS),
}
# Walks on a run that is there, by a line of theirs.
WALKS = [
    "orqa answers runs/mine/corpus train.jsonl",
    "orqa eval predictions.jsonl test.jsonl --details each.jsonl",
    "orqa predict --run runs/mine dev.jsonl --out dev_predictions.jsonl",
]


class Block(NamedTuple):
    """A fenced block: where it stands, and what is in it."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


class Command(NamedTuple):
    where: str
    words: list[str]


def commands_of(block: Block) -> Iterator[Command]:
    """The simple commands of a bash block, without what redirects or assigns."""
    for number, line in enumerate(re.sub(r"\\\n", "  ", block.text).splitlines()):
        line = re.sub(r"(^|\s)#.*|^\w+=\(.*\)", "", line)  # comments and arrays
        # A synopsis: what is in brackets may be left out, and so may be there.
        line = re.sub(r"\s\[([^\[\]]*)\]", r" \1", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
        lexer.commenters, lexer.whitespace_split = "", True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if not set(token) <= set(";&|<>()"):
                words.append(token)
                continue
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words and not token.startswith(("<", ">")):
                yield Command(f"{block.where} + {number}", words)
            words = [] if not token.startswith(("<", ">")) else [*words, token]


COMMANDS = [
    command for block in BLOCKS if block.language == "bash" for command in commands_of(block)
]


@pytest.fixture(scope="module")
def parser():
    return cli._parser(whole=True)


def check_orqa(parser, words: list[str]) -> None:
    """Raises what the command line would say of a wrong command, option or setting."""
    if ">" in words:
        words = words[: words.index(">")]
    command, *rest = words
    if command in cli._SETTINGS:
        cli._settings(command, rest)
    elif "--help" not in rest:
        parser.parse_args(words)


def check_script(words: list[str]) -> None:
    """A module that is there, with a config file that has the keys."""
    if words[0] == "-P":
        words = words[1:]
    if words[0] != "-m":
        assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"
        return
    module, *options = words[1:]
    if module in ("venv", "pip"):
        return
    if module == "pytest":
        assert all((ROOT / path).exists() for path in options if path.startswith("tests"))
        return
    assert importlib.util.find_spec(module), f"there is no module {module}"
    given = dict(option.split("=", 1) for option in options if option.startswith("--config"))
    if "--config" not in given:
        return
    config = load_config_file(ROOT / given.pop("--config"))
    for key in given:
        found = config
        for part in key.removeprefix("--config.").split("."):
            assert part in found, f"{key} is no key of the config file"
            found = found[part]


def check(parser, command: Command) -> None:
    program, *rest = command.words
    if program.endswith("orqa"):
        check_orqa(parser, rest)
    elif Path(program).name in ("python", "python3"):
        check_script(rest)
    elif program.startswith(("launch/", "./launch/")):
        assert (ROOT / program).is_file(), f"there is no {program}"
    else:
        assert Path(program).name in OTHERS, f"what is {program}?"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.where)
def test_a_command_line_is_one_that_the_command_takes(parser, monkeypatch, command):
    monkeypatch.chdir(ROOT)
    if " ".join(command.words) not in EXEMPT:
        check(parser, command)


def test_exemptions_are_needed():
    lines = {" ".join(command.words) for command in COMMANDS}
    assert set(EXEMPT) <= lines


def test_a_command_in_the_text_is_one_there_is(parser):
    """As `orqa finetune --evidence bm25` in a sentence, which is not all of a command line."""
    for page in PAGES:
        for told in re.findall(r"`orqa ([a-z-]+[^`]*)`", page.read_text("utf-8")):
            command, *rest = told.replace("\n", " ").split()
            if command.startswith("scann"):  # rows of a table in docs/results.md
                continue
            known = parser._subparsers._group_actions[0].choices
            assert command in known, f"{page.name}: orqa {told}"
            options = {text for action in known[command]._actions for text in action.option_strings}
            used = {word for word in rest if word.startswith("--")}
            assert used <= options | {"--help"}, f"{page.name}: orqa {told}"


@pytest.mark.parametrize(
    "line",
    [
        "orqa trian --run r",
        "orqa ask --run r --colour Who?",
        "orqa finetune --run r --train t --epohcs 3",
        "orqa ict --run r",
        "orqa ask Who?",
        "python -m experiments.ict_pretrain --config=experiments/configs/ict.py --config.setps=3",
        "python -m experiments.ict_pretrain --config=experiments/configs/none.py",
        "python -m experiments.none",
        "launch/none.sh",
        "oqra ask",
    ],
)
def test_a_wrong_command_line_is_found(parser, monkeypatch, line):
    monkeypatch.chdir(ROOT)
    (command,) = commands_of(Block(ROOT / "README.md", 1, "bash", line))
    with pytest.raises((OrqaError, AssertionError)):
        check(parser, command)


# --- What runs ---


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder as the pages take it for granted: documents, pairs, an encoder, `runs/mine`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENCODER", str(world().encoder))
    write_jsonl(tmp_path / "documents.jsonl", documents())
    for name, part in (("train", slice(20)), ("dev", slice(20, 25)), ("test", slice(25, 30))):
        write_jsonl(tmp_path / f"{name}.jsonl", questions()[part])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "encoder").symlink_to(world().encoder)
    return tmp_path


def put_run(desk: Path, name: str) -> None:
    """A fine-tuned run that can be written beside without harm to the one that tests share."""
    run = desk / "runs" / name
    shutil.copytree(trained_run(), run, symlinks=True)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.where)
def test_a_python_block_runs(desk, block):
    put_run(desk, "mine")
    exec(compile(block.text, block.where, "exec"), {"__name__": "snippet"})


def bash_block(line: str) -> Block:
    (block,) = (block for block in BLOCKS if block.language == "bash" and line in block.text)
    return block


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_walk_from_documents_to_numbers(desk, trains):
    """By default with the world's two trained models in the place of its own."""
    run = desk / "runs" / "mine"
    run.mkdir()
    for command in commands_of(bash_block("orqa corpus documents.jsonl --out runs/mine/corpus")):
        name, *rest = (os.path.expandvars(word) for word in command.words[1:])
        if name in ("ict", "finetune") and not trains:
            shutil.copytree(trained_run() / name, run / name)
        else:
            run_orqa([name, *rest, *SMALL.get(name, [])])
    assert (desk / "predictions.jsonl").exists()


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_through_the_commands(desk, walk):
    block = bash_block(walk)
    put_run(desk, "mine")
    put_run(desk, "other")
    for name, system in (("predictions", "orqa"), ("ours", "orqa"), ("theirs", "bm25")):
        if f"{name}.jsonl" in block.text and f"--out {name}.jsonl" not in block.text:
            asked = ["--run", str(trained_run()), "test.jsonl", "--out", f"{name}.jsonl"]
            run_orqa(["predict", *asked, "--system", system])
    for command in commands_of(block):
        run_orqa(command.words[1:])


def run_orqa(arguments: list[str]) -> None:
    assert cli.main(arguments) == 0, arguments


# --- Pages ---


def load_reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_what_the_code_says():
    reference = load_reference()
    committed = reference.PAGE.read_text("utf-8")
    assert committed == reference.configuration_page(), "run `python -m docs.reference`"
    listed = {cls.__name__ for _, _, cls in reference.SETTINGS}
    assert {settings.name for settings in cli._SETTINGS.values()} <= listed
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "experiments").glob("*.py"))
    assert set(re.findall(r"run_experiment\((\w+Config)", scripts)) <= listed


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r": ([\w/]+\.md)$", config, re.MULTILINE)
    assert sorted(listed) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.name != "README.md"
    )


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed"
)
def test_the_site_builds_and_calls_no_other_host(tmp_path):
    built = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    pages = list(built.rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    for page in pages:
        # A link is followed by a reader; these would be by the browser.
        for tag in re.findall(r"<(?!a\b|/)[^>]*>", page.read_text("utf-8")):
            assert not re.search(r"""\b(src|href|srcset|action)=["']?(https?:)?//""", tag), tag
    styles = "".join(path.read_text("utf-8") for path in built.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)
