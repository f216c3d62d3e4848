"""HTML taken apart into tags and text, in time linear in its length whatever it holds."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{9,}|[xX][0-9a-fA-F]{9,});?")
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_VALUE_OR_END = re.compile(r""">|=\s*+["']""")
_RAW_END = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}


def unescape(text: str) -> str:
    """`html.unescape`, which refuses references to characters of thousands of digits."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def html_tokens(page: str) -> Iterator[tuple[str, str]]:
    """Yields ("start", name), ("end", name) and ("text", what it spells), in time linear in `page`.

    Comments and declarations are left out. The parser of the standard library takes cubic time for
    attributes that never end, and fails on "<![".
    """
    place, shown = 0, 0
    while (begins := page.find("<", place)) >= 0:
        tag = _TAG.match(page, begins)
        if tag is None and page[begins + 1 : begins + 2] not in ("!", "?", "/"):
            place = begins + 1  # no more than a character
            continue
        yield "text", unescape(page[shown:begins])
        if tag is None:
            closes = "-->" if page.startswith("<!--", begins) else ">"
            place = shown = _after(page, closes, begins + 2)
            continue
        ends = _end_of_tag(page, tag.end()) if not tag[1] else _after(page, ">", tag.end())
        name, place = tag[2].lower(), ends
        yield ("end" if tag[1] else "start"), name
        if not tag[1] and page[ends - 2 : ends] == "/>":
            yield "end", name
        elif not tag[1] and name in _RAW_END:
            raw = _RAW_END[name].search(page, ends)
            place = raw.start() if raw else len(page)
        shown = place
    yield "text", unescape(page[shown:])


def _after(page: str, mark: str, place: int) -> int:
    """The place after the next `mark`; the end of the page where there is none."""
    found = page.find(mark, place)
    return len(page) if found < 0 else found + len(mark)


def _end_of_tag(page: str, place: int) -> int:
    """The place after the ">" of a start tag, which a value in quotation marks may hold too."""
    while match := _VALUE_OR_END.search(page, place):
        if match[0] == ">":
            return match.end()
        closing = page.find(match[0][-1], match.end())
        place = match.end() if closing < 0 else closing + 1
    return len(page)
