"""Building a corpus: one process reads, all cores pack, one process writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from orqa_jax.checksums import describe_files
from orqa_jax.corpus.pack import Packed, Seconds, check_limit, pack, timed
from orqa_jax.corpus.readers import Page, Skipped, SourceFile, find_files, read_pages, to_document
from orqa_jax.corpus.store import (
    MANIFEST_NAME,
    SCHEMA,
    SCHEMA_VERSION,
    TOKENIZER_NAME,
    BlockStore,
)
from orqa_jax.errors import OrqaError
from orqa_jax.locks import hold
from orqa_jax.text.languages import DEFAULT, check_language
from orqa_jax.text.wordpiece import WordPiece

logger = logging.getLogger(__name__)

# Shards and chunks are counted in content, never in workers: the store does not depend on those.
_CHUNK_CHARACTERS = 500_000
_SHARD_BYTES = 128 << 20
_SECONDS_BETWEEN_LOG_LINES = 30
# Names each broken record that was skipped, and says what is wrong with it.
DEFECTS_NAME = "skipped.jsonl"

OnError = Literal["stop", "skip"]


def build_corpus(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    tokenizer: WordPiece,
    *,
    max_wordpieces: int = 288,
    language: str = DEFAULT,
    on_error: OnError = "stop",
    workers: int | None = None,
) -> BlockStore:
    """Reads documents, packs them into blocks, and writes them as a block store.

    The store grows in ``<out>.partial`` and is renamed when it is finished. What a killed build
    left there is cleared away by the next one; an exception, Ctrl-C included, clears it at once.

    Args:
        sources: files and folders; see `readers.read_documents`.
        out: folder to make; may exist if it is empty.
        tokenizer: what the encoder to be trained uses; a copy goes into the store.
        max_wordpieces: limit on ``[CLS] title [SEP] block [SEP]``; the title gets at most a
            quarter of it.
        language: of the documents, for what counts words (BM25) or knows grammar (cloze pairs);
            see `languages.check_language`.
        on_error: what to do about a broken record: "stop", or "skip" it, count it, and name it in
            ``skipped.jsonl`` of the store.
        workers: processes that pack; one for each core by default. The store is the same for any
            number. 1 packs in this process. Otherwise a script needs the usual
            ``if __name__ == "__main__":`` around what it runs.

    Raises:
        OrqaError: a source cannot be read, `out` is taken, there is no such language, or no text at
            all.
    """
    out = Path(out).absolute()
    check_limit(max_wordpieces)
    check_language(language)
    workers = _count_workers(workers)
    check_out(out, sources)
    files = find_files(sources)

    with partial_folder(out) as partial:
        tokenizer.save(partial / TOKENIZER_NAME)
        writer = StoreWriter(partial)
        with _skipping(partial / DEFECTS_NAME, on_error) as skipped:
            built = _write_blocks(writer, files, tokenizer, max_wordpieces, workers, skipped)
        if not writer.blocks:
            raise OrqaError(_no_text(sources, built))
        shards, fingerprint = writer.finish()
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "max_wordpieces": max_wordpieces,
            "language": language,
            "documents": built.documents,
            "skipped": dict(sorted(built.skipped.items())),
            "blocks": writer.blocks,
            "wordpieces": writer.wordpieces,
            "sources": [str(source) for source in sources],
            "shards": shards,
            "build": {
                "workers": workers,
                "seconds": round(built.elapsed, 2),
                "text_bytes": writer.text_bytes,
                "cpu_seconds": {stage: round(s, 2) for stage, s in built.seconds.items()},
            },
        }
        (partial / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        try:
            os.rename(partial, out)
        except OSError as error:
            raise OrqaError(f"{out} cannot be made ({error.strerror}).") from error
    _log_built(out, writer, built)
    return BlockStore(out)


def append_to_corpus(
    sources: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    on_error: OnError = "stop",
    workers: int | None = None,
) -> BlockStore:
    """Adds documents to a finished corpus: new blocks follow the ones that are there.

    The result, fingerprint included, is that of building from all documents at once. What was made
    from the corpus before is known to belong to its first blocks (`BlockStore.earlier`). The store
    takes the new blocks in at once, when its manifest is replaced; until then it stays as it was.

    Args:
        sources: files and folders of new documents; see `readers.read_documents`.
        folder: of the store.
        on_error: see `build_corpus`.
        workers: see `build_corpus`.

    Raises:
        OrqaError: a source cannot be read, holds no text, or has a document with an id that is in
            the corpus already.
    """
    folder = Path(folder).absolute()
    workers = _count_workers(workers)
    files = find_files(sources)
    with partial_folder(folder) as partial:
        store = BlockStore(folder)
        tokenizer = WordPiece.load(store.tokenizer_folder)
        writer = StoreWriter(partial, first_shard=len(store.shards))
        for shard in store.shards:
            writer.hash(shard.batch)
        defects = partial / DEFECTS_NAME
        if (folder / DEFECTS_NAME).exists():
            shutil.copyfile(folder / DEFECTS_NAME, defects)
        with _skipping(defects, on_error) as skipped:
            built = _write_blocks(writer, files, tokenizer, store.max_wordpieces, workers, skipped)
        if not writer.blocks:
            raise OrqaError(_no_text(sources, built))
        shards, fingerprint = writer.finish()
        _check_new(store, [partial / entry["file"] for entry in shards])
        old = store.manifest
        counts = Counter[str](old["skipped"])
        counts.update(built.skipped)
        manifest = old | {
            "fingerprint": fingerprint,
            "documents": old["documents"] + built.documents,
            "skipped": dict(sorted(counts.items())),
            "blocks": old["blocks"] + writer.blocks,
            "wordpieces": old["wordpieces"] + writer.wordpieces,
            "sources": [*old["sources"], *map(str, sources)],
            "shards": old["shards"] + shards,
            "earlier": [
                *old.get("earlier", []),
                {"fingerprint": store.fingerprint, "blocks": len(store)},
            ],
        }
        # A shard that no manifest names yet does no harm, should this be interrupted.
        for entry in shards:
            os.replace(partial / entry["file"], folder / entry["file"])
        if defects.exists():
            os.replace(defects, folder / DEFECTS_NAME)
        written = partial / MANIFEST_NAME
        written.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        os.replace(written, folder / MANIFEST_NAME)
        partial.rmdir()
    _log_built(folder, writer, built)
    return BlockStore(folder)


@dataclass
class _Built:
    """What became of the documents, and the time that it took."""

    documents: int
    skipped: Counter[str]
    seconds: Seconds
    elapsed: float


def _write_blocks(
    writer: StoreWriter,
    files: Sequence[SourceFile],
    tokenizer: WordPiece,
    max_wordpieces: int,
    workers: int,
    skipped: Skipped,
) -> _Built:
    started = time.perf_counter()
    seconds: Seconds = defaultdict(float)
    documents = 0
    progress = _Progress(total_bytes=sum(file.bytes for file in files))
    chunks = chunk_pages(read_pages(files, skipped), seconds)
    packed_chunks = _pack_in_order(chunks, tokenizer, max_wordpieces, workers)
    with progress, contextlib.closing(packed_chunks):
        for packed, bytes_read in packed_chunks:
            with timed(seconds, "writing"):
                writer.add(packed.batch)
            skipped.counts["empty"] += packed.empty
            for stage, spent in packed.seconds.items():
                seconds[stage] += spent
            documents += packed.documents
            progress.update(documents, writer.text_bytes, bytes_read)
    return _Built(documents, skipped.counts, seconds, time.perf_counter() - started)


@contextlib.contextmanager
def _skipping(defects: Path, on_error: OnError) -> Iterator[Skipped]:
    """Collects what is skipped; the file of defects is there if there are any."""
    if on_error == "stop":
        yield Skipped()
        return
    with defects.open("a", encoding="utf-8") as file:
        skipped = Skipped(defects=file)
        yield skipped
    if not defects.stat().st_size:
        defects.unlink()
    if broken := skipped.counts["broken"]:
        logger.warning(
            "%d broken records or files were skipped; %s names them.", broken, DEFECTS_NAME
        )


def _count_workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise OrqaError(f"workers is {workers} and has to be at least 1.")
    return workers or os.cpu_count() or 1


def _no_text(sources: Sequence[str | os.PathLike[str]], built: _Built) -> str:
    return (
        f"There is no text in {', '.join(map(str, sources))}: "
        f"{built.documents + built.skipped.total()} documents, all empty or no articles."
    )


def _log_built(out: Path, writer: StoreWriter, built: _Built) -> None:
    logger.info(
        "%s: %s blocks of %s documents in %.0f s, %.1f MB of text a second; skipped: %s.",
        out,
        f"{writer.blocks:,}",
        f"{built.documents:,}",
        built.elapsed,
        writer.text_bytes / 1e6 / built.elapsed,
        ", ".join(f"{count:,} {reason}" for reason, count in built.skipped.items() if count)
        or "none",
    )


def _check_new(store: BlockStore, files: Sequence[Path]) -> None:
    """Raises `OrqaError` for a document that is in the store already."""
    for file in files:
        with pa.memory_map(str(file)) as source:
            new = pc.unique(pa.ipc.open_file(source).get_batch(0).column("document_id"))
        for shard in store.shards:
            known = pc.is_in(new, value_set=shard.batch.column("document_id"))
            if pc.any(known).as_py():
                identifier = new[pc.index(known, True).as_py()].as_py()
                raise OrqaError(
                    f"The document {identifier} is in {store.folder} already; leave it out, or "
                    "give a new document an id of its own."
                )


def check_out(out: Path, sources: Sequence[str | os.PathLike[str]]) -> None:
    if (out / MANIFEST_NAME).exists():
        raise OrqaError(f"{out} is a corpus already; remove it or choose another folder.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise OrqaError(f"{out} exists and is not an empty folder; choose another folder.")
    for source in map(Path, sources):
        if out.is_relative_to(source.absolute()):
            raise OrqaError(f"{out} lies in the source {source}; choose a folder outside of it.")


@contextlib.contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """Makes ``<out>.partial``, empty, for this process alone; removes it if there is an error."""
    partial = out.with_name(out.name + ".partial")
    with hold(out):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise OrqaError(f"{partial} cannot be made ({error.strerror}).") from error
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def chunk_pages(
    pages: Iterator[tuple[Page, int]], seconds: Seconds
) -> Iterator[tuple[list[Page], int]]:
    """Gathers pages into portions of about `_CHUNK_CHARACTERS`, with the bytes read so far."""
    chunk: list[Page] = []
    characters = bytes_read = 0
    while True:
        with timed(seconds, "reading"):
            item = next(pages, None)
        if item is None:
            break
        page, bytes_read = item
        chunk.append(page)
        characters += len(page.body)
        if characters >= _CHUNK_CHARACTERS:
            yield chunk, bytes_read
            chunk, characters = [], 0
    if chunk:
        yield chunk, bytes_read


def _pack_in_order(
    chunks: Iterator[tuple[list[Page], int]],
    tokenizer: WordPiece,
    max_wordpieces: int,
    workers: int,
) -> Generator[tuple[Packed, int], None, None]:
    """Packs chunks in `workers` processes; at most two for each are on their way."""
    if workers == 1:
        for chunk, bytes_read in chunks:
            yield pack_pages(chunk, tokenizer, max_wordpieces), bytes_read
        return
    # Forking a process that runs jax or threads can deadlock; spawning cannot.
    executor = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer, max_wordpieces),
    )
    pending: deque[tuple[Future[Packed], int]] = deque()
    try:
        for chunk, bytes_read in chunks:
            pending.append((executor.submit(_pack_in_worker, chunk), bytes_read))
            if len(pending) >= 2 * workers:
                future, bytes_read = pending.popleft()
                yield future.result(), bytes_read
        for future, bytes_read in pending:
            yield future.result(), bytes_read
    except BrokenProcessPool as error:
        raise OrqaError(
            f"One of {workers} worker processes died, perhaps for want of memory; try fewer "
            'workers, or 1 if your script has no `if __name__ == "__main__":`.'
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


_worker_arguments: tuple[WordPiece, int] | None = None


def _start_worker(tokenizer: WordPiece, max_wordpieces: int) -> None:
    global _worker_arguments
    # One process for each core is enough; the Rust library would start a thread for each as well.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker_arguments = (tokenizer, max_wordpieces)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _pack_in_worker(pages: list[Page]) -> Packed:
    assert _worker_arguments is not None
    return pack_pages(pages, *_worker_arguments)


def pack_pages(pages: list[Page], tokenizer: WordPiece, max_wordpieces: int) -> Packed:
    """`pack` of the documents behind pages."""
    seconds: Seconds = defaultdict(float)
    with timed(seconds, "markup"):
        documents = [to_document(page) for page in pages]
    return pack(documents, tokenizer, max_wordpieces, seconds)


class StoreWriter:
    """Writes shards of about `_SHARD_BYTES`, and hashes what it writes."""

    def __init__(self, folder: Path, *, first_shard: int = 0) -> None:
        self.blocks = 0
        self.wordpieces = 0
        self.text_bytes = 0
        self._folder = folder
        self._first_shard = first_shard
        self._batches: list[pa.RecordBatch] = []
        self._shards: list[dict[str, Any]] = []
        self._hashes: list[Any] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self.blocks += batch.num_rows
        self.wordpieces += len(batch.column("token_ids").values)
        self.text_bytes += batch.column("text").buffers()[2].size
        self.hash(batch)
        if sum(waiting.nbytes for waiting in self._batches) >= _SHARD_BYTES:
            self._write_shard()

    def hash(self, batch: pa.RecordBatch) -> None:
        """Takes blocks into the fingerprint that are written, or were before."""
        content = list(_content(batch))
        self._hashes = self._hashes or [hashlib.sha256() for _ in content]
        for content_hash, part in zip(self._hashes, content, strict=True):
            content_hash.update(part)

    def finish(self) -> tuple[list[dict[str, Any]], str]:
        """Writes the last shard; returns the manifest's list of shards and the fingerprint."""
        if self._batches:
            self._write_shard()
        digests = b"".join(content_hash.digest() for content_hash in self._hashes)
        return self._shards, hashlib.sha256(digests).hexdigest()

    def _write_shard(self) -> None:
        number = self._first_shard + len(self._shards)
        path = self._folder / f"blocks-{number:05}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as file:
                batch = pa.concat_batches(self._batches)
                file.write_batch(batch)
        except OSError as error:
            raise OrqaError(f"{path} cannot be written ({error}).") from error
        self._batches = []
        (described,) = describe_files(self._folder, [path.name]).values()
        self._shards.append({"file": path.name, "blocks": batch.num_rows, **described})


def _content(batch: pa.RecordBatch) -> Iterator[Any]:
    """Lengths and values of all columns as buffers.

    Each is hashed on its own, so that neither batches nor shards show in the fingerprint.
    """
    for column in batch.columns:
        if pa.types.is_integer(column.type):
            yield column.to_numpy()
            continue
        offsets = np.frombuffer(column.buffers()[1], np.int32, count=len(column) + 1)
        yield np.diff(offsets)
        if pa.types.is_list(column.type):
            yield column.values.to_numpy()
        else:
            values = column.buffers()[2]
            yield memoryview(values)[: offsets[-1]] if values else b""


class _Progress:
    """A bar with rate and time left on a terminal, elsewhere a log line every half minute."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._started = self._logged = time.monotonic()
        self._bar = tqdm(
            total=total_bytes,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            # The bar counts bytes of the files, which may be compressed; the rate is that of text.
            bar_format="{percentage:3.0f}% |{bar}| {elapsed} < {remaining} {postfix}",
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *unused: object) -> None:
        self._bar.close()

    def update(self, documents: int, text_bytes: int, bytes_read: int) -> None:
        now = time.monotonic()
        elapsed = max(now - self._started, 1e-9)
        state = f"{documents:,} documents, {text_bytes / 1e6 / elapsed:.1f} MB/s"
        self._bar.set_postfix_str(state, refresh=False)
        self._bar.update(bytes_read - self._bar.n)
        if self._bar.disable and now - self._logged >= _SECONDS_BETWEEN_LOG_LINES:
            self._logged = now
            left = elapsed * (self._total - bytes_read) / bytes_read
            logger.info("corpus: %s, about %.0f s left.", state, left)
