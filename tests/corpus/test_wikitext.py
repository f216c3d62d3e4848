from __future__ import annotations

import time

import pytest

from orqa_jax.corpus.wikitext import is_disambiguation, wikitext_to_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        # numbers and units
        ("{{convert|10|km|mi|0}} away", "10 km away"),
        ("{{Convert|1234.5|km2|abbr=on}}", "1,234.5 km²"),
        ("{{cvt|-40|C|F}}", "-40 °C"),
        ("{{convert|5|ft|11|in|m}} tall", "5 ft 11 in tall"),
        ("{{convert|10|to|20|km}}", "10 to 20 km"),
        ("{{convert|3|x|4|x|5|m}}", "3 × 4 × 5 m"),
        ("{{convert|1500|-|2000|sqmi|km2}}", "1,500–2,000 sq mi"),
        ("{{formatnum:1234567}} people", "1,234,567 people"),
        ("{{formatnum:12.5}}", "12.5"),
        ("{{val|6.02|e=23|u=mol}}", "6.02 × 10^23 mol"),
        ("{{frac|3|1|2}} and {{frac|3|4}}", "3 1/2 and 3/4"),
        ("{{US$|5 million}}, {{£|300}}", "US$5 million, £300"),
        ("H{{sub|2}}O, {{chem|H|2|SO|4}}", "H2O, H2SO4"),
        # dates
        ("{{birth date|1912|6|23|df=y}}", "23 June 1912"),
        ("{{Birth_date and age|1950|01|02}}", "January 2, 1950"),
        ("{{death date|1954|6|7|1912|6|23}}", "June 7, 1954"),
        ("{{start date|1999|12}}, {{start date|1999}}", "December 1999, 1999"),
        ("({{circa|1850}}), {{c.|1300|1350}}", "(c. 1850), c. 1300–1350"),
        ("{{as of|2010|12}}, {{as of|2011|lc=y}}", "As of December 2010, as of 2011"),
        ("({{reign|1066|1087}})", "(r. 1066–1087)"),
        # words
        ("{{nowrap|A B}} {{nobr|1=c=d}}", "A B c=d"),
        ("{{lang|fr|''Ça va''}}, {{lang-de|Straße}}", "Ça va, Straße"),
        ("{{nihongo|Tokyo Tower|東京タワー|Tōkyō tawā}}", "Tokyo Tower (東京タワー, Tōkyō tawā)"),
        ("{{abbr|UK|United Kingdom}}", "UK"),
        ("[[Nelson]]'s {{HMS|Victory|1765|6}}", "Nelson's HMS Victory"),
        ("1939{{ndash}}1945{{mdash}}war", "1939–1945—war"),
        ("{{nowrap|{{convert|7|lb}} of [[gold|pure gold]]}}", "7 lb of pure gold"),
    ],
)
def test_templates_within_sentences(wikitext, text):
    assert wikitext_to_text(wikitext) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        # links
        ("[[Owl]]s and [[Bird|birds]]", "Owls and birds"),
        ("[[Owl#Diet]], [[:Category:Owls]], [[wikt:hoot]]", "Owl, Category:Owls, hoot"),
        ("[[File:Owl.jpg|thumb|An [[owl]] {{small|x}}.]]Text[[Category:Owls]]", "Text"),
        ("[[fr:Hibou]]An [[It: Chapter Two]] owl", "An It: Chapter Two owl"),
        ("See [https://x.org the site] or [https://y.org].", "See the site or."),
        # references, comments, tables
        ('A.<ref name="a/b">{{cite|x}}</ref> B.<ref name=c/> C.<!-- no -->', "A. B. C."),
        ("A.<ref>open B.<ref>x</ref> C.", "A.open B. C."),
        ("A <!-- never closed [[B]]", "A"),
        ("One\n{| class=x\n! a\n|-\n| b || {{c|}}\n{|\n| inner\n|}\n|}\nTwo", "One\nTwo"),
        ("One\n{| never closed\n| a\n== Head ==\nTwo", "One\nHead\nTwo"),
        # tags and style
        ("'''Bold''', ''italic'', '''''both''''' and '''open", "Bold, italic, both and open"),
        ("<div class='x'>a <small>b</small></div><br/>c<br>d", "a b\nc\nd"),
        ("<nowiki>[[raw]]</nowiki> &amp; &nbsp; &lt;", "raw & <"),
        ("<gallery>\nFile:a.jpg|b\n</gallery>\n<math>x^2</math>T", "T"),
        ("lost </span> tag <center> here", "lost tag here"),
        ("__NOTOC__Text", "Text"),
        # lists
        ("Such as:\n:: this,\n:not that", "Such as:\nthis,\nnot that"),
        ("* one\n** two\n# three\n; term : definition\n----", "one\ntwo\nthree\nterm : definition"),
        # what dropped templates leave behind
        ("Rome ({{IPA|x}}; {{lang-la|Roma}}) is", "Rome (Roma) is"),
        ("Rome ( {{IPA|x}}; {{audio|y}} , ) is {{citation needed}}, he says", "Rome is, he says"),
        ("Rome ({{lang|la|Roma}}, {{IPA|x}}) and (-5, 6)", "Rome (Roma) and (-5, 6)"),
        ("{{Infobox x\n| a = {{convert|1|km}}\n| b = [[c]]\n}}\nText", "Text"),
        ("a {{unclosed|b [[c]] d", "a unclosed|b c d"),
        ("}} a ]] b", "a b"),
    ],
)
def test_markup(wikitext, text):
    assert wikitext_to_text(wikitext) == text


def test_sections():
    wikitext = """
Lead.

== Life ==
=== Youth ===
Born.
=== Empty ===
== Also empty ==
== ''References'' ==
* gone
=== Below ===
gone too
== Legacy ==
Stays.
== See also ==
* [[gone]]
"""
    assert wikitext_to_text(wikitext) == "Lead.\nLife\nYouth\nBorn.\nLegacy\nStays."


@pytest.mark.parametrize(
    ("title", "body", "expected"),
    [
        ("Mercury (disambiguation)", "", True),
        ("Mercury", "x {{disambig}}", True),
        ("Mercury", "x {{ Disambiguation page |geo}}", True),
        ("Mercury", "x {{human name disambiguation}}", True),
        ("Mercury", "x {{hndis|Mercury}}", True),
        ("Mercury", "x __DISAMBIG__", True),
        ("Mercury", "{{other uses|Mercury (disambiguation)}} A planet.", False),
        ("Mercury", "a {{disambiguation needed}} link", False),
    ],
)
def test_disambiguation(title, body, expected):
    assert is_disambiguation(title, body) is expected


@pytest.mark.parametrize(
    "part",
    [
        "{{",
        "[[",
        "{{a|",
        "<ref>a",
        "(:",
        "''",
        "{|\n",
        "\n",
        " ;",
        "<",
        "<!--",
        "==\n",
        "&",
        "[http://a ",
        "{{{a|",
    ],
)
def test_hostile_repetition_is_linear(part):
    start = time.process_time()
    wikitext_to_text(part * 20_000)
    wikitext_to_text("}}]]</a>" * 20_000 + part * 20_000)
    is_disambiguation("x", "{{" + "a-" * 20_000 + part * 20_000)
    assert time.process_time() - start < 5
