"""Corpora beyond one machine: the block store, and where answers stand, as Apache Beam pipelines.

The functions are those of the local build, so blocks, their numbers and the fingerprint are the
same. One worker reads a file, any number of them pack its pages, and one at the end puts the parts
in order, as numbering and hashing need. Sources, stores and what is written may be URLs that Beam
knows, such as gs://bucket/folder; other paths every worker has to see under the same name.
`docs/beam.md` says how to run it on Dataflow, Flink and Spark.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import posixpath
import shutil
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orqa_jax.corpus.build import StoreWriter, check_out, chunk_pages, pack_pages
from orqa_jax.corpus.pack import check_limit
from orqa_jax.corpus.postings import shard_postings
from orqa_jax.corpus.readers import (
    KINDS,
    Page,
    Skipped,
    SourceFile,
    find_files,
    kind_of_name,
    read_file,
)
from orqa_jax.corpus.store import (
    MANIFEST_NAME,
    SCHEMA,
    SCHEMA_VERSION,
    TOKENIZER_NAME,
    open_shard,
    read_manifest,
)
from orqa_jax.errors import OrqaError
from orqa_jax.storage import is_url
from orqa_jax.text.languages import DEFAULT, check_language
from orqa_jax.text.wordpiece import WordPiece

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _File:
    """A file to read; `url` is where it is fetched from, "" for a path that workers see."""

    number: int
    source: str
    url: str
    file: SourceFile


@dataclass(frozen=True)
class _Chunk:
    """Consecutive pages of one file."""

    file: int
    number: int
    pages: list[Page]


@dataclass(frozen=True)
class _Part:
    """The blocks of a chunk, packed in a file of their own at `url`."""

    file: int
    number: int
    url: str
    documents: int
    empty: int


@dataclass(frozen=True)
class _Counts:
    """What was seen in one file: pages, and by reason those that are no articles."""

    file: int
    pages: int
    skipped: Counter[str]


def build_with_beam(
    sources: Sequence[str],
    out: str,
    tokenizer: WordPiece,
    *,
    max_wordpieces: int = 288,
    language: str = DEFAULT,
    options: Sequence[str] = (),
) -> None:
    """Builds the store that `build.build_corpus` builds, to the same fingerprint.

    A store at a path is renamed when it is finished; at a URL its manifest is written last. Packed
    parts lie beside it until then.

    Args:
        sources: files and folders, see `readers.read_documents`; or URLs of files with an ending
            that tells their kind, where ``*`` stands for any characters.
        out: folder to make.
        tokenizer: what the encoder to be trained uses.
        max_wordpieces: limit on ``[CLS] title [SEP] block [SEP]``.
        language: of the documents, see `build.build_corpus`.
        options: of Beam, such as ``--runner=DataflowRunner``.

    Raises:
        OrqaError: Beam is not installed, a source is missing, or `out` is taken. What goes wrong on
            a worker (a damaged file, no text at all) is raised as its runner reports it.
    """
    beam = _beam()
    from apache_beam.io.filesystems import FileSystems

    check_limit(max_wordpieces)
    check_language(language)
    out = _from_anywhere(out)
    if not is_url(out):
        check_out(Path(out), [source for source in sources if not is_url(source)])
    elif FileSystems.exists(f"{out}/{MANIFEST_NAME}"):
        raise OrqaError(f"{out} is a corpus already; remove it or choose another folder.")
    files = _find_files(sources)
    parts = f"{out}.parts-{uuid.uuid4().hex}"
    FileSystems.mkdirs(parts)
    try:
        with beam.Pipeline(options=_pipeline_options(options)) as pipeline:
            read = (
                pipeline
                | "Files" >> beam.Create(files)
                | "Spread files" >> beam.Reshuffle()
                | "Read" >> beam.FlatMap(_read).with_outputs("counts", main="chunks")
            )
            packed = (
                read.chunks
                | "Spread chunks" >> beam.Reshuffle()
                | "Pack" >> beam.Map(_pack, parts, tokenizer, max_wordpieces)
            )
            about = {
                "max_wordpieces": max_wordpieces,
                "language": language,
                "sources": [str(each) for each in sources],
            }
            _ = (
                (packed, read.counts)
                | beam.Flatten()
                | "Gather" >> beam.combiners.ToList()
                | "Write" >> beam.Map(_write, out, files, tokenizer, about)
            )
    finally:
        FileSystems.delete([parts])
    logger.info("%s is finished.", out)


def find_answers_with_beam(
    store: str,
    questions: Mapping[str, Sequence[str]],
    out: str,
    *,
    options: Sequence[str] = (),
) -> None:
    """Writes for each question in which blocks of a store its answers stand.

    A match is what `postings.answer_postings` calls one, and what fine-tuning learns from. `out` is
    JSONL in the order of the questions, ``{"id": ..., "blocks": [numbers, ascending]}``.

    Args:
        store: folder of a block store.
        questions: from the id of each question to its answers.
        out: file to write.
        options: of Beam.

    Raises:
        OrqaError: Beam is not installed, or an input cannot be read.
    """
    beam = _beam()
    store, out = _from_anywhere(store), _from_anywhere(out)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        manifest = read_manifest(_fetch(f"{store}/{MANIFEST_NAME}", folder).parent)
        tokenizer = WordPiece.load(_fetch_folder(f"{store}/{TOKENIZER_NAME}", folder))
    answers = tokenizer.encode_answers(list(questions.values()))
    shards, first_block = [], 0
    for entry in manifest["shards"]:
        shards.append((first_block, entry))
        first_block += entry["blocks"]
    with beam.Pipeline(options=_pipeline_options(options)) as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(shards)
            | "Spread shards" >> beam.Reshuffle()
            | "Find" >> beam.FlatMap(_find_answers, store, answers, tokenizer.continues_word)
            | "Gather" >> beam.combiners.ToList()
            | "Write" >> beam.Map(_write_answers, out, list(questions))
        )
    logger.info("%s is finished.", out)


def _beam() -> Any:
    try:
        import apache_beam
    except ImportError as error:
        raise OrqaError(
            "Apache Beam is not installed; give it an environment of its own, with "
            "`pip install orqa_jax[beam]`."
        ) from error
    return apache_beam


def _pipeline_options(options: Sequence[str]) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    return PipelineOptions(list(options))


def _from_anywhere(path: str) -> str:
    """A path that means the same in the working folder of any worker."""
    return path if is_url(path) else os.path.abspath(path)


def _find_files(sources: Sequence[str]) -> list[_File]:
    from apache_beam.io.filesystems import FileSystems

    found: list[_File] = []
    for source in map(str, sources):
        if not is_url(source):
            for file in find_files([source]):
                file = dataclasses.replace(file, path=file.path.absolute())
                found.append(_File(0, source, "", file))
            continue
        matched = FileSystems.match([source])[0].metadata_list
        if not matched:
            raise OrqaError(f"There is no file {source}; check the URL.")
        for each in sorted(matched, key=lambda each: each.path):
            name = Path(posixpath.basename(each.path))
            kind = kind_of_name(name)
            if kind is None:
                raise OrqaError(f"{each.path} is of no known kind; orqa reads {KINDS}.")
            file = SourceFile(name, kind, name.name, Path(source), each.size_in_bytes)
            found.append(_File(0, source, each.path, file))
    return [dataclasses.replace(file, number=number) for number, file in enumerate(found)]


def _fetch(path: str, folder: Path) -> Path:
    """A path as it is; the file behind a URL as a copy in `folder`."""
    if not is_url(path):
        return Path(path)
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    copy = folder / posixpath.basename(path)
    raw = CompressionTypes.UNCOMPRESSED
    with FileSystems.open(path, compression_type=raw) as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target)
    return copy


def _fetch_folder(path: str, folder: Path) -> Path:
    if not is_url(path):
        return Path(path)
    from apache_beam.io.filesystems import FileSystems

    copy = folder / posixpath.basename(path)
    copy.mkdir()
    for each in FileSystems.match([f"{path}/*"])[0].metadata_list:
        _fetch(each.path, copy)
    return copy


def _store_file(path: Path, url: str) -> None:
    from apache_beam.io.filesystems import FileSystems

    with path.open("rb") as source, FileSystems.create(url) as target:
        shutil.copyfileobj(source, target)


# --- What workers do ------------------------------------------------------------------------------


def _read(source: _File) -> Iterator[Any]:
    """Yields the chunks of a file, then what was counted in it."""
    skipped = Skipped()
    pages = 0
    with tempfile.TemporaryDirectory() as scratch:
        file = source.file
        if source.url:
            file = dataclasses.replace(file, path=_fetch(source.url, Path(scratch)))
        chunks = chunk_pages(read_file(file, skipped), defaultdict(float))
        for number, (chunk, _) in enumerate(chunks):
            pages += len(chunk)
            yield _Chunk(source.number, number, chunk)
    yield _beam().pvalue.TaggedOutput("counts", _Counts(source.number, pages, skipped.counts))


def _pack(chunk: _Chunk, parts: str, tokenizer: WordPiece, max_wordpieces: int) -> _Part:
    from apache_beam.io.filesystems import FileSystems

    packed = pack_pages(chunk.pages, tokenizer, max_wordpieces)
    # A runner may do the same work twice at the same time.
    url = f"{parts}/{uuid.uuid4().hex}.arrow"
    with FileSystems.create(url) as sink, pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(packed.batch)
    return _Part(chunk.file, chunk.number, url, packed.documents, packed.empty)


def _write(
    gathered: Sequence[_Part | _Counts],
    out: str,
    files: Sequence[_File],
    tokenizer: WordPiece,
    about: dict[str, Any],
) -> None:
    """Writes the store from all parts, in the order of their files."""
    from apache_beam.io.filesystems import FileSystems

    skipped = Counter[str]()
    pages = Counter[str]()
    for counts in gathered:
        if isinstance(counts, _Counts):
            skipped.update(counts.skipped)
            pages[files[counts.file].source] += counts.pages
    for source in about["sources"]:
        if not pages[source]:
            raise OrqaError(f"{source} holds no documents; remove it from the sources.")
    parts = [part for part in gathered if isinstance(part, _Part)]
    documents = sum(part.documents for part in parts)
    skipped["empty"] += sum(part.empty for part in parts)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if is_url(out) else Path(f"{out}.partial-{uuid.uuid4().hex}")
        folder.mkdir(exist_ok=True)
        tokenizer.save(folder / TOKENIZER_NAME)
        writer = StoreWriter(folder)
        for part in sorted(parts, key=lambda part: (part.file, part.number)):
            with FileSystems.open(part.url) as source:
                (batch,) = pa.ipc.open_stream(source.read())
            writer.add(batch)
        if not writer.blocks:
            raise OrqaError(
                f"There is no text in {', '.join(about['sources'])}: "
                f"{documents + skipped.total()} documents, all empty or no articles."
            )
        shards, fingerprint = writer.finish()
        manifest = about | {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "documents": documents,
            "skipped": dict(sorted(skipped.items())),
            "blocks": writer.blocks,
            "wordpieces": writer.wordpieces,
            "shards": shards,
            "build": {"text_bytes": writer.text_bytes},
        }
        (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        if not is_url(out):
            os.rename(folder, out)
            return
        files_of_store = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in sorted(files_of_store, key=lambda path: path.name == MANIFEST_NAME):
            _store_file(path, f"{out}/{path.relative_to(folder).as_posix()}")


def _find_answers(
    shard: tuple[int, dict[str, Any]],
    store: str,
    answers: Sequence[Sequence[npt.NDArray[np.int32]]],
    continues_word: npt.NDArray[np.bool_],
) -> Iterator[tuple[int, list[int]]]:
    """Yields (question, its blocks in this shard)."""
    first_block, entry = shard
    with tempfile.TemporaryDirectory() as scratch:
        path = _fetch(f"{store}/{entry['file']}", Path(scratch))
        opened = open_shard(path.parent, entry, first_block=first_block)
        for question, blocks in enumerate(shard_postings([opened], answers, continues_word)):
            if len(blocks):
                yield question, blocks.tolist()


def _write_answers(found: Sequence[tuple[int, list[int]]], out: str, ids: Sequence[str]) -> None:
    blocks: list[list[int]] = [[] for _ in ids]
    for question, some in found:
        blocks[question] += some
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if is_url(out) else Path(out).parent
        written = folder / f"{posixpath.basename(out)}.partial-{uuid.uuid4().hex}"
        with written.open("w", encoding="utf-8") as file:
            for identifier, numbers in zip(ids, blocks, strict=True):
                line = {"id": identifier, "blocks": sorted(numbers)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if is_url(out):
            _store_file(written, out)
        else:
            os.replace(written, out)
