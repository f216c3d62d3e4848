import pytest

from orqa_jax.eval.questions import (
    answer_counts,
    answer_frequency,
    answer_type,
    question_length,
    question_word,
)

# Written and labelled by hand before the rules were run on them.
LABELLED = [
    ("When did the mill at Harrow burn down?", ["1807"], "date"),
    ("what year was the lighthouse lit", ["1911", "in 1911"], "date"),
    ("When is the kite festival held?", ["May"], "date"),
    ("on which day do the shops close early", ["Wednesday"], "date"),
    ("When did Ilsa Brandt sail?", ["3 March 1870"], "date"),
    ("when does the ferry season end", ["October 31"], "date"),
    ("In which century was the abbey built?", ["12th century"], "date"),
    ("When did the kingdom fall?", ["612 BC"], "date"),
    ("when did the band record its second album", ["the 1980s"], "date"),
    ("How many strings has a lute?", ["15"], "number"),
    ("how many moons does the planet have", ["two", "2"], "number"),
    ("How tall is the tower?", ["96 m"], "number"),
    ("what is the population of Dorn", ["about 3,400"], "number"),
    ("how long is the tunnel", ["1,520 metres"], "number"),
    ("How much did the bridge cost?", ["$4.5 million"], "number"),
    ("how many people can the arena hold", ["1800"], "date or number"),
    ("what number did the striker wear", ["11"], "number"),
    ("Who painted the ceiling?", ["Oda Lind"], "person"),
    ("who wrote the book about bees", ["maeterlinck"], "person"),
    ("Who was the first mayor?", ["Jan van der Velde", "van der Velde"], "person"),
    ("which king signed the treaty", ["Harald IV"], "person"),
    ("what actress played the nurse", ["Mina Toll"], "person"),
    ("whose horse won the race", ["Lord Ferris"], "person"),
    ("Where is the stone circle?", ["Orkney"], "place"),
    ("where did the family settle", ["Bergen, Norway"], "place"),
    ("Which river runs through the town?", ["the Esk"], "place"),
    ("what country makes the most cork", ["Portugal"], "place"),
    ("what is the capital of the province", ["Arles"], "place"),
    ("In what city was the fair held?", ["Turin"], "place"),
    ("What colour is the flag?", ["green and white"], "other"),
    ("why do cats purr", ["contentment"], "other"),
    ("what is a group of geese called", ["a gaggle"], "other"),
    ("What language do the islanders speak?", ["Faroese"], "other"),
    ("how is the cheese made", ["by smoking"], "other"),
    ("what did the guild trade", ["salt"], "other"),
    ("who makes the engine", ["a firm in the next valley that also makes pumps"], "other"),
]


@pytest.mark.parametrize(("question", "answers", "expected"), LABELLED)
def test_answer_type(question, answers, expected):
    assert answer_type(question, answers) in expected.split(" or ")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was it?", "date"),
        ("How many?", "number"),
        ("Where?", "place"),
        ("Who?", "person"),
        ("What?", "other"),
    ],
)
def test_answer_type_of_patterns_is_that_of_the_question(question, expected):
    assert answer_type(question, [r"(19)?\d\d"], regex=True) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who sang it?", "who"),
        ("To whom was it sold?", "who"),
        ("whose was it", "who"),
        ("what does who mean", "what"),
        ("In which year?", "which"),
        ("HOW MANY?", "how many"),
        ("how much does it cost", "how many"),
        ("how old is it", "how"),
        ("name the river", "other"),
        ("whatever happened", "other"),
        ("", "other"),
        ("the year when it sank", "when"),
        ("Why not where?", "why"),
    ],
)
def test_question_word(question, expected):
    assert question_word(question) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (1, "1-5 words"),
        (5, "1-5 words"),
        (6, "6-8 words"),
        (9, "9-12 words"),
        (13, "13 or more words"),
    ],
)
def test_question_length(words, expected):
    assert question_length("w " * words) == expected


def test_answer_frequency():
    training = [["Oslo", "oslo!"], ["The Oslo"], ["Rome"], *[["seven"]] * 10]
    counts = answer_counts(training)
    assert counts == {"oslo": 2, "rome": 1, "seven": 10}
    found = [answer_frequency(a, counts) for a in (["x"], ["ROME"], ["x", "Oslo"], ["seven"])]
    assert found == ["never in training", "once", "2-9 times", "10 times or more"]
    assert answer_frequency([], counts) == "never in training"
