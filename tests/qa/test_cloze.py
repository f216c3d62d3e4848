import dataclasses

import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.qa.cloze import GRAMMARS, Capitals, Span, cloze_examples, salient_spans
from orqa_jax.qa.examples import Place, load_examples, save_examples

# Sentences of our own. What is salient was marked by hand, in double brackets, before the rules
# ran; they found 38 of the 45 spans then, and 5 that are none.
LABELLED = """
[[Ilsa Brandt]] sailed from [[Bergen]] to [[Hull]] in [[1870]].
The harbour of [[Dorn]] froze on [[3 March 1871]] and stayed closed for [[17]] days.
In [[Orkney]] the ferry runs twice a week.
Most of the [[2,340]] people there speak [[Norn]] at home.
On [[June 4, 1902]], [[Lord Ferris]] sold the mill to the [[Bank of Harrow]].
[[Harrow]]'s mill was rebuilt with [[4.5 million]] bricks.
It burned again in the [[1930s]], and nobody was hurt.
[[Jan van der Velde]] painted the ceiling of [[St Mary]] in the [[17th century]].
The abbey was founded in about [[612 AD]] by monks from [[Iona]].
Iron was cheap, so bridges were made of it.
However, [[Mina Toll]] never returned to [[New Dorn]].
[[Oda Lind]] and [[Perrin Voss]] met at the [[Royal Observatory]] in [[May 1922]].
Her book, [[The Salt Road]], sold [[900]] copies.
When the war ended, the town had lost [[12%]] of its houses.
The river [[Esk]] flows past the old walls of the town.
[[Dr. Hale]] measured the tower at [[96]] metres.
Children under six travel free on all buses.
Each of the [[three]] bells weighs more than a cart.
The [[U.S.]] bought the islands in [[1867]].
[[Ferris]] was buried in [[Hull]] beside the [[Humber]].
[[Salt]] mines made the valley rich.
The [[Treaty of Iona]] was signed by [[Harald IV]].
She wrote that the [[Earth]] was older than anyone thought.
[[Twelve]] ships left, but only [[5]] came back.
"""
MORE = "So the town of Harrow grew. Near Harrow lies Dorn, and past Ferris and Orkney the sea."


def labelled():
    for line in LABELLED.strip().splitlines():
        plain, spans = "", set()
        for place, part in enumerate(line.replace("]]", "[[").split("[[")):
            if place % 2:
                spans.add((len(plain), len(plain) + len(part)))
            plain += part
        yield plain, spans


def test_precision_on_sentences_marked_by_hand():
    sentences = list(labelled())
    capitals = Capitals([*(plain for plain, _ in sentences), *MORE.split(". ")])
    right = found = marked = 0
    for plain, expected in sentences:
        spans = {(s.start, s.end) for s in salient_spans(plain, capitals, GRAMMARS["english"])}
        right += len(spans & expected)
        found += len(spans)
        marked += len(expected)
    print(f"precision {right}/{found}, recall {right}/{marked}")
    # Numbers in words are missed.
    assert right / found >= 0.95
    assert right / marked >= 0.9


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It began on 4 May 1911 at noon.", [("4 May 1911", "date")]),
        ("It fell in 44 B.C. to the north.", [("44 B.C.", "date")]),
        ("It fell in 612 BC.", [("612 BC", "date")]),
        ("It took 1,200 men and 3.5 years.", [("1,200", "number"), ("3.5", "number")]),
        ("Version 1.2.3 and 10/12 are no numbers.", []),
        ("It cost 1500000 in 1999.", [("1500000", "number"), ("1999", "date")]),
        ("I saw it and I'm sure.", []),
        ("We met Élodie D'Arcy-Smith's son.", [("Élodie D'Arcy-Smith", "name")]),
        ("We met J. K. Marrow there.", [("J. K. Marrow", "name")]),
        ("It is on Monday or in May.", []),
        ("It was the Bank of the North Sea that closed.", [("Bank of the North Sea", "name")]),
        ("", []),
    ],
)
def test_spans_by_hand(sentence, expected):
    found = salient_spans(sentence, Capitals(["So we say that it is so."]), GRAMMARS["english"])
    assert [(sentence[s.start : s.end], s.kind) for s in found] == expected


@pytest.mark.parametrize(
    ("language", "sentence", "expected"),
    [
        (
            "spanish",
            "El 3 de mayo de 1911 llegaron 1.200 hombres a Villa del Mar.",
            [("3 de mayo de 1911", "date"), ("1.200", "number"), ("Villa del Mar", "name")],
        ),
        (
            "spanish",
            "Cayó en 44 a. C. y otra vez en octubre de 1492, un lunes.",
            [("44 a. C.", "date"), ("octubre de 1492", "date")],
        ),
        (
            "spanish",
            "En el siglo XV medía 3,5 millones.",
            [("siglo XV", "date"), ("3,5 millones", "number")],
        ),
        (
            "french",
            "Le 1er mai 1911, 1 200 hommes vinrent à Pont de la Reine.",
            [("1er mai 1911", "date"), ("1 200", "number"), ("Pont de la Reine", "name")],
        ),
        (
            "french",
            "Vers 44 av. J.-C. et au XVe siècle on en comptait 3,5 millions.",
            [("44 av. J.-C.", "date"), ("XVe siècle", "date"), ("3,5 millions", "number")],
        ),
        (
            "french",
            "C'est près de l'Institut Roy qu'Anne O'Dell est née.",
            [("Institut Roy", "name"), ("Anne O'Dell", "name")],
        ),
    ],
)
def test_spans_of_other_languages(language, sentence, expected):
    found = salient_spans(sentence, Capitals(["le lundi", "el lunes"]), GRAMMARS[language])
    assert [(sentence[s.start : s.end], s.kind) for s in found] == expected


def test_pairs_in_french():
    rows = [
        ("a", 0, "Le vieux moulin de la colline fut construit par Odile Linde."),
        ("b", 0, "Tout le monde dans la vallée a entendu parler de Odile Linde."),
    ]
    pairs = cloze_examples(Corpus(rows, "french"), count=5)
    assert {pair.answers for pair in pairs} == {("Odile Linde",)}
    assert {pair.question for pair in pairs} == {
        "Le vieux moulin de la colline fut construit par quoi?",
        "Tout le monde dans la vallée a entendu parler de quoi?",
    }
    with pytest.raises(OrqaError, match="know english, french, spanish, not 'german'"):
        cloze_examples(Corpus(rows, "german"), count=5)


def test_the_first_word_of_a_sentence():
    capitals = Capitals(
        ["We like Oslo.", "He saw the sea and some salt.", "A Salt Road, with salt."]
    )
    for sentence, expected in (
        ("Oslo is cold.", [Span(0, 4, "name")]),
        ("Salt is dear.", []),
        ("Unknown is new.", []),
        ("The Oslo fair is old.", [Span(4, 8, "name")]),
    ):
        assert salient_spans(sentence, capitals, GRAMMARS["english"]) == expected


@dataclasses.dataclass
class Corpus:
    """Blocks as a store has them: (document, where in it, text)."""

    rows: list
    language: str = "english"

    def __len__(self):
        return len(self.rows)

    def document_id(self, block):
        return self.rows[block][0]

    def document_start(self, block):
        return self.rows[block][1]

    def text(self, block):
        return self.rows[block][2]


CORPUS = Corpus(
    [
        ("a", 0, "A short one. The old mill at Harrow was built by Oda Lind in the spring."),
        ("a", 100, "Everyone in the valley has heard of Oda Lind. She was rich and well known."),
        ("b", 0, "People say that the bridge near Dorn is older than the road to Dorn itself."),
        ("c", 0, "The way to Dorn is long, and there is no inn on it. It has 31 bends"),
        ("d", 7, "They counted the bends of the road and there were 31 of them in all."),
    ]
)


def test_pairs():
    made = {example.id: example for example in cloze_examples(CORPUS, count=10)}
    # Harrow stands in one block only; block b names Dorn twice; the last sentence of c has no end.
    assert made.keys() == {"cloze-0-49", "cloze-1-36", "cloze-3-11", "cloze-4-50"}
    first = made["cloze-0-49"]
    assert first.question == "The old mill at Harrow was built by what in the spring?"
    assert (first.answers, first.taken_from) == (("Oda Lind",), Place("a", 13))
    assert made["cloze-1-36"].question == "Everyone in the valley has heard of what?"
    assert made["cloze-1-36"].taken_from == Place("a", 100)
    number = made["cloze-4-50"]
    assert (
        number.question
        == "They counted the bends of the road and there were how many of them in all?"
    )
    assert (number.answers, number.taken_from) == (("31",), Place("d", 7))


def test_the_same_seed_makes_the_same_pairs(tmp_path):
    few = cloze_examples(CORPUS, count=2, seed=5)
    assert few == cloze_examples(CORPUS, count=2, seed=5)
    assert len(few) == 2
    assert {tuple(cloze_examples(CORPUS, count=2, seed=s)) for s in range(9)} > {tuple(few)}
    save_examples(tmp_path / "qa.jsonl", few)
    assert load_examples(tmp_path / "qa.jsonl") == few


def test_a_corpus_that_yields_nothing():
    with pytest.raises(OrqaError, match="larger corpus of prose"):
        cloze_examples(Corpus([("a", 0, "nothing is said here at all, by no one.")]), count=3)
    with pytest.raises(OrqaError, match="0 cloze pairs cannot be made"):
        cloze_examples(CORPUS, count=0)
