from __future__ import annotations

import bz2
import gzip
import json
import logging
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from orqa_jax.corpus.readers import Document, Skipped, clean, find_files, read_documents, read_pages
from orqa_jax.errors import OrqaError

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read(*sources: Path) -> list[Document]:
    return list(read_documents(sources))


# -- JSON lines


def test_json_lines(tmp_path):
    path = write(
        tmp_path / "docs.jsonl",
        "\ufeff"
        + json_lines({"title": "Owl", "text": "Owls hunt.\nAt night.", "id": 7})
        + "\n  \n"
        + json_lines({"title": " Two \n words ", "text": "", "other": [1]})
        + '{"id": "x", "title": "", "text": "No line break at the end"}',
    )
    assert read(path) == [
        Document("7", "Owl", "Owls hunt.\nAt night."),
        Document("docs.jsonl:4", "Two words", ""),
        Document("x", "", "No line break at the end"),
    ]


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("misnamed", [False, True])
def test_compressions_are_recognised_by_content(tmp_path, suffix, misnamed):
    content = COMPRESSORS[suffix](json_lines({"title": "a", "text": "b"}).encode())
    path = write(tmp_path / ("docs.jsonl" + ("" if misnamed else suffix)), content)
    assert read(path) == [
        Document("docs.jsonl" + path.suffix.replace(".jsonl", "") + ":1", "a", "b")
    ]


def test_bz2_of_several_streams(tmp_path):
    parts = [bz2.compress(json_lines({"title": t, "text": t}).encode()) for t in "abc"]
    path = write(tmp_path / "docs.jsonl.bz2", b"".join(parts))
    assert [document.title for document in read(path)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"title": "a", "text": ', "docs.jsonl:3 is not valid JSON"),
        ("[1, 2]", "docs.jsonl:3 is JSON but not an object"),
        ('{"title": "a"}', "docs.jsonl:3: `text` is missing"),
        ('{"title": null, "text": "b"}', "docs.jsonl:3: `title` is no string"),
        ('{"title": "a", "text": "b", "id": [1]}', "docs.jsonl:3 needs an 'id'"),
        (b'{"title": "a", "text": "\xff"}', "docs.jsonl:3 is not UTF-8 text"),
        ("[" * 100_000, "docs.jsonl:3 is not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    good = json_lines({"title": "a", "text": "b"}).encode()
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path / "docs.jsonl", good * 2 + line + b"\n" + good)
    with pytest.raises(OrqaError, match=message):
        read(path)


def test_control_characters_and_lone_surrogates_keep_offsets(tmp_path):
    text = "a\x00b\x1f\tc\r\nd\ud800e\x85f\x9fg\U0001f989"
    path = write(tmp_path / "docs.jsonl", json_lines({"title": "t\x00u", "text": text}))
    (document,) = read(path)
    assert document.title == "t u"
    assert document.text == "a b \tc\r\nd\ufffde\nf g\U0001f989"
    assert len(document.text) == len(text)
    document.text.encode()


def test_clean_leaves_ordinary_text_alone():
    text = "Zoë said: “naïve”—\u200b שלום 中文\n\tx\x0b".replace("\x0b", "")
    assert clean(text) == text


# -- DPR passages


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_dpr_passages(tmp_path, suffix):
    content = (
        "id\ttext\ttitle\n"
        '1\t"He said ""no"" and left."\tQuarrel\n'
        "2\tplain text\tOther\n"
        '3\t"two\nlines"\t"A ""b"" c"\n'
    )
    path = write(tmp_path / f"psgs.tsv{suffix}", COMPRESSORS[suffix](content.encode()))
    assert read(path) == [
        Document("1", "Quarrel", 'He said "no" and left.'),
        Document("2", "Other", "plain text"),
        Document("3", 'A "b" c', "two\nlines"),
    ]


def test_dpr_columns_are_found_by_name_and_long_fields_fit(tmp_path):
    text = "word " * 50_000
    path = write(tmp_path / "psgs.tsv", f"title\tid\ttext\nT\t9\t{text}\n")
    assert read(path) == [Document("9", "T", text)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\tno header\tT\n", "psgs.tsv:1 has to name the columns id, text and title"),
        ("id\ttext\ttitle\n1\tab\tT\n2\tcd\n", "psgs.tsv:3 has 2 columns where the header has 3"),
        ('id\ttext\ttitle\n1\t"open\tT\n', "psgs.tsv:2 is not valid TSV"),
    ],
)
def test_bad_dpr_passages_are_named(tmp_path, content, message):
    with pytest.raises(OrqaError, match=message):
        read(write(tmp_path / "psgs.tsv", content))


# -- WikiExtractor


def test_wikiextractor_trees(tmp_path):
    tags = (
        '<doc id="12" url="https://x.org/?curid=12" title="Rock &amp; roll">\n'
        "Rock &amp; roll\n\nRock &lt;music&gt; is loud.\n\nHistory.\nIt began.\n\n</doc>\n"
        '<doc id="13" revid="5" url="u" title="A "quoted" name">\nNo repeated title.\n</doc>\n'
    )
    write(tmp_path / "AB/wiki_00", tags)
    write(
        tmp_path / "AA/wiki_01.bz2",
        bz2.compress(json_lines({"id": "2", "url": "u", "title": "b", "text": "B"}).encode()),
    )
    write(tmp_path / "AA/wiki_00", json_lines({"id": "1", "url": "u", "title": "a", "text": "A"}))
    write(tmp_path / "AC/wiki_00", "")
    assert read(tmp_path) == [
        Document("1", "a", "A"),
        Document("2", "b", "B"),
        Document("12", "Rock & roll", "Rock <music> is loud.\n\nHistory.\nIt began."),
        Document("13", 'A "quoted" name', "No repeated title."),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<doc id="1" url="" title="a">\ntext\n', "wiki_00:1 begins a <doc> that never ends"),
        ('<doc id="1" url="" title="a">\n</doc>\nx\n', "wiki_00:3 stands outside"),
        ('<doc id="1" url="" title="a">\n' * 2, "wiki_00:1 begins a <doc> that is still open"),
    ],
)
def test_damaged_wikiextractor_output_is_named(tmp_path, content, message):
    with pytest.raises(OrqaError, match=message):
        read(write(tmp_path / "wiki_00", content))


# -- folders of prose


def test_a_folder_of_prose(tmp_path, caplog):
    write(tmp_path / "b/Night owl.txt", "Owls\nhunt.")
    write(tmp_path / "a.md", "Intro line.\n\n```\n# not a heading\n```\n\n# The *Title* #\n\nBody.")
    write(tmp_path / "c.html", "<html><title>T &amp; U</title><p>One<p>two</html>")
    write(tmp_path / "empty.txt", "")
    write(tmp_path / "z.txt.xz", lzma.compress("\ufeffPacked.".encode()))
    write(tmp_path / "photo.jpg", b"\xff\xd8")
    write(tmp_path / "notes.jsonl", "{}")
    write(tmp_path / ".git/config.txt", "hidden")
    with caplog.at_level(logging.WARNING):
        documents = read(tmp_path)
    assert documents == [
        Document("a.md", "The *Title*", documents[0].text),
        Document("b/Night owl.txt", "Night owl", "Owls\nhunt."),
        Document("c.html", "T & U", "One\n\ntwo"),
        Document("z.txt.xz", "z", "Packed."),
    ]
    assert "2 files of other kinds are not read (1 .jsonl, 1 .jpg)" in caplog.text


def test_single_files_and_mixtures(tmp_path):
    one = write(tmp_path / "one.txt", "One.")
    two = write(tmp_path / "two.jsonl", json_lines({"title": "2", "text": "Two."}))
    three = write(tmp_path / "3/three.md", "Three.")
    assert [document.text for document in read(two, one, three.parent, two)] == [
        "Two.",
        "One.",
        "Three.",
        "Two.",
    ]


def pdf(pages: list[str], title: str = "") -> bytes:
    """A PDF of one line a page, written by hand: it names the place of each of its objects."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * n} 0 R >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"trailer\n<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>\n"
    head = f"xref\n0 {size}\n0000000000 65535 f \n{table}"
    return body + f"{head}{end}startxref\n{len(body)}\n%%EOF\n".encode()


def test_pdfs(tmp_path, caplog):
    write(tmp_path / "owls.pdf", pdf(["Owls hunt.", "At night."], "On Owls"))
    write(tmp_path / "plain.pdf", pdf(["One page."]))
    write(tmp_path / "scan.pdf", pdf([""]))
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path) == [
            Document("owls.pdf", "On Owls", "Owls hunt.\n\nAt night."),
            Document("plain.pdf", "plain", "One page."),
        ]
    assert not caplog.text
    skipped = Skipped()
    assert not list(read_pages(find_files([tmp_path / "plain.pdf"]), skipped))[1:]
    with pytest.raises(OrqaError, match=r"scan\.pdf holds no documents"):
        list(read_pages(find_files([tmp_path / "scan.pdf"]), skipped))
    assert skipped.counts == {"PDF without text": 1}


# -- what cannot be read


def test_missing_source(tmp_path):
    with pytest.raises(OrqaError, match=r"There is no file or folder .*nowhere"):
        read(tmp_path / "nowhere")


def test_empty_file(tmp_path):
    with pytest.raises(OrqaError, match=r"docs.jsonl is empty"):
        read(write(tmp_path / "docs.jsonl", ""))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_compressed_nothing(tmp_path, suffix):
    with pytest.raises(OrqaError, match=r"docs.jsonl.* holds no documents"):
        read(write(tmp_path / f"docs.jsonl{suffix}", COMPRESSORS[suffix](b"")))


def test_blank_lines_only(tmp_path):
    with pytest.raises(OrqaError, match="holds no documents"):
        read(write(tmp_path / "docs.jsonl", "\n \n"))


def test_a_folder_with_nothing_to_read(tmp_path):
    write(tmp_path / "scan.png", b"\x89PNG")
    with pytest.raises(OrqaError, match=r"holds no .txt, .md, .html, .pdf or wiki_NN files"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x1f\x8b\x08broken"])
def test_unsupported_files(tmp_path, content):
    with pytest.raises(OrqaError, match=r"report.doc (is of no known kind|cannot be read)"):
        read(write(tmp_path / "report.doc", content))


@pytest.mark.parametrize("content", [b"%PDF-1.4", b"no PDF", pdf(["Owls hunt."])[:150]])
def test_damaged_pdfs(tmp_path, content):
    with pytest.raises(OrqaError, match=r"report.pdf cannot be read as a PDF \(.+\); open it"):
        read(write(tmp_path / "report.pdf", content))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_incomplete_compressed_files(tmp_path, suffix):
    records = [{"title": str(i), "text": str(i**9)} for i in range(4000)]
    content = COMPRESSORS[suffix](json_lines(*records).encode())
    path = write(tmp_path / f"docs.jsonl{suffix}", content[: len(content) // 2])
    with pytest.raises(OrqaError, match=r"docs.jsonl.* cannot be read to its end"):
        read(path)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "wiki_00"])
def test_other_encodings_are_named(tmp_path, name):
    heads = {
        "a.txt": "",
        "a.tsv": "id\ttext\ttitle\n",
        "wiki_00": '<doc id="1" url="" title="a">\n',
    }
    path = write(tmp_path / name, (heads[name] + "café").encode("latin-1"))
    with pytest.raises(OrqaError, match=rf"{name}(:2)? is not UTF-8 text"):
        read(path)


# -- MediaWiki dumps


def page(title: str, text: str, **fields: str) -> str:
    values = {"ns": "0", "id": "1", "model": "wikitext", "redirect": "", **fields}
    redirect = f'<redirect title="{values["redirect"]}" />' if values["redirect"] else ""
    return (
        f"<page><title>{title}</title><ns>{values['ns']}</ns><id>{values['id']}</id>{redirect}"
        f"<revision><id>99</id><contributor><id>98</id></contributor>"
        f"<model>{values['model']}</model><text xml:space='preserve'>{text}</text></revision>"
        "</page>"
    )


def dump(*pages: str) -> str:
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">'
        "<siteinfo><sitename>W</sitename></siteinfo>" + "\n".join(pages) + "</mediawiki>"
    )


@pytest.mark.parametrize("name", ["w.xml", "w.xml.bz2", "w-articles1.xml-p1p9.bz2"])
def test_mediawiki_keeps_articles_only(tmp_path, name):
    content = dump(
        page("Owl", "An '''owl''' &amp;amp; &lt;b&gt;more&lt;/b&gt;.", id="5"),
        page("Owls", "ignored", redirect="Owl"),
        page("Owlet", "#REDIRECT [[Owl]]"),
        page("Talk:Owl", "chat", ns="1"),
        page("Module", "return 1", model="Scribunto"),
        page("Mercury", "'''Mercury''' may be:\n* [[Mercury (planet)]]\n{{Disambiguation|x}}"),
        page("Owl (disambiguation)", "x"),
        page("List of owls", "x"),
        page("Outline of owls", "x"),
        page("Listowel", "A town.", id="6"),
    )
    path = write(tmp_path / name, COMPRESSORS[".bz2" if "bz2" in name else ""](content.encode()))
    assert read(path) == [
        Document("5", "Owl", "An owl & more."),
        Document("6", "Listowel", "A town."),
    ]
    skipped = Skipped()
    for _ in read_pages(find_files([path]), skipped):
        pass
    assert skipped.counts == {
        "redirect": 2,
        "other namespace": 1,
        "not wikitext": 1,
        "disambiguation": 2,
        "list": 2,
    }


def test_the_last_revision_counts(tmp_path):
    content = dump(page("Owl", "Old.")).replace(
        "</revision>", "</revision><revision><text>New.</text></revision>"
    )
    assert read(write(tmp_path / "w.xml", content)) == [Document("1", "Owl", "New.")]


def test_a_billion_laughs_are_refused(tmp_path):
    entities = "".join(
        f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' if i else '<!ENTITY l0 "ha">' for i in range(10)
    )
    content = f"<!DOCTYPE mediawiki [{entities}]>" + dump(page("Ha", "&l9;"))
    with pytest.raises(OrqaError, match=r"w.xml:1 declares a document type"):
        read(write(tmp_path / "w.xml", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<html><body/></html>", r"w.xml is XML with the root <html>"),
        (dump(page("Owl", "x\n\n<b>"))[:-30], r"w.xml:3 is not well-formed XML"),
        (dump(page("Owl", "x"))[:-30], r"w.xml:1 is not well-formed XML \(no element found\)"),
        ("not XML", r"w.xml:1 is not well-formed XML"),
        (dump(), r"w.xml holds no documents"),
    ],
)
def test_damaged_dumps_are_named(tmp_path, content, message):
    with pytest.raises(OrqaError, match=message):
        read(write(tmp_path / "w.xml", content))


def test_memory_does_not_grow_with_the_dump(tmp_path):
    path = tmp_path / "w.xml"
    with path.open("w") as file:
        file.write(dump()[: -len("</mediawiki>")])
        for i in range(1500):
            file.write(page(f"P{i}", f"Text {i}. " * 1000))
        file.write("</mediawiki>")
    tracemalloc.start()
    pages = sum(1 for _ in read_pages(find_files([path]), Skipped()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pages == 1500
    assert peak < 6e6  # of 16 MB of text


def test_bytes_read_reach_the_size_of_the_files(tmp_path):
    one = write(tmp_path / "1.jsonl", json_lines(*[{"title": "t", "text": "x" * 999}] * 5000))
    two = write(tmp_path / "2.jsonl.gz", gzip.compress(one.read_bytes()))
    files = find_files([one, two])
    positions = [position for _, position in read_pages(files, Skipped())]
    assert positions == sorted(positions)
    assert positions[0] < one.stat().st_size
    assert positions[-1] == one.stat().st_size + two.stat().st_size
