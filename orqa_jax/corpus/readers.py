"""Documents out of files: which kind a file is, and one reader for each kind.

Reading has two halves, so that the slow one can run in many processes. `read_pages` takes files
apart into pages, in order; `to_document` turns the markup of a page into plain text.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import itertools
import json
import logging
import lzma
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar
from xml.parsers import expat

from orqa_jax.corpus.markup import html_to_text, markdown_title, unwrap
from orqa_jax.corpus.wikitext import is_disambiguation, wikitext_to_text
from orqa_jax.errors import OrqaError
from orqa_jax.text.html import unescape
from orqa_jax.text.jsonl import DAMAGE, limited_lines, read_limited, record_id

logger = logging.getLogger(__name__)

KINDS = (
    "JSON lines (.jsonl), DPR passages (.tsv), a MediaWiki dump (.xml), WikiExtractor output "
    "(wiki_NN), or .txt, .md, .html and .pdf, each plain, .gz, .bz2 or .xz"
)

_COMPRESSIONS = (".gz", ".bz2", ".xz")
_KIND_OF_SUFFIX = {
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".json": "json lines",
    ".tsv": "dpr",
    ".xml": "mediawiki",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
}
_PROSE = ("text", "markdown", "html", "pdf")
_WIKI_EXTRACTOR_NAME = re.compile(r"wiki_\d+")
_DPR_COLUMNS = ("id", "text", "title")
_DOC_BEGIN = re.compile(r'<doc id="(?P<id>[^"]*)".* title="(?P<title>.*)">\s*$')
_REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)
_LIST_TITLE = re.compile(r"(Lists?|Index|Outline) of ")
_BUFFER = 1 << 20
_LARGEST_PAGE = 100_000_000  # characters; the longest Wikipedia page has 2 million
_LARGEST_PDF = 1 << 30
_LONGEST_DOC_TAG = 10_000
_DEEPEST_ELEMENT = 100  # a dump has 5


@dataclass(frozen=True)
class Document:
    """A document, its title and text clean (see `clean`).

    Attributes:
        id: as the source has it; where it has none, "file name:line" or the path in its folder.
        title: on one line, without outer white space; may be empty.
        text: what `document_start` of a block refers to; may be empty.
    """

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class SourceFile:
    """One file to read.

    Attributes:
        path: where it lies.
        kind: how to read it.
        name: what it is called within its source.
        source: the file or folder that the user named.
        bytes: its size, compressed if it is.
    """

    path: Path
    kind: str
    name: str
    source: Path
    bytes: int


@dataclass(frozen=True)
class Page:
    """A document in the markup of its source.

    Attributes:
        markup: "plain", "text", "markdown", "html" or "wikitext".
    """

    id: str
    title: str
    body: str
    markup: str


@dataclass(frozen=True)
class Skipped:
    """What is left out of what is read.

    Attributes:
        counts: by reason.
        defects: file that takes a line of JSON for each broken record or file; None to stop at the
            first one.
    """

    counts: Counter[str] = field(default_factory=Counter)
    defects: IO[str] | None = None

    def defect(self, error: OrqaError) -> None:
        """Writes a defect down, or raises it."""
        if self.defects is None:
            raise error
        self.counts["broken"] += 1
        self.defects.write(json.dumps({"error": str(error)}, ensure_ascii=False) + "\n")


def read_documents(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Document]:
    """Reads all documents of all sources in order; files of a folder by name.

    Args:
        sources: files or folders of the kinds in `KINDS`, mixed as you like.

    Raises:
        OrqaError: a source is missing, of no known kind, damaged, or without documents; the
            message names file and line.
    """
    for page, _ in read_pages(find_files(sources), Skipped()):
        yield to_document(page)


def find_files(sources: Sequence[str | os.PathLike[str]]) -> list[SourceFile]:
    """Lists the files behind `sources`, and recognises their kinds.

    In a folder, prose (.txt, .md, .html, .pdf) and WikiExtractor's wiki_NN are read at any depth;
    other files are not, nor are hidden ones.

    Raises:
        OrqaError: a source is missing, empty, or of no known kind.
    """
    files = []
    for source in map(Path, sources):
        if source.is_dir():
            files += _find_in_folder(source)
        elif source.exists():
            if source.stat().st_size == 0:
                raise OrqaError(f"{source} is empty; remove it from the sources.")
            kind = kind_of_name(source) or _kind_of_content(source)
            files.append(SourceFile(source, kind, source.name, source, source.stat().st_size))
        else:
            raise OrqaError(f"There is no file or folder {source}; check the path.")
    return files


def read_pages(files: Sequence[SourceFile], skipped: Skipped) -> Iterator[tuple[Page, int]]:
    """Reads files one after the other, in memory that depends on the longest page alone.

    Args:
        skipped: takes the pages that are no articles, and what is broken; added to.

    Yields:
        A page, and the bytes read so far of all files together.

    Raises:
        OrqaError: see `read_documents`; not for what `skipped` takes.
    """
    bytes_before = 0
    for source, files_of_source in itertools.groupby(files, key=lambda file: file.source):
        pages, broken = 0, skipped.counts["broken"]
        for file in files_of_source:
            for page, bytes_read in read_file(file, skipped):
                pages += 1
                yield page, bytes_before + bytes_read
            bytes_before += file.bytes
        if not pages and skipped.counts["broken"] == broken:
            skipped.defect(OrqaError(f"{source} holds no documents; remove it from the sources."))


def read_file(file: SourceFile, skipped: Skipped) -> Iterator[tuple[Page, int]]:
    """`read_pages` of one file, which may hold no documents.

    Broken lines of JSON and rows of the wrong width are left out by themselves. Behind any other
    defect nobody knows where the next document begins: the rest of the file is left out.
    """
    try:
        with file.path.open("rb") as raw, _decompress(raw) as stream:
            for page in _READERS[file.kind](file, stream, skipped):
                yield page, raw.tell()
    except DAMAGE as error:
        skipped.defect(_damaged(file.path, error))
    except OrqaError as error:
        skipped.defect(error)


def to_document(page: Page) -> Document:
    """Turns a page's markup into plain text."""
    title, text = page.title, page.body
    if page.markup == "wikitext":
        text = wikitext_to_text(text)
    elif page.markup == "html":
        found, text = html_to_text(text)
        title = found or title
    elif page.markup == "markdown":
        title = markdown_title(text) or title
    if page.markup in ("text", "markdown"):
        text = unwrap(text)
    return Document(page.id, " ".join(clean(title).split()), clean(text))


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Replaces what has no place in text, one character for one, so that offsets stay true.

    Control characters (NUL among them) become spaces; lone surrogates, which JSON can spell but
    UTF-8 cannot, become U+FFFD; the rare line break U+0085, which BERT tokenizers drop, becomes a
    common one. Tabs and other line breaks stay.
    """
    text = _CONTROL.sub(" ", text).replace("\x85", "\n")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _find_in_folder(folder: Path) -> list[SourceFile]:
    files, ignored = [], Counter[str]()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_dir() or any(part.startswith(".") for part in relative.parts):
            continue
        kind = kind_of_name(path)
        if kind in _PROSE or _WIKI_EXTRACTOR_NAME.fullmatch(_plain_name(path)):
            size = path.stat().st_size
            if size:
                kind = kind or _kind_of_content(path)
                files.append(SourceFile(path, kind, relative.as_posix(), folder, size))
        else:
            ignored[path.suffix or path.name] += 1
    if not files:
        raise OrqaError(
            f"The folder {folder} holds no .txt, .md, .html, .pdf or wiki_NN files with content; "
            "files of other kinds have to be named one by one."
        )
    if ignored:
        logger.warning(
            "%s: %d files of other kinds are not read (%s).",
            folder,
            ignored.total(),
            ", ".join(f"{count} {suffix}" for suffix, count in ignored.most_common(5)),
        )
    return files


def _plain_name(path: Path) -> str:
    return path.name.removesuffix(path.suffix) if path.suffix in _COMPRESSIONS else path.name


def kind_of_name(path: Path) -> str | None:
    """How to read a file, by the ending of its name; None for an ending that does not tell."""
    return _KIND_OF_SUFFIX.get(Path(_plain_name(path)).suffix.lower())


def _kind_of_content(path: Path) -> str:
    try:
        with path.open("rb") as raw, _decompress(raw) as stream:
            head = stream.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    except DAMAGE as error:
        raise _damaged(path, error) from error
    if head.startswith(b"{"):
        return "json lines"
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.startswith(b"<doc "):
        return "doc tags"
    if b"<mediawiki" in head:
        return "mediawiki"
    if head.split(b"\n")[0].strip() == "\t".join(_DPR_COLUMNS).encode():
        return "dpr"
    raise OrqaError(f"{path} is of no known kind; orqa reads {KINDS}.")


def _decompress(raw: IO[bytes]) -> IO[bytes]:
    """Decompresses by content, not by name: downloads are often misnamed."""
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER)
    if head.startswith(b"BZh") and head[4:] in (b"1A", b"\x17r"):
        return io.BufferedReader(bz2.BZ2File(raw), _BUFFER)
    if head.startswith(b"\xfd7zXZ\x00"):
        return io.BufferedReader(lzma.LZMAFile(raw), _BUFFER)
    return raw


def _damaged(path: Path, error: Exception) -> OrqaError:
    return OrqaError(
        f"{path} cannot be read to its end ({error}); it is damaged or incomplete, fetch it again."
    )


def _lines(file: SourceFile, stream: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Numbers the lines from 1 and decodes them; their line breaks stay."""
    for number, line in enumerate(limited_lines(file.path, stream), start=1):
        yield number, _decode(line, f"{file.path}:{number}")


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise OrqaError(
            f"{where} is not UTF-8 text ({error.reason} at byte {error.start}); "
            "convert the file, for example with iconv."
        ) from error


def _read_json_lines(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    for number, line in enumerate(limited_lines(file.path, stream), start=1):
        try:
            page = _json_page(file, number, line)
        except OrqaError as error:
            skipped.defect(error)
            continue
        if page is not None:
            yield page


def _json_page(file: SourceFile, number: int, line: bytes) -> Page | None:
    where = f"{file.path}:{number}"
    text = _decode(line, where)
    if not text or text.isspace():
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OrqaError(
            f"{where} is not valid JSON ({error}); every line has to be one object with "
            "`title` and `text`, so mend or remove this one."
        ) from error
    if not isinstance(record, dict):
        raise OrqaError(
            f"{where} is JSON but not an object; every line has to be one object with "
            "`title` and `text`."
        )
    for key in ("title", "text"):
        if not isinstance(record.get(key), str):
            state = "is no string" if key in record else "is missing"
            raise OrqaError(f"{where}: `{key}` {state}; mend or remove this line.")
    identifier = record_id(where, record, default=f"{file.name}:{number}")
    return Page(clean(identifier), record["title"], record["text"], markup="plain")


def _read_dpr(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    csv.field_size_limit(_LARGEST_PAGE)
    lines = csv.reader((line for _, line in _lines(file, stream)), delimiter="\t", strict=True)
    try:
        header = next(lines, [])
        if not set(header) >= set(_DPR_COLUMNS):
            raise OrqaError(
                f"{file.path}:1 has to name the columns id, text and title, with tabs between."
            )
        places = [header.index(column) for column in _DPR_COLUMNS]
        for row in lines:
            if len(row) != len(header):
                skipped.defect(
                    OrqaError(
                        f"{file.path}:{lines.line_num} has {len(row)} columns where the header has "
                        f"{len(header)}; mend or remove this line."
                    )
                )
                continue
            identifier, text, title = (row[place] for place in places)
            yield Page(clean(identifier), title, text, markup="plain")
    except csv.Error as error:
        raise OrqaError(
            f"{file.path}:{lines.line_num} is not valid TSV ({error}); a text that holds quotes "
            'has to be quoted itself, its quotes doubled (""), as the csv module does.'
        ) from error


def _read_doc_tags(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    identifier, title, lines = "", "", list[str]()
    begun = size = 0  # number of the line with the open <doc>, or 0; its characters
    for number, line in _lines(file, stream):
        if len(line) <= _LONGEST_DOC_TAG and (match := _DOC_BEGIN.match(line)):
            if begun:
                raise OrqaError(
                    f"{file.path}:{begun} begins a <doc> that is still open on line {number}; "
                    "the file is damaged."
                )
            identifier, title = match["id"], unescape(match["title"])
            begun, size, lines = number, 0, []
        elif line.startswith("</doc>"):
            # WikiExtractor repeats the title as the first line.
            if lines and unescape(lines[0]).strip() == title.strip():
                del lines[0]
            body = unescape("".join(lines)).strip()
            yield Page(clean(identifier), title, body, markup="plain")
            begun = 0
        elif begun:
            lines.append(line)
            size += len(line)
            if size > _LARGEST_PAGE:
                raise OrqaError(
                    f"{file.path}:{begun} begins a <doc> of more than {_LARGEST_PAGE:,} "
                    "characters; the file is damaged."
                )
        elif line.strip():
            raise OrqaError(f"{file.path}:{number} stands outside of <doc ...> and </doc>.")
    if begun:
        raise OrqaError(
            f"{file.path}:{begun} begins a <doc> that never ends; the file is incomplete."
        )


def _read_prose(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    body = _decode(read_limited(file.path, stream, _LARGEST_PAGE), str(file.path))
    yield Page(file.name, Path(_plain_name(file.path)).stem, body, markup=file.kind)


def _read_pdf(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    """The text layer of all pages, and the title that the file says it has.

    A PDF without text, such as a scan, is skipped: it needs character recognition first.
    """
    try:
        import pypdf
    except ImportError as error:
        raise OrqaError(
            f"{file.path} is a PDF; `pip install 'orqa_jax[pdf]'` to read those."
        ) from error
    try:
        with _only_errors_of("pypdf"):
            reader = pypdf.PdfReader(io.BytesIO(read_limited(file.path, stream, _LARGEST_PDF)))
            if reader.is_encrypted and not reader.decrypt(""):
                raise OrqaError(f"{file.path} is locked by a password; save it without one.")
            body = "\n\n".join(page.extract_text() for page in reader.pages)
            title = (reader.metadata and reader.metadata.title) or ""
    except OrqaError:
        raise
    # pypdf raises what its parsers happen to raise: a damaged file has no end of ways.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise OrqaError(
            f"{file.path} cannot be read as a PDF ({reason}); open it and save it again."
        ) from error
    if not body.strip():
        skipped.counts["PDF without text"] += 1
        return
    yield Page(file.name, title.strip() or Path(file.path.name).stem, body, markup="text")


@contextlib.contextmanager
def _only_errors_of(name: str) -> Iterator[None]:
    """Keeps a library from telling of every irregularity that it repairs."""
    library = logging.getLogger(name)
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)


def _read_mediawiki(file: SourceFile, stream: IO[bytes], skipped: Skipped) -> Iterator[Page]:
    dump = _Dump(file.path)
    while chunk := stream.read(_BUFFER):
        dump.feed(chunk)
        for fields in dump.take():
            title, body = fields["title"], fields["text"]
            if fields["ns"] not in ("0", ""):
                skipped.counts["other namespace"] += 1
            elif fields["redirect"] or _REDIRECT.match(body):
                skipped.counts["redirect"] += 1
            elif fields["model"] not in ("wikitext", ""):
                skipped.counts["not wikitext"] += 1
            elif is_disambiguation(title, body):
                skipped.counts["disambiguation"] += 1
            elif _LIST_TITLE.match(title):
                skipped.counts["list"] += 1
            else:
                yield Page(fields["id"], title, body, markup="wikitext")
    dump.feed(b"", final=True)


class _Dump:
    """A MediaWiki export, fed in chunks; holds one unfinished page at a time.

    A document type declaration is refused: no dump has one, and it is where entities that expand
    to gigabytes are declared.
    """

    _PATHS: ClassVar[dict[str, str]] = {
        "mediawiki/page/title": "title",
        "mediawiki/page/ns": "ns",
        "mediawiki/page/id": "id",
        "mediawiki/page/revision/model": "model",
        "mediawiki/page/revision/text": "text",
    }

    def __init__(self, path: Path) -> None:
        self._file = path
        self._open: list[str] = []
        self._fields: dict[str, str] = {}
        self._parts: list[str] | None = None
        self._size = self._fed = 0
        self._pages: list[dict[str, str]] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse

    def feed(self, chunk: bytes, final: bool = False) -> None:
        self._fed += len(chunk)
        if self._fed - max(self._parser.CurrentByteIndex, 0) > _LARGEST_PAGE:
            raise OrqaError(
                f"{self._file}:{self._parser.CurrentLineNumber} begins a tag of more than "
                f"{_LARGEST_PAGE:,} bytes; the dump is damaged, fetch it again."
            )
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            raise OrqaError(
                f"{self._file}:{error.lineno} is not well-formed XML "
                f"({expat.ErrorString(error.code)}); the dump is damaged or incomplete, "
                "fetch it again."
            ) from error
        except (LookupError, ValueError) as error:
            raise OrqaError(
                f"{self._file} declares an encoding that cannot be read ({error}); convert it to "
                "UTF-8."
            ) from error

    def take(self) -> list[dict[str, str]]:
        """The pages finished since the last call."""
        pages, self._pages = self._pages, []
        return pages

    def _refuse(self, *unused: object) -> None:
        raise OrqaError(
            f"{self._file}:{self._parser.CurrentLineNumber} declares a document type, which no "
            "MediaWiki dump does and which can make a small file expand without end; remove it."
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._open.append(name)
        if len(self._open) > _DEEPEST_ELEMENT:
            raise OrqaError(
                f"{self._file}:{self._parser.CurrentLineNumber} is in {_DEEPEST_ELEMENT} elements "
                "at once, which no MediaWiki dump is; fetch it again."
            )
        path = "/".join(self._open)
        if len(self._open) == 1 and name != "mediawiki":
            raise OrqaError(
                f"{self._file} is XML with the root <{name}> where a MediaWiki dump has "
                "<mediawiki>; export it again."
            )
        if path == "mediawiki/page":
            self._fields = dict.fromkeys([*self._PATHS.values(), "redirect"], "")
        elif path == "mediawiki/page/redirect":
            self._fields["redirect"] = "yes"
        elif path in self._PATHS:
            self._parts, self._size = [], 0

    def _end(self, name: str) -> None:
        path = "/".join(self._open)
        self._open.pop()
        if path == "mediawiki/page":
            self._pages.append(self._fields)
        elif path in self._PATHS:
            # In a dump with history the last revision stays.
            self._fields[self._PATHS[path]] = "".join(self._parts or [])
            self._parts = None

    def _characters(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)
            self._size += len(text)
            if self._size > _LARGEST_PAGE:
                raise OrqaError(
                    f"{self._file}:{self._parser.CurrentLineNumber} is in a page of more than "
                    f"{_LARGEST_PAGE:,} characters; the dump is damaged, fetch it again."
                )


_READERS: dict[str, Callable[[SourceFile, IO[bytes], Skipped], Iterator[Page]]] = {
    "json lines": _read_json_lines,
    "dpr": _read_dpr,
    "doc tags": _read_doc_tags,
    "mediawiki": _read_mediawiki,
    "text": _read_prose,
    "markdown": _read_prose,
    "html": _read_prose,
    "pdf": _read_pdf,
}
