"""A made-up world small enough to train on in seconds: documents, a vocabulary, a BERT, questions.

Everything follows from one seed, and what takes time is made once in a test session.
"""

import atexit
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from orqa_jax.cli import main
from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.models.bert import BertConfig
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.finetune import FinetuneConfig
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.metrics import TIMINGS, read_metrics

PLACES = [
    "Brellow",
    "Quenby",
    "Tarnholt",
    "Ostrimar",
    "Velduna",
    "Hesketon",
    "Mirrowick",
    "Palvene",
]
RIVERS = ["Ilse", "Darrow", "Umber", "Keth", "Solvane"]
PEOPLE = ["Anka Rill", "Tobin Marsh", "Ysolde Crake", "Perrin Voss", "Dunya Holt", "Emeric Stane"]
WORDS = (
    "the of in a and river flows past it live there from kept records for years each autumn is lit "
    "with lamps flood took old away founded when did who found"
)
TRADES = ["weaver", "miller", "painter", "glazier", "brewer", "cartographer"]
THINGS = [
    "clock tower",
    "copper bridge",
    "salt market",
    "glass works",
    "wind mill",
    "stone harbour",
]


def documents() -> list[dict[str, str]]:
    """Sixty documents of one to five sentences, some longer than one block."""
    rng = np.random.default_rng(7)
    made = []
    for number in range(60):
        place, person = PLACES[number % len(PLACES)], PEOPLE[number % len(PEOPLE)]
        year = 1200 + 13 * number
        thing, trade = rng.choice(THINGS), rng.choice(TRADES)
        sentences = [
            f"{person} founded the {thing} of {place} in {year}.",
            f"The river {rng.choice(RIVERS)} flows past it, and {rng.choice(TRADES)}s live there.",
            f"A {trade} from {rng.choice(PLACES)} kept the records for {number + 2} years.",
            f"Each autumn the {rng.choice(THINGS)} is lit with {number + 100} lamps.",
            f"In {year + 50} a flood took the old {rng.choice(THINGS)} away!",
        ]
        made.append(
            {
                "id": f"d{number}",
                "title": f"{thing.title()} of {place}",
                "text": " ".join(sentences[: 1 + number % 5]),
            }
        )
    return made


def questions() -> list[dict[str, Any]]:
    """A question about the founder, or the year, of every second document."""
    made = []
    for document in documents()[::2]:
        first = document["text"].split(". ")[0].rstrip(".")
        person, rest = first.split(" founded ")
        thing, year = rest.rsplit(" in ", 1)
        if len(made) % 2:
            made.append({"question": f"Who founded {thing} in {year}?", "answer": person})
        else:
            made.append({"question": f"When did {person} found {thing}?", "answer": [year]})
    return [{"id": f"q{number}", **line} for number, line in enumerate(made)]


def vocabulary() -> list[str]:
    """Special tokens and characters; most words whole, numbers and some names in pieces."""
    whole = WORDS.split()
    for phrase in [*PLACES[:5], *RIVERS, *PEOPLE[:4], *TRADES, *THINGS]:
        whole += phrase.lower().split()
    pieces = ["hesk", "##eton", "mirrow", "##wick", "pal", "##vene", "##s", "em", "##eric"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    characters = [*letters, *"0123456789"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    continued = [f"##{character}" for character in characters]
    return list(dict.fromkeys([*special, *whole, *pieces, *characters, *continued, *".,!?'\""]))


def write_jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def write_bert(folder: Path, tokenizer: WordPiece, *, seed: int = 3) -> Path:
    """A two-layer BERT of random weights, as Hugging Face lays it out."""
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 96,
    }
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (tokenizer.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (sizes["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(sizes["num_hidden_layers"])):
        dense = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        dense["attention.output.dense"] = (hidden, hidden)
        dense["intermediate.dense"] = (inner, hidden)
        dense["output.dense"] = (hidden, inner)
        for name, shape in dense.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    rng = np.random.default_rng(seed)
    # Larger than BERT's own start, so that untrained vectors of different texts differ clearly.
    tensors = {
        name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }
    for name in norms:
        tensors |= {f"{name}.weight": np.ones(hidden, np.float32)}
        tensors |= {f"{name}.bias": np.zeros(hidden, np.float32)}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = BertConfig.from_dict(sizes).to_dict()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tokenizer.save(folder)
    return folder


@dataclasses.dataclass(frozen=True)
class World:
    """Where the pieces lie: documents, encoder and questions in files, blocks in a store."""

    folder: Path
    documents: Path
    encoder: Path
    questions: Path
    tokenizer: WordPiece
    store: BlockStore


@functools.cache
def world() -> World:
    folder = Path(tempfile.mkdtemp(prefix="orqa_world_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = WordPiece.from_vocab(vocabulary())
    source = write_jsonl(folder / "documents.jsonl", documents())
    store = build_corpus([source], folder / "corpus", tokenizer, max_wordpieces=48, workers=1)
    return World(
        folder,
        source,
        write_bert(folder / "encoder", tokenizer),
        write_jsonl(folder / "questions.jsonl", questions()),
        tokenizer,
        store,
    )


ICT_SETTINGS: dict[str, Any] = {
    "steps": 6,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "question_length": 32,
    "block_length": 48,
    "projection_size": 16,
    "checkpoint_every": 4,
    "log_every": 2,
}
FINETUNE_SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "early_update_beam": 20,
    "reader_beam": 3,
    "reader_length": 64,
    "max_span_wordpieces": 6,
    "span_hidden_size": 16,
    "checkpoint_every": 2,
    "log_every": 2,
}


def ict_config(out: Path, **changes: Any) -> ICTConfig:
    """Settings under which ICT takes seconds."""
    places = {
        "corpus": str(world().store.folder),
        "encoder": str(world().encoder),
        "out": str(out),
    }
    return ICTConfig(**{**places, **ICT_SETTINGS, **changes})


def finetune_config(run: Path, **changes: Any) -> FinetuneConfig:
    """Settings under which fine-tuning in a run folder takes seconds."""
    places = {
        "corpus": str(run / "corpus"),
        "retriever": str(run / "ict" / "model"),
        "index": str(run / "index"),
        "train": str(world().questions),
        "out": str(run / "finetune"),
    }
    return FinetuneConfig(**{**places, **FINETUNE_SETTINGS, **changes})


def orqa(*arguments: Any) -> None:
    """Runs the command line in this process; it has to succeed."""
    assert main([str(argument) for argument in arguments]) == 0


def flags(settings: dict[str, Any]) -> list[str]:
    def flag(name: str, value: Any) -> str:
        name = name.replace("_", "-")
        if isinstance(value, bool):
            return f"--{name}" if value else f"--no-{name}"
        return f"--{name}={value}"

    return [flag(name, value) for name, value in settings.items()]


@functools.cache
def indexed_run() -> Path:
    """A run folder as it is before fine-tuning: corpus, ict, index and bm25."""
    run, encoder = world().folder / "run", world().encoder
    size = ["--max-wordpieces", "48", "--workers", "1"]
    orqa("corpus", world().documents, "--out", run / "corpus", "--encoder", encoder, *size)
    orqa("ict", "--run", run, "--encoder", encoder, *flags(ICT_SETTINGS))
    orqa("index", "--run", run)
    return run


@functools.cache
def trained_run() -> Path:
    """A whole run folder, fine-tuned too."""
    run = indexed_run()
    inputs = ["--encoder", world().encoder, "--train", world().questions]
    orqa("finetune", "--run", run, *inputs, *flags(FINETUNE_SETTINGS))
    return run


_SIGNAL = """
import os, signal, sys, time
from pathlib import Path

from orqa_jax.cli import main
from orqa_jax.train import metrics

saved, step, number, *arguments = sys.argv[1:]
add = metrics.MetricsLog.add


def add_and_signal(log, at, measured):
    if at == int(step):
        while not Path(saved).exists():
            time.sleep(0.05)
        os.kill(os.getpid(), int(number))
    add(log, at, measured)


# Jobs in the background of a shell start with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
metrics.MetricsLog.add = add_and_signal
sys.exit(main(arguments))
"""


def run_and_signal(
    config: ICTConfig | FinetuneConfig, *, at_step: int, number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Trains in another process, which gets a signal in the middle of a step."""
    command = "ict" if isinstance(config, ICTConfig) else "finetune"
    last_saved = (at_step - 1) // config.checkpoint_every * config.checkpoint_every
    saved = Path(config.out, "checkpoints", "steps", str(last_saved))
    script = [sys.executable, "-c", _SIGNAL, str(saved), str(at_step), str(int(number))]
    return subprocess.run(
        [*script, command, *flags(dataclasses.asdict(config))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=250,
    )


def start_training(config: ICTConfig | FinetuneConfig) -> subprocess.Popen[bytes]:
    """Starts a training in another process, on one device."""
    command = "ict" if isinstance(config, ICTConfig) else "finetune"
    code = "import sys; from orqa_jax.cli import main; sys.exit(main())"
    environment = {
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, command, *flags(dataclasses.asdict(config))],
        env=os.environ | environment,
        stderr=subprocess.DEVNULL,
    )


def run_and_kill(config: ICTConfig | FinetuneConfig, *, at_step: int) -> None:
    """Trains in another process, which dies (as of kill -9) in the middle of a step."""
    done = run_and_signal(config, at_step=at_step, number=signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL, done.stderr


def metrics_of(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics file, but for the time they took."""
    lines = read_metrics(out / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]


def equal_trees(a: Any, b: Any, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Compares two trees leaf by leaf; by default to the bit."""
    paths = [leaf[0] for leaf in jax.tree_util.tree_flatten_with_path(a)[0]]
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for path, x, y in zip(paths, jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(
            np.asarray(x), np.asarray(y), rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path)
        )


def equal_but_for_rounding(found: Any, expected: Any, *, steps: int) -> None:
    """Compares two trained trees. Adam turns rounding into steps of either sign, so the last bits
    grow with the steps."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    differences = [
        np.abs(np.asarray(x) - np.asarray(y)).ravel()
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    ]
    assert np.mean(np.concatenate(differences)) < 2e-5 * steps
    assert max(each.max() for each in differences) < 2e-3 * steps
