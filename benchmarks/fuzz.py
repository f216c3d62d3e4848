"""Mutates files of every kind that orqa reads, and reads them: success or one sentence, in time.

    nice -n 19 python -m benchmarks.fuzz --seconds 3600 --seed 0 --out fuzz.jsonl

Seeds are small files made here, by our own writers where there are some. Each execution takes one,
changes it (bits, bytes, cut, repeated and inserted pieces, lines exchanged, tokens of the format, a
piece of another file), and reads it in this process. What a reader may do is return or raise
OrqaError with a message on one line; anything else, or more than SECONDS_EACH, is a finding and is
printed with the reader, the seed and the number of the execution, from which it is made again:
``--only READER --first N --executions 1``. The process may take MEMORY bytes. Prints executions and
findings of each reader; ``--out`` appends them as a line of JSON, so that campaigns add up.
"""

import argparse
import collections
import gzip
import io
import json
import logging
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from safetensors.numpy import save
from test_hostile_files import tensor_pickle, torch_file

from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.markup import html_to_text, markdown_title, unwrap
from orqa_jax.corpus.readers import read_documents
from orqa_jax.corpus.release import read_tfrecords
from orqa_jax.corpus.store import read_manifest as read_corpus_manifest
from orqa_jax.corpus.wikitext import wikitext_to_text
from orqa_jax.errors import OrqaError
from orqa_jax.eval.predictions import read_predictions
from orqa_jax.index.manifest import read_manifest
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.torch_file import read_torch
from orqa_jax.models.weights import read_bert_config, read_safetensors
from orqa_jax.qa.datasets import load_dataset
from orqa_jax.qa.examples import Example, load_examples, save_examples
from orqa_jax.qa.files import load_question_file
from orqa_jax.text.wordpiece import WordPiece

SECONDS_EACH, MEMORY = 5, 4 << 30
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "owl", "##s", "a"]
# What formats are made of: structure, limits, and what other programs have choked on.
TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"\t", b"\r\n", b"\n", b"\0", b"null"),
    *(b"NaN", b"1e999", b"-1", b"9" * 30, b'"\\ud800"', b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3"),
    *(b"<", b">", b"</", b"<!--", b"]]>", b"<![CDATA[", b"&#", b"&#x110000;", b"&lt;", b"='"),
    *(b"{{", b"}}", b"[[", b"]]", b"{|", b"|}", b"'''", b"<ref>", b"==", b"\n*", b"\n|"),
    *(b"\x80" * 12, b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 2**63), struct.pack("<I", 2**31)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first execution")
    parser.add_argument("--executions", type=int, default=1 << 62)
    parser.add_argument("--only", help="one reader")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _too_long)
    done: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    spent: collections.Counter[str] = collections.Counter()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as scratch:
        readers = _readers(Path(scratch))
        names = [options.only] if options.only else sorted(readers)
        everything = [content for _, contents, _ in readers.values() for content in contents]
        end = time.monotonic() + options.seconds
        number = options.first
        while time.monotonic() < end and number < options.first + options.executions:
            for name in names:
                file, contents, read = readers[name]
                rng = random.Random(f"{options.seed} {name} {number}")
                content = mutate(rng.choice(contents), everything, rng)
                path = Path(scratch) / name.replace(" ", "-") / file
                path.write_bytes(content)
                started = time.perf_counter()
                problem = _problem(read, path)
                spent[name] += time.perf_counter() - started
                done[name] += 1
                refused[name] += problem == ""
                if problem:
                    key = f"{name}: {problem.splitlines()[-1][:150]}"
                    if key not in found:
                        found[key] = f"--seed {options.seed} --only '{name}' --first {number}"
                        print(f"FOUND {key}\n  {found[key]}\n{problem}", flush=True)
            number += 1
    print(f"{'reader':<22}{'executions':>12}{'refused':>10}{'a second':>10}")
    for name in names:
        rate = done[name] / max(spent[name], 1e-9)
        print(f"{name:<22}{done[name]:>12,}{refused[name] / done[name]:>10.0%}{rate:>10,.0f}")
    print(f"{done.total():,} executions, {len(found)} findings; next: --first {number}")
    if options.out:
        line = {"seed": options.seed, "first": options.first, "executions": done, "found": found}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class _TooLongError(BaseException):
    """Not an Exception, so that no reader takes it for damage."""


def _too_long(*unused: object) -> None:
    raise _TooLongError(f"more than {SECONDS_EACH} s")


def _problem(read: Callable[[Path], object], path: Path) -> str | None:
    """None for success, "" for a refusal in a sentence, else what went wrong."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS_EACH)
    try:
        read(path)
    except OrqaError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return "" if str(error) else "OrqaError without a message"
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if isinstance(error, KeyboardInterrupt):
            raise
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def mutate(content: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Some changes, seldom many; seldom none."""
    changed = bytearray(content)
    for _ in range(min(int(rng.expovariate(0.4)) + (rng.random() < 0.97), 12)):
        size = len(changed)
        at = rng.randrange(size + 1)
        length = min(int(rng.expovariate(0.05)) + 1, size - at)
        match rng.randrange(9):
            case 0 if size:
                changed[at % size] ^= 1 << rng.randrange(8)
            case 1 if size:
                changed[at % size] = rng.randrange(256)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                del changed[at:]
            case 5:
                changed[at:at] = rng.choice(TOKENS) * rng.choice((1, 1, 1, 3, 300))
            case 6:
                changed[at : at + length] = rng.choice(TOKENS)
            case 7:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                changed[at:at] = other[start : start + int(rng.expovariate(0.02))]
            case 8:
                lines = bytes(changed).split(b"\n")
                rng.shuffle(lines)
                changed = bytearray(b"\n".join(lines))
        del changed[1 << 20 :]
    return bytes(changed)


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _readers(scratch: Path) -> dict[str, tuple[str, list[bytes], Callable[[Path], object]]]:
    """By name: what the file is called, seeds, and what reads it."""
    documents = [{"id": str(n), "title": f"t{n}", "text": "Owls hunt. \u00e9"} for n in range(3)]
    jsonl = "".join(json.dumps(d) + "\n" for d in documents).encode()
    tokenizer = WordPiece.from_vocab(VOCABULARY)
    tokenizer.save(scratch / "made")
    save_examples(scratch / "made" / "q.jsonl", [Example("1", "Who?", ("a", "b"))])
    (scratch / "made" / "d.jsonl").write_bytes(jsonl)
    build_corpus([scratch / "made" / "d.jsonl"], scratch / "made" / "corpus", tokenizer, workers=1)
    questions = (scratch / "made" / "q.jsonl").read_bytes()
    squad = {
        "data": [
            {
                "title": "t",
                "paragraphs": [
                    {
                        "context": "Owls hunt.",
                        "qas": [
                            {
                                "id": "1",
                                "question": "Who?",
                                "answers": [{"text": "Owls", "answer_start": 0}],
                            }
                        ],
                    }
                ],
            }
        ]
    }
    nq = {
        "example_id": 7,
        "question_text": "Who hunts?",
        "document_text": "<P> Owls hunt . </P>",
        "annotations": [{"short_answers": [{"start_token": 1, "end_token": 2}]}],
    }
    trivia = {
        "Data": [
            {"QuestionId": "1", "Question": "Who?", "Answer": {"Value": "a", "Aliases": ["b"]}}
        ]
    }
    dpr = [
        {"question": "Who?", "answers": ["a"], "ctxs": [{"id": "1", "title": "t", "text": "x"}]},
        {
            "question": "Who?",
            "predictions": [{"top_k": 1, "prediction": {"text": "a", "score": 1}}],
        },
    ]
    page = "<page><title>t</title><ns>0</ns><id>1</id><revision><text>'''A''' [[b|c]]</text>"
    xml = f"<mediawiki>{page}</revision></page></mediawiki>".encode()
    wiki = (
        b"'''Owl''' {{a|b={{c}}}} [[File:x.jpg|thumb|y [[z]]]] <ref name=a>r</ref> (born ;, 1)\n"
        b"== H ==\n* one\n* two\n{| class=x\n! h\n|-\n| c || d\n|}\n<!-- n --> [http://a b] &lt;\n"
    )
    html = (
        b'<!DOCTYPE html><html><title>t</title><h1 class="x">h</h1><p>One &amp; <b>two</b><br/>'
        b"<script>if (a < b) {}</script><ul><li>x</ul><!-- c --></html>"
    )
    record = b"\x0a\x05owls."
    tfrecord = b"".join(struct.pack("<Q", len(record)) + b"crc_" + record + b"crc_" for _ in "ab")
    safe = save({"a": np.ones((2, 3), np.float32), "b/c": np.zeros(4, np.int32)})
    torch_file(scratch / "made" / "torch.bin", tensor_pickle((2, 2), (2, 1)))
    bert = {
        **{"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1},
        "intermediate_size": 4,
    }
    manifest = (scratch / "made" / "corpus" / "manifest.json").read_bytes()
    references = load_examples(scratch / "made" / "q.jsonl")

    def documents_of(path: Path) -> int:
        return sum(len(document.text) for document in read_documents([path]))

    def text_of(convert: Callable[[str], object]) -> Callable[[Path], object]:
        return lambda path: convert(path.read_bytes().decode("utf-8", "replace"))

    def dataset(name: str) -> Callable[[Path], object]:
        return lambda path: load_dataset(name, None, [path])

    readers = {
        "documents jsonl": ("d.jsonl", [jsonl, gzip.compress(jsonl)], documents_of),
        "documents tsv": ("d.tsv", [b'id\ttext\ttitle\n1\t"a ""b"""\tt\n2\tc\tu\n'], documents_of),
        "wikiextractor": (
            "wiki_00",
            [b'<doc id="1" url="u" title="t &amp; u">\nt &amp; u\n\nOwls.\n</doc>\n'],
            documents_of,
        ),
        "mediawiki": ("d.xml", [xml], documents_of),
        "wikitext": ("wiki.txt", [wiki], text_of(wikitext_to_text)),
        "html": ("d.html", [html], text_of(html_to_text)),
        "markdown": (
            "d.md",
            [b"# Title #\n\n```\ncode\n```\nA paragraph.\n\nUnder\n=====\n- item\n"],
            text_of(lambda text: (markdown_title(text), unwrap(text))),
        ),
        "questions jsonl": ("q.jsonl", [questions, gzip.compress(questions)], load_examples),
        "questions csv": (
            "q.csv",
            [
                b'question,answer,id\nWho?,"[""a"", \'b\']",1\nWhen?,c,2\n',
                b"Who?\ta\nWhen?\t['b']\n",
            ],
            load_question_file,
        ),
        "squad": ("squad.json", [json.dumps(squad).encode()], dataset("squad")),
        "triviaqa": ("t.json", [json.dumps(trivia).encode()], dataset("trivia_qa")),
        "natural questions": (
            "nq.jsonl",
            [json.dumps(nq).encode() + b"\n"],
            dataset("natural_questions"),
        ),
        "predictions": (
            "p.jsonl",
            [
                b'{"id": "1", "answer": "a", "retrieved": [0, 1], "candidates": [{}]}\n',
                b'{"question": "Who?", "prediction": "a", "confidence": 0.5}\n',
                b'{"1": "a"}',
                json.dumps(dpr[:1]).encode(),
                json.dumps(dpr[1:]).encode(),
            ],
            lambda path: read_predictions(path, references),
        ),
        "tfrecord": ("b.tfr", [tfrecord], lambda path: list(read_tfrecords(path))),
        "safetensors": ("m.safetensors", [safe], read_safetensors),
        "torch": ("m.bin", [(scratch / "made" / "torch.bin").read_bytes()], read_torch),
        "tensorflow": ("m.ckpt.index", [_tensorflow_index()], read_tensorflow),
        "bert config": ("config.json", [json.dumps(bert).encode()], read_bert_config),
        "vocabulary": (
            "vocab.txt",
            ["\n".join(VOCABULARY).encode()],
            lambda path: WordPiece.load(path.parent),
        ),
        "tokenizer": (
            "tokenizer.json",
            [(scratch / "made" / "tokenizer.json").read_bytes()],
            lambda path: WordPiece.load(path.parent),
        ),
        "corpus manifest": (
            "manifest.json",
            [manifest],
            lambda path: read_corpus_manifest(path.parent),
        ),
        "index manifest": (
            "manifest.json",
            [b'{"schema": 1, "corpus_fingerprint": "a", "count": 3}'],
            lambda path: read_manifest(
                path.parent, "an index", schema=1, fingerprints={"corpus": "a"}, remedy="do it"
            ),
        ),
    }
    for name in readers:
        (scratch / name.replace(" ", "-")).mkdir()
    # Beside the index there are data to point to.
    (scratch / "tensorflow" / "m.ckpt.data-00000-of-00001").write_bytes(bytes(64))
    return readers


def _tensorflow_index() -> bytes:
    """A table of one float32 tensor of 2 x 2, by hand: block, index block, footer."""

    def block(entries: list[tuple[bytes, bytes]]) -> bytes:
        made = io.BytesIO()
        for key, value in entries:
            made.write(bytes([0, len(key), len(value)]) + key + value)
        made.write(struct.pack("<II", 0, 1))
        return made.getvalue()

    shape = b"\x12\x02\x08\x02\x12\x02\x08\x02"
    tensor = b"\x08\x01\x12" + bytes([len(shape)]) + shape + b"\x28\x10"
    data = block([(b"", b"\x08\x01"), (b"weight", tensor)])
    index = block([(b"x", bytes([0, len(data)]))])
    place = len(data) + 5
    handles = bytes([0, 0, place, len(index)])
    footer = handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return data + bytes(5) + index + bytes(5) + footer


if __name__ == "__main__":
    main()
