import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

import pytest

from orqa_jax.serve.config import ServeConfig
from orqa_jax.serve.openapi import describe
from orqa_jax.serve.pages import docs_page, question_page, security_policy

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Every element with its attributes and the text within it, and what is not well-formed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.wrong = [], [], []
        self.feed(text)
        self.close()
        self.wrong += [f"{tag} is left open" for tag, _ in self.open]

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append((tag, element[2]))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.wrong.append(f"</{tag}> closes nothing")
        else:
            self.open.pop()

    def handle_data(self, data):
        for _, texts in self.open:
            texts.append(data)

    def all(self, tag):
        return [
            (attributes, "".join(text)) for name, attributes, text in self.elements if name == tag
        ]


PAGES = {"/": question_page(), "/docs": docs_page(describe(ServeConfig(run="r")))}


@pytest.fixture(params=PAGES)
def text(request):
    return PAGES[request.param]


def test_pages_are_whole(text):
    page = Page(text)
    assert page.wrong == []
    assert "<!-- " not in text
    assert "/* style.css */" not in text
    assert text.startswith("<!doctype html>")
    assert page.all("html")[0][0] == {"lang": "en"}
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name in ("main", "h1", "title"):
        assert len(page.all(name)) == 1
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_pages_call_no_other_host_and_have_nothing_inline_that_the_policy_forbids(text):
    for tag, attributes, _ in Page(text).elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert tag not in ("iframe", "object", "embed", "base", "img")
        assert not attributes.get("href", "").startswith(("http", "//", "/")), attributes
    without_pattern = text.replace(r"/^https?:\/\//", "").replace("http://HOST:PORT", "")
    assert "http" not in re.sub(r"openapi\.json", "", without_pattern).replace("HTTP", "")
    assert "url(" not in text
    assert "@import" not in text


def test_the_policy_allows_this_script_and_this_style_alone(text):
    policy = dict(part.split(" ", 1) for part in security_policy(text).split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        expected = [
            "'sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() + "'"
            for _, inside in Page(text).all(tag)
        ]
        assert policy[f"{tag}-src"].split() == (expected or ["'none'"])
    assert "unsafe" not in str(policy)


def test_the_script_finds_every_element_it_asks_for():
    [(_, script)] = Page(PAGES["/"]).all("script")
    ids = {attributes.get("id") for _, attributes, _ in Page(PAGES["/"]).elements}
    asked = set(re.findall(r'byId\("([^"]+)"\)', script))
    assert asked
    assert asked <= ids
    # Answers come from documents that anyone may have written.
    assert "innerHTML" not in script
    assert "insertAdjacentHTML" not in script
    assert "eval" not in script


def test_everything_that_takes_input_has_a_name():
    page = Page(PAGES["/"])
    ids = {attributes["id"]: attributes for _, attributes, _ in page.elements if "id" in attributes}
    for attributes, _ in page.all("input"):
        assert attributes["aria-label"]
    for _, text in [*page.all("button"), *page.all("a")]:
        assert text.strip()
    for attributes, _ in page.all("section"):
        assert attributes["aria-labelledby"] in ids
    [status] = [a for _, a, _ in page.elements if a.get("role") == "status"]
    assert status["id"] == "status"
    assert "user-scalable" not in str(page.all("meta"))


def luminance(color):
    """Of WCAG 2.2, relative luminance."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrasts_reach_aa(scheme):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    roots = re.findall(r":root \{(.*?)\}", PAGES["/"], re.DOTALL)
    color = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", roots[0]))
    if scheme == "dark":
        changed = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", roots[1]))
        assert changed.keys() == color.keys()
        color = changed
    texts = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("ground", "card")]
    texts += [("warn", "ground"), ("wrong", "ground"), ("on-accent", "accent")]
    texts += [("ink", "sentence"), ("mark-ink", "mark")]
    for ink, ground in texts:
        assert contrast(color[ink], color[ground]) >= 4.5, (ink, ground)
    # The edge of the input, and the ring around what has the focus.
    for ink in ("edge", "accent"):
        assert contrast(color[ink], color["ground"]) >= 3, ink


def test_the_api_page_tells_of_every_path_and_key():
    description = describe(ServeConfig(run="r", max_questions=17, max_characters=123))
    page = docs_page(description)
    plain = "".join("".join(text) for tag, _, text in Page(page).elements if tag == "body")
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in plain
    for name, schema in description["components"]["schemas"].items():
        assert f'id="{name}"' in page
        for key in schema["properties"]:
            assert key in plain
    assert "maxItems 17" in plain
    assert "maxLength 123" in plain
    linked = set(re.findall(r'href="#(\w+)"', page))
    assert linked == description["components"]["schemas"].keys() & linked
