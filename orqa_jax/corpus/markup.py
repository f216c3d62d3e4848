"""HTML, Markdown and hard-wrapped text to plain text."""

from __future__ import annotations

import re
from itertools import groupby, pairwise

from orqa_jax.text.html import html_tokens

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+)$|^(\S.*)\n=+[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

# The elements that begin and end a line on the page.
_BLOCK_ELEMENTS = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "caption", "dd", "details", "div",
        "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4",
        "h5", "h6", "header", "hr", "legend", "li", "main", "nav", "ol", "p", "pre", "section",
        "summary", "table", "td", "th", "tr", "ul",
    )
)  # fmt: skip
_UNSEEN_ELEMENTS = frozenset(("script", "style", "template", "noscript", "svg"))

_ITEM = re.compile(r"\s*(?:[-*+•>|#=]|```|~~~|\d+[.)]\s)")
_NARROWEST_WRAP, _WIDEST_WRAP = 55, 120


def markdown_title(text: str) -> str | None:
    """The first heading of a Markdown document, if there is one outside of code."""
    for match in _HEADING.finditer(_FENCE.sub("", text)):
        # Taken off one by one: as one pattern, three repetitions of blanks take cubic time.
        title = (match[1] or match[2]).rstrip(" \t")
        if match[1]:
            title = title.rstrip("#").rstrip(" \t") or title
        if title:
            return title
    return None


def unwrap(text: str) -> str:
    """Replaces the line breaks within hard-wrapped paragraphs by spaces, one for one.

    A line break is taken for a wrap if the next line's first word would not have fitted on its
    line, the width being that of the paragraph's longest line. Lists, quotations, tables and
    headings keep their lines.
    """
    parts: list[str] = []
    for blank, group in groupby(text.split("\n"), key=lambda line: not line.strip()):
        lines = list(group)
        width = max(len(line.rstrip()) for line in lines)
        wrapped = not blank and _NARROWEST_WRAP <= width <= _WIDEST_WRAP
        parts.append(lines[0])
        for before, line in pairwise(lines):
            fits = not wrapped or len(before.rstrip()) + 1 + len(line.split()[0]) <= width
            parts += ["\n" if fits or _ITEM.match(line) else " ", line]
        parts.append("\n")
    return "".join(parts[:-1])


def html_to_text(page: str) -> tuple[str | None, str]:
    """The title of an HTML page (its <title>, or else its first <h1>) and the text people see."""
    found = _Page()
    for kind, value in html_tokens(page):
        if kind == "text":
            found.add(value)
        elif kind == "start":
            found.start(value)
        else:
            found.end(value)
    lines = (" ".join(line.split()) for line in "".join(found.text).split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    title = " ".join("".join(found.title).split()) or " ".join("".join(found.heading).split())
    return title or None, text


class _Page:
    """What was seen of a page so far."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []
        self._unseen = 0
        self._in_title = False
        self._headings = 0
        self._in_heading = False

    def start(self, tag: str) -> None:
        if tag in _UNSEEN_ELEMENTS:
            self._unseen += 1
        elif tag == "title":
            self._in_title = True
        elif tag in _BLOCK_ELEMENTS:
            self.text.append("\n" if tag in ("br", "li", "tr", "td", "th") else "\n\n")
        if tag == "h1":
            self._headings += 1
            self._in_heading = self._headings == 1

    def end(self, tag: str) -> None:
        if tag in _UNSEEN_ELEMENTS:
            self._unseen = max(0, self._unseen - 1)
        elif tag == "title":
            self._in_title = False
        elif tag in _BLOCK_ELEMENTS and tag != "br":
            self.text.append("\n")
        if tag == "h1":
            self._in_heading = False

    def add(self, data: str) -> None:
        if self._unseen:
            return
        if self._in_title:
            self.title.append(data)
            return
        if self._in_heading:
            self.heading.append(data)
        self.text.append(data.replace("\n", " ").replace("\r", " "))
