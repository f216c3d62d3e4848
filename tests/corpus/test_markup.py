from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.corpus.markup import html_to_text, markdown_title, unwrap


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One\n# Two", "One"),
        ("Text.\n\n### Deep ###\n", "Deep"),
        ("Underlined\n==========\n", "Underlined"),
        ("~~~\n# code\n~~~\n## After", "After"),
        ("#hashtag\nno heading", None),
        ("", None),
    ],
)
def test_markdown_title(text, title):
    assert markdown_title(text) == title


def test_unwrap_joins_hard_wrapped_lines_only():
    text = (
        "Short heading\n"
        "\n"
        "This paragraph has been wrapped by an editor at about seventy\n"
        "characters, so a sentence of it runs over several lines of the\n"
        "file.\n"
        "Signed\n"
        "\n"
        "- an item of a list that is quite as long as a wrapped line is\n"
        "- another item\n"
        "\n\n"
        "A poem's\nshort lines\nstay.\n"
    )
    assert unwrap(text) == (
        "Short heading\n"
        "\n"
        "This paragraph has been wrapped by an editor at about seventy "
        "characters, so a sentence of it runs over several lines of the "
        "file.\n"
        "Signed\n"
        "\n"
        "- an item of a list that is quite as long as a wrapped line is\n"
        "- another item\n"
        "\n\n"
        "A poem's\nshort lines\nstay.\n"
    )


def test_unwrap_leaves_lines_that_are_paragraphs():
    text = "word " * 40 + "\n" + "word " * 30 + "\n"
    assert unwrap(text) == text


@given(st.text(alphabet="ab .-\n", max_size=400))
def test_unwrap_keeps_every_offset(text):
    result = unwrap(text)
    assert len(result) == len(text)
    assert all(a == b or (a, b) == ("\n", " ") for a, b in zip(text, result, strict=True))


def test_html_shows_what_people_see():
    title, text = html_to_text(
        """<!DOCTYPE html><html><head><title> The
        title </title><style>p {color: red}</style><script>var a = "<p>no</p>";</script></head>
        <body><h1>Head<em>ing</em></h1>
        <p>First   line
        goes on &amp; on&nbsp;&#8212; here.</p><!-- unseen --><p>Second.<br>Third.
        <ul><li>one<li>two</ul><table><tr><td>a</td><td>b</td></tr></table></body></html>"""
    )
    assert title == "The title"
    assert text == (
        "Heading\n\nFirst line goes on & on — here.\n\nSecond.\nThird.\n\none\ntwo\n\na\n\nb"
    )


@pytest.mark.parametrize(
    ("page", "title", "text"),
    [
        ("<h1>Only <b>heading</b></h1><h1>Other</h1>", "Only heading", "Only heading\n\nOther"),
        ("no tags at all", None, "no tags at all"),
        ("a < b", None, "a < b"),
        ("<p>x</p></script></style>y", None, "x\ny"),
        ("", None, ""),
    ],
)
def test_html_of_any_kind(page, title, text):
    assert html_to_text(page) == (title, text)
