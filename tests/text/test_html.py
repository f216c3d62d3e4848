from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.text.html import html_tokens, unescape


def tokens(page: str) -> list[tuple[str, str]]:
    return [(kind, value) for kind, value in html_tokens(page) if kind != "text" or value]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("a<b>c</b>", [("text", "a"), ("start", "b"), ("text", "c"), ("end", "b")]),
        ('<a href="x>y" id=z>t', [("start", "a"), ("text", "t")]),
        ("<A HREF = 'x>y'/>t", [("start", "a"), ("end", "a"), ("text", "t")]),
        ("<!DOCTYPE html><!-- <b> -->t<?php x?>u", [("text", "t"), ("text", "u")]),
        ("1 < 2 &lt; 3 <", [("text", "1 < 2 < 3 <")]),
        ("<script>a < '</b>'</SCRIPT>t", [("start", "script"), ("end", "script"), ("text", "t")]),
        ("<![", []),
        ("<!-- never closed <b>t", []),
        ('t<a href="never closed>u', [("text", "t"), ("start", "a"), ("text", "u")]),
        ("t<b", [("text", "t"), ("start", "b")]),
        ("</>t</ b>u", [("text", "t"), ("text", "u")]),
    ],
)
def test_tags_and_text(page, expected):
    assert tokens(page) == expected


def test_references():
    assert unescape("&amp;&#65;&#x41;") == "&AA"
    # The standard library refuses to make a number of so many digits.
    assert unescape("&#" + "9" * 5000 + ";&#x" + "f" * 5000 + " x") == "\ufffd\ufffd x"


@pytest.mark.parametrize(
    "part", ["<a href='", "<a x=", "<!--", "<!-- --", "<a", "</", "<![", "&", "&#", '="', "<a ='>"]
)
def test_time_is_linear(part):
    started = time.perf_counter()
    for _ in html_tokens(part * (1_000_000 // len(part))):
        pass
    # The standard library takes 35 s for 45 kB of the first.
    assert time.perf_counter() - started < 20


@given(st.text(alphabet="<>/!-='\"abscript &;#[", max_size=60))
def test_no_page_fails(page):
    assert "".join(value for kind, value in html_tokens(page) if kind == "text") is not None
