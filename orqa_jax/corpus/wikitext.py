"""Wikitext to plain text: prose stays; references, tables, infoboxes, files and navigation go.

Templates are not expanded, for that takes a whole wiki. Those that carry numbers, dates and words
within sentences are spelled out here; the others are dropped, and the marks they leave behind,
"( ; )", are mended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.parser import ParserError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DISAMBIGUATION = re.compile(
    r"""
    __DISAMBIG__ |
    \{\{ \s* (?:
        (?: \w+ [\s-]+ )* disambig (?:uation)? (?:[ ]page)? |
        disamb | dab | hndis | geodis | numberdis | schooldis | roaddis | mil-unit-dis | mathdab |
        disambigua | desambiguaci[oó]n | desambiguação | homonymie |
        begriffsklärung | неоднозначность
    ) \s* (?: \| | \}\} )
    """,
    re.VERBOSE | re.IGNORECASE,
)

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REFERENCE = re.compile(
    r"<ref\b[^<>]*/> | <ref\b[^<>]*> (?: (?!<ref\b). )*? </ref\s*>",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_OPEN_OR_CLOSE = re.compile(r"\{\{|\}\}|\[|\]|</|/>|<(?!(?:br|hr|li|p)\b)(?=\w)")
_MOST_UNCLOSED = 500
_HEADING = re.compile(r"(={1,6})(.+?)\1\s*")
_UNREAD_SECTIONS = frozenset(
    (
        "bibliography",
        "citations",
        "external link",
        "external links",
        "footnotes",
        "further reading",
        "gallery",
        "notes",
        "notes and references",
        "other websites",
        "references",
        "references and notes",
        "related pages",
        "see also",
        "sources",
    )
)
_UNREAD_NAMESPACES = _words(
    """
    file image category media template datei bild kategorie fichier catégorie archivo imagen
    categoría categoria immagine ficheiro imagem bestand afbeelding categorie plik grafika
    файл изображение категория
    """
)
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_UNREAD_TAGS = _words(
    """
    ref references table gallery math chem ce score timeline imagemap syntaxhighlight source graph
    mapframe maplink templatestyles hiero categorytree inputbox includeonly style script
    """
)
_LOST_TAG = re.compile(
    r"""
    </? (?: abbr | b | big | blockquote | br | center | cite | code | div | em | font | gallery |
    i | includeonly | li | math | noinclude | nowiki | ol | onlyinclude | p | poem | pre | q | ref |
    references | s | section | small | span | strong | sub | sup | table | td | th | tr | tt | u |
    ul ) \b [^<>]* >
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_LOST_BRACKETS = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||^\|[}\-+]?.*$", re.MULTILINE)
_STYLE = re.compile(r"''+")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")

_SPACES = re.compile(r"[ \t\xa0]+")
# Written for text whose runs of spaces are single spaces, and bounded to stay linear.
_REPEATED_SEPARATOR = re.compile(r"([;,])(?: ?[;,])+")
_AFTER_OPENING = re.compile(r"\( ?(?:[;,:] ?){0,9}(?:or ?(?=\)))?")
_BEFORE_CLOSING = re.compile(r"(?: ?[;,:]){0,9} ?\)")
_EMPTY_BRACKETS = re.compile(r" ?\(\)| ?\[\]| ?“”")
_SPACE_BEFORE_MARK = re.compile(r" ([,.])(?=\s|\Z)")

# Begins the line of a heading between conversion and clean-up; XML cannot contain it.
_HEADING_MARK = "\x01"


def is_disambiguation(title: str, body: str) -> bool:
    """Says whether a page only lists what its title may mean."""
    return title.lower().endswith("(disambiguation)") or bool(_DISAMBIGUATION.search(body))


def wikitext_to_text(body: str) -> str:
    """Converts an article to plain text, one line for each paragraph, list item and heading.

    Sections of references, links and further reading are left out, and headings without text.
    """
    body = _COMMENT.sub("", body)
    body = _REFERENCE.sub("", body)
    body = "\n".join(_prose_lines(body.split("\n")))
    if _unclosed(body) > _MOST_UNCLOSED:
        return _tidy(body)
    try:
        # Bold and italics are often left open, which confuses the parser; `_tidy` removes them.
        return _tidy(_convert(mwparserfromhell.parse(body, skip_style_tags=True)))
    except ParserError:
        return _tidy(body)


def _unclosed(body: str) -> int:
    """Counts openings that are never closed; the parser's time is quadratic in them."""
    depth = dict.fromkeys("{[<", 0)
    for match in _OPEN_OR_CLOSE.finditer(body):
        mark = match[0]
        if mark in ("{{", "[", "<"):
            depth[mark[0]] += 1
        else:
            kind = {"}}": "{", "]": "["}.get(mark, "<")
            depth[kind] = max(0, depth[kind] - 1)
    return sum(depth.values())


def _prose_lines(lines: Iterable[str]) -> Iterable[str]:
    """Leaves out tables and unread sections before the slow parser sees them."""
    unread_level = 7
    tables = 0
    for line in lines:
        if heading := _HEADING.fullmatch(line.rstrip()):
            level = len(heading[1])
            tables = 0  # a table left open ends with its section at the latest
            if level <= unread_level:
                title = _STYLE.sub("", heading[2]).strip().lower()
                unread_level = level if title in _UNREAD_SECTIONS else 7
        if unread_level < 7:
            continue
        start = line.lstrip(" \t:*")
        if start.startswith("{|"):
            tables += 1
        elif tables and start.startswith("|}") and not start.startswith("|}}"):
            tables -= 1
            yield start[2:]
            continue
        if not tables:
            yield line


def _convert(code: Any) -> str:
    return "".join([_convert_node(node) for node in code.nodes]) if code is not None else ""


def _convert_node(node: Any) -> str:
    if isinstance(node, nodes.Text):
        return node.value
    if isinstance(node, nodes.Wikilink):
        return _convert_link(node)
    if isinstance(node, nodes.Template):
        return _convert_template(node)
    if isinstance(node, nodes.Tag):
        name = str(node.tag).strip().lower()
        if name in _UNREAD_TAGS or node.wiki_markup in ("*", "#", ";", "----"):
            return ""
        if node.wiki_markup == ":":
            return ": "  # between a term and its definition; `_tidy` removes it as indentation
        return "\n" if name in ("br", "hr", "p") and node.self_closing else _convert(node.contents)
    if isinstance(node, nodes.Heading):
        return f"\n{_HEADING_MARK}{node.level}{_convert(node.title)}\n"
    if isinstance(node, nodes.HTMLEntity):
        return node.normalize()
    if isinstance(node, nodes.ExternalLink):
        return _convert(node.title)
    return ""


def _convert_link(link: Any) -> str:
    target = str(link.title).strip()
    prefix, colon, name = target.partition(":")
    if colon and prefix.strip().lower() in _UNREAD_NAMESPACES:
        return ""
    if link.text is not None:
        return _convert(link.text)
    if colon and _INTERLANGUAGE.fullmatch(prefix):
        return ""
    if colon and prefix in ("", "w", "wikt", "wiktionary", "s", "wikisource"):
        target = name
    return _convert(mwparserfromhell.parse(target.partition("#")[0]))


def _convert_template(template: Any) -> str:
    name = " ".join(str(template.name).replace("_", " ").split()).lower()
    name = name.removeprefix("template:")
    function, colon, argument = name.partition(":")
    if colon and function == "formatnum":
        return _number(argument.strip())
    arguments = _Arguments(template)
    if name in _MARKS:
        return _MARKS[name]
    if name in _FIRST_ARGUMENT or name.startswith("lang-"):
        return arguments["1"]
    if name in _CURRENCIES:
        return _CURRENCIES[name] + arguments["1"]
    if name in _SHIP_PREFIXES:
        return f"{name.upper()} {arguments['1']}"
    spell_out = _SPELL_OUT.get(name)
    return spell_out(arguments) if spell_out else ""


class _Arguments:
    """The arguments of a template by name, as plain text, "" for those it does not have."""

    def __init__(self, template: Any) -> None:
        self._values = {str(p.name).strip(): p.value for p in template.params}

    def __getitem__(self, name: str) -> str:
        return _convert(self._values.get(name)).strip()

    def positional(self, first: int = 1) -> list[str]:
        """Arguments number `first` and following."""
        values: list[str] = []
        while str(first + len(values)) in self._values:
            values.append(self[str(first + len(values))])
        return values


def _number(text: str) -> str:
    """12345.6 as 12,345.6, the way articles show it; anything else unchanged."""
    sign, digits, rest = re.fullmatch(r"([-−]?)(\d*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if len(digits) < 4 or (rest and not re.fullmatch(r"\.\d+", rest)):
        return text
    return f"{sign}{int(digits):,}{rest}"


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_JOINERS = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "or": " or ", "x": " × ",
    "×": " × ", "by": " by ", "xx": " × ", "*": " × ", "+": " + ", "/": "/", "+/-": " ± ",
    "±": " ± ", "&": " & ",
}  # fmt: skip
_UNITS = {
    "C": "°C", "F": "°F", "km2": "km²", "m2": "m²", "cm2": "cm²", "mm2": "mm²", "m3": "m³",
    "km3": "km³", "cm3": "cm³", "sqkm": "km²", "sqm": "m²", "sqmi": "sq mi", "mi2": "sq mi",
    "sqft": "sq ft", "sqin": "sq in", "sqyd": "sq yd", "cuft": "cu ft", "cuin": "cu in",
    "cumi": "cu mi", "kph": "km/h", "kn": "knots", "usgal": "US gal", "USgal": "US gal",
    "impgal": "imp gal", "lb-f": "lbf", "ft.lbf": "ft⋅lbf", "pd/sqmi": "per sq mi",
    "PD/sqmi": "per sq mi", "PD/km2": "per km²", "/sqmi": "per sq mi", "/km2": "per km²",
    "lt": "long tons", "ST": "short tons", "MT": "metric tons", "ha": "hectares", "acre": "acres",
}  # fmt: skip
_SECOND_UNITS = frozenset(("in", "ft", "oz", "lb", "yd"))


def _convert_unit(arguments: _Arguments) -> str:
    """{{convert|5|ft|11|in|m}}: the quantity as it was written; it is not converted."""
    values = arguments.positional()
    if len(values) < 2:
        return " ".join(values)
    text, rest = _number(values[0].replace("+", " ")), values[1:]
    while len(rest) >= 2 and rest[0] in _JOINERS:
        text += _JOINERS[rest[0]] + _number(rest[1])
        rest = rest[2:]
    if rest:
        text += " " + _UNITS.get(rest[0], rest[0])
    if len(rest) >= 3 and rest[2] in _SECOND_UNITS and rest[1][:1].isdigit():
        text += f" {rest[1]} {rest[2]}"
    return text


def _date(arguments: _Arguments) -> str:
    year, month, day = ([*arguments.positional(), "", "", ""])[:3]
    if not (month.isdigit() and 1 <= int(month) <= 12):
        return " ".join(part for part in (day, month, year) if part)
    name = _MONTHS[int(month) - 1]
    if not day:
        return f"{name} {year}"
    day = day.lstrip("0")
    return f"{day} {name} {year}" if arguments["df"] else f"{name} {day}, {year}"


def _years(prefix: str) -> Callable[[_Arguments], str]:
    def spell_out(arguments: _Arguments) -> str:
        years = [year for year in arguments.positional()[:2] if year]
        return f"{prefix} {'–'.join(years)}" if years else ""

    return spell_out


def _as_of(arguments: _Arguments) -> str:
    return f"{'as' if arguments['lc'] else 'As'} of {_date(arguments)}"


def _value(arguments: _Arguments) -> str:
    unit = arguments["u"] or arguments["ul"] or arguments["up"]
    value = _number(arguments["1"])
    if uncertainty := arguments["2"]:
        value += f" ± {uncertainty}"
    if exponent := arguments["e"]:
        value += f" × 10^{exponent}"
    return f"{arguments['p']}{value} {unit}".rstrip() + arguments["s"]


def _fraction(arguments: _Arguments) -> str:
    match arguments.positional():
        case [denominator]:
            return f"1/{denominator}"
        case [numerator, denominator]:
            return f"{numerator}/{denominator}"
        case [whole, numerator, denominator]:
            return f"{whole} {numerator}/{denominator}"
    return ""


def _nihongo(arguments: _Arguments) -> str:
    english, *others = arguments.positional()[:3] or [""]
    inside = ", ".join(other for other in others if other)
    return f"{english} ({inside})" if inside else english


def _chinese(arguments: _Arguments) -> str:
    values = (arguments[key] for key in ("1", "c", "s", "t", "p"))
    return ", ".join(dict.fromkeys(value for value in values if value))


def _last(arguments: _Arguments) -> str:
    return (arguments.positional() or [""])[-1]


def _joined(separator: str) -> Callable[[_Arguments], str]:
    return lambda arguments: separator.join(filter(None, arguments.positional()))


def _quotation(arguments: _Arguments) -> str:
    return f"\n{arguments['text'] or arguments['quote'] or arguments['1']}\n"


def _ship_class(arguments: _Arguments) -> str:
    return f"{arguments['1']}-class {arguments['2']}"


_MARKS = {
    "'": "'", "' \"": "' \"", "'s": "'s", "snd": " – ", "spnd": " – ", "spaced ndash": " – ",
    "spaced en dash": " – ", "spaced endash": " – ", "ndash": "–", "en dash": "–", "endash": "–",
    "mdash": "—", "em dash": "—", "spaced mdash": " — ", "nbsp": " ", "space": " ", "spaces": " ",
    "!": "|", "=": "=", "dot": " · ", "middot": " · ", "·": " · ", "bull": " · ", "•": " · ",
    "*": " · ", "shy": "", "wbr": "", "zwsp": "", "times": "×", "minus": "−", "pi": "π",
    "mdashb": " — ", "thinsp": " ", "hair space": " ", "clear": "\n", "pb": "\n",
    "paragraph break": "\n", "break": "\n", "-": "\n",
}  # fmt: skip
_FIRST_ARGUMENT = frozenset(
    (
        "abbr", "abbreviation", "angbr", "angle bracket", "as written", "avoid wrap", "big",
        "birth year and age", "birth-date", "blue", "bold", "center", "chem2",
        "death year and age", "death-date", "dts", "em", "flag", "flagcountry", "flagu", "gr",
        "grc", "hebrew", "ill", "interlanguage link", "italic", "italics", "keypress", "large",
        "larger", "linktext", "math", "mono", "mvar", "no wrap", "nobold", "nobr", "noitalic",
        "not a typo", "nowr", "nowrap", "nowraplinks", "nq", "plainlist", "polytonic",
        "proper name", "railgauge", "resize", "sc", "script", "sic", "small", "small caps",
        "smallcaps", "smaller", "sortname", "strong", "sub", "sup", "tooltip", "translation",
        "unicode", "vanchor", "var", "visible anchor",
    )
)  # fmt: skip
_CURRENCIES = {
    "us$": "US$", "usd": "US$", "usdollar": "US$", "$": "$", "£": "£", "gbp": "£", "€": "€",
    "euro": "€", "eur": "€", "inr": "₹", "₹": "₹", "jpy": "¥", "¥": "¥", "a$": "A$", "aud": "A$",
    "au$": "A$", "c$": "C$", "cad": "C$", "nz$": "NZ$", "nzd": "NZ$",
}  # fmt: skip
_ACCIDENTALS = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}
_SHIP_PREFIXES = _words("hms uss ss rms hmas hmcs hmnzs ins mv ms sms usns uscgc")
_SPELL_OUT: dict[str, Callable[[_Arguments], str]] = {
    **dict.fromkeys(("convert", "cvt", "conv"), _convert_unit),
    **dict.fromkeys(
        (
            "birth date", "birth date and age", "birth-date and age", "bda", "dob", "death date",
            "death date and age", "death-date and age", "dda", "start date", "start date and age",
            "end date", "end date and age", "film date", "start-date", "end-date", "date", "dtsn",
        ),
        _date,
    ),
    **dict.fromkeys(("circa", "c.", "ca", "ca.", "c"), _years("c.")),
    **dict.fromkeys(("floruit", "fl."), _years("fl.")),
    **dict.fromkeys(("reign", "r."), _years("r.")),
    **dict.fromkeys(("as of", "asof"), _as_of),
    **dict.fromkeys(("formatnum", "nts", "number", "num"), lambda a: _number(a["1"])),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("lang", "rtl-lang"), lambda a: a["2"]),
    **dict.fromkeys(("transl", "transliteration"), _last),
    **dict.fromkeys(("nihongo", "nihongo2", "nihongo krt"), _nihongo),
    **dict.fromkeys(("quote", "blockquote", "cquote", "quotation", "bquote"), _quotation),
    **dict.fromkeys(("hlist", "ubl", "unbulleted list", "flatlist"), _joined(", ")),
    **dict.fromkeys(("oldstyledate", "old style date"), _joined(" ")),
    **dict.fromkeys(("bibleref", "bibleverse", "bibleref2"), lambda a: f"{a['1']} {a['2']}"),
    **dict.fromkeys(("ordered list", "bulleted list", "unordered list"), _joined("\n")),
    "chem": _joined(""),
    "e": lambda a: f" × 10^{a['1']}",
    "music": lambda a: _ACCIDENTALS.get(a["1"], ""),
    "gaps": _joined(" "),
    "sclass": _ship_class,
    "sclass-": _ship_class,
    "val": _value,
    "zh": _chinese,
}  # fmt: skip


def _tidy(text: str) -> str:
    text = _LOST_TAG.sub("", text)
    text = _LOST_TEMPLATE.sub("", text)
    text = _LOST_BRACKETS.sub("", text)
    text = _STYLE.sub("", text)
    text = _MAGIC_WORD.sub("", text)
    text = _SPACES.sub(" ", text)
    text = _REPEATED_SEPARATOR.sub(r"\1", text)
    text = _AFTER_OPENING.sub("(", text)
    text = _BEFORE_CLOSING.sub(")", text)
    text = _EMPTY_BRACKETS.sub("", text)
    text = _SPACE_BEFORE_MARK.sub(r"\1", text)
    return "\n".join(_drop_empty_sections(text.split("\n")))


def _drop_empty_sections(lines: Iterable[str]) -> Iterable[str]:
    """Leaves out lines without a letter or digit, and headings that no line follows."""
    waiting: list[tuple[int, str]] = []
    for line in lines:
        heading = line.startswith(_HEADING_MARK)
        level, line = (int(line[1]), line[2:]) if heading else (0, line)
        line = line.lstrip(" *#:;").rstrip()
        if not any(map(str.isalnum, line)):
            continue
        if heading:
            waiting = [(other, title) for other, title in waiting if other < level]
            waiting.append((level, line))
        else:
            yield from (title for _, title in waiting)
            waiting = []
            yield line
