"""The two pages for people: one to ask, one that describes the API. Neither needs another host."""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from typing import Any


def question_page() -> str:
    """The page to ask on."""
    return _read("page.html").replace("/* style.css */", _read("style.css"))


def docs_page(description: dict[str, Any]) -> str:
    """An OpenAPI description for people."""
    parts = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method.upper(), operation))
    schemas = description["components"]["schemas"]
    parts += ["<h2>What comes back</h2>"]
    parts += [_schema(name, schema) for name, schema in schemas.items()]
    info = description["info"]
    return (
        _read("docs.html")
        .replace("/* style.css */", _read("style.css"))
        .replace("<!-- title -->", html.escape(f"{info['title']} {info['version']}: API"))
        .replace("<!-- body -->", "\n".join(parts))
    )


def security_policy(page: str) -> str:
    """A Content-Security-Policy under which this page can do what it does, and nothing else."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [hashlib.sha256(text.encode("utf-8")).digest() for text in found]
        sources = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        return " ".join(sources) or "'none'"

    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {hashes('script')}",
            f"style-src {hashes('style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


def _read(name: str) -> str:
    return importlib.resources.files("orqa_jax.serve").joinpath(name).read_text("utf-8")


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [
        f"<h2><code>{method} {html.escape(path)}</code></h2>",
        f"<p>{html.escape(operation['summary'])}.</p>",
    ]
    if body := operation.get("requestBody"):
        content = body["content"]["application/json"]
        lines.append(_properties(content["schema"]))
        example = html.escape(json.dumps(content["example"]))
        lines.append(
            f"<pre>curl -H 'Content-Type: application/json' \\\n  -d '{example}' "
            f"http://HOST:PORT{html.escape(path)}</pre>"
        )
    rows = []
    for status, response in operation["responses"].items():
        said = html.escape(response["description"])
        for kind in response["content"].values():
            if name := _reference(kind["schema"]):
                said += f" Body: {name}."
        rows.append(f"<tr><th>{status}</th><td>{said}</td></tr>")
    lines.append(f"<table>{''.join(rows)}</table>")
    return "\n".join(lines)


def _schema(name: str, schema: dict[str, Any]) -> str:
    return f'<h3 id="{html.escape(name)}">{html.escape(name)}</h3>\n{_properties(schema)}'


def _properties(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = []
    for name, value in schema["properties"].items():
        limits = [
            f"{key} {value[key]}"
            for key in ("default", "minimum", "maximum", "minLength", "maxLength", "maxItems")
            if key in value
        ]
        about = [] if name in required else ["optional"]
        about += [html.escape(part) for part in limits]
        described = html.escape(value.get("description", ""))
        rows.append(
            f"<tr><th><code>{html.escape(name)}</code></th><td>{_kind(value)}</td>"
            f"<td>{described}{' ' if described else ''}"
            f'<span class="soft">{", ".join(about)}</span></td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _kind(value: dict[str, Any]) -> str:
    if reference := _reference(value):
        return reference
    kind = value.get("type", "object")
    if kind == "array":
        return f"array of {_kind(value['items'])}"
    return html.escape(" or ".join(kind) if isinstance(kind, list) else kind)


def _reference(value: dict[str, Any]) -> str:
    name = html.escape(value.get("$ref", "").rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>' if name else ""
