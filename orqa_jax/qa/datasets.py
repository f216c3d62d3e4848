"""The published question answering datasets by name, from their files or from TFDS.

Everything becomes a list of `Example`; docs/datasets.md has a card for each dataset.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import farmhash

from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example, Match
from orqa_jax.text.html import html_tokens
from orqa_jax.text.jsonl import read_json, read_jsonl, read_lines, record_id

Split = Literal["train", "dev", "test"]
Paths = Sequence[Path]

# NQ-open leaves out the longer of Natural Questions' short answers (Lee et al. 2019, section 7.1).
MAX_NQ_ANSWER_TOKENS = 5


@dataclass(frozen=True)
class Dataset:
    """What is known of a published dataset.

    Attributes:
        read: yields the examples of its files, which `Example.id` "" lets be numbered.
        counts: published number of questions of each split.
        match: how answers are compared.
        resplit: train and dev are both drawn from the original training file by `is_dev`, since
            what was published as the dev set is the test set here (section 7.1).
        tfds: name in TensorFlow Datasets, and the TFDS split that each of our splits is drawn from.
    """

    read: Callable[[Paths], Iterator[Example]]
    counts: Mapping[Split, int]
    match: Match = "string"
    resplit: bool = False
    tfds: tuple[str, Mapping[Split, str]] | None = None


def load_dataset(
    name: str,
    split: Split | None,
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    tfds_dir: str | os.PathLike[str] | None = None,
) -> list[Example]:
    """Reads a split of a dataset.

    Args:
        name: a key of `DATASETS`.
        split: as published with ORQA. For a dataset that is split again, "train" and "dev" both
            read the original training file, and "test" the original dev or test file. None takes
            all questions of the files, uncounted.
        files: the dataset's own files; see docs/datasets.md. Without any, TFDS is read.
        tfds_dir: where TFDS keeps prepared datasets; its own default where None.

    Raises:
        OrqaError: the name is unknown, a file has a defect, an id stands twice, or the number of
            questions is not the published one.
    """
    if name not in DATASETS:
        raise OrqaError(f"There is no dataset {name!r}; known are {', '.join(DATASETS)}.")
    dataset = DATASETS[name]
    if files:
        source = ", ".join(map(str, files))
        found = dataset.read([Path(file) for file in files])
    else:
        found, source = _from_tfds(name, dataset, split, tfds_dir)
    examples = [
        replace(example, id=example.id or str(number), match=dataset.match)
        for number, example in enumerate(found, start=1)
    ]
    if dataset.resplit and split in ("train", "dev"):
        examples = [example for example in examples if is_dev(example.question) == (split == "dev")]
    if split is not None and len(examples) != dataset.counts[split]:
        raise OrqaError(
            f"The {split} split of {name} has {dataset.counts[split]:,} questions, but "
            f"{len(examples):,} come from {source}: files are missing, or of another version; "
            "without a split they are taken as they are."
        )
    (most, count), *_ = Counter(example.id for example in examples).most_common(1) or [("", 0)]
    if count != 1:
        raise OrqaError(
            f"{source} holds {f'the id {most!r} {count} times' if count else 'nothing'}."
        )
    return examples


def is_dev(question: str) -> bool:
    """Whether a question of a training file is one of the dev split (section 7.1).

    FarmHash `fingerprint64` of its UTF-8, modulo 100,000 and then modulo 10, is 0: what
    `to_hash_bucket_fast` gives in TensorFlow, so the split of the 2019 release.
    """
    return int(farmhash.fingerprint64(question)) % 100_000 % 10 == 0


# --- Natural Questions ----------------------------------------------------------------------------


def read_natural_questions(files: Paths) -> Iterator[Example]:
    """Natural Questions, original or simplified (`.jsonl.gz`), or NQ-open's question-answer pairs.

    Of the first two, questions without a short answer of at most 5 tokens are left out.
    """
    for file in files:
        for where, record in read_jsonl(file):
            if "document_html" not in record and "document_text" not in record:
                yield _pair(where, record)
                continue
            answers = _short_answers(where, record)
            if answers:
                id_ = str(record.get("example_id", ""))
                yield Example(id_, _text(where, record, "question_text"), answers)


def _short_answers(where: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    original = "document_html" in record
    text = _member(where, record, "document_html" if original else "document_text", str)
    # Offsets count bytes of the UTF-8, not characters; those of the simplified release, tokens.
    document: Any = text.encode() if original else text.split(" ")
    answers = []
    try:
        for annotation in record["annotations"]:
            for span in annotation["short_answers"]:
                if span["end_token"] - span["start_token"] > MAX_NQ_ANSWER_TOKENS:
                    continue
                if original:
                    html = document[span["start_byte"] : span["end_byte"]].decode(errors="replace")
                else:
                    html = " ".join(document[span["start_token"] : span["end_token"]])
                answers.append(_without_tags(html))
    except (KeyError, TypeError, AttributeError) as error:
        raise OrqaError(f"{where} is not a record of Natural Questions ({error!r}).") from error
    return _distinct(answers)


def _without_tags(html: str) -> str:
    return "".join(value for kind, value in html_tokens(html) if kind == "text")


# --- The other formats ----------------------------------------------------------------------------


def read_pairs(files: Paths) -> Iterator[Example]:
    """JSON Lines of `question` and `answer`: WebQuestions and CuratedTREC as DrQA has them."""
    for file in files:
        for where, record in read_jsonl(file):
            yield _pair(where, record)


def read_triviaqa(files: Paths) -> Iterator[Example]:
    """TriviaQA's JSON; the answers are the value and its aliases."""
    for file in files:
        for where, record in _numbered(file, _member(file, read_json(file), "Data", list)):
            answer = record.get("Answer")
            if not isinstance(answer, dict):
                raise OrqaError(f"{where} has no 'Answer'; the test set was published without.")
            aliases = _strings(where, answer.get("Aliases", []), "Aliases")
            id_, question = _text(where, record, "QuestionId"), _text(where, record, "Question")
            yield Example(id_, question, _distinct([_text(where, answer, "Value"), *aliases]))


@dataclass(frozen=True)
class GoldSpans:
    """A question whose answers are marked in a text: what strong supervision learns from.

    Attributes:
        example: the question and its answers.
        title: of the article.
        context: the text.
        starts: character of `context` where each of the answers starts.
    """

    example: Example
    title: str
    context: str
    starts: tuple[int, ...]


def read_gold_spans(files: Paths) -> Iterator[GoldSpans]:
    """SQuAD 1.1's JSON. Answers of no characters, and questions without an answer, are left out.

    Raises:
        OrqaError: a file is not SQuAD, or an answer does not stand where it is said to.
    """
    for file in files:
        for article in _member(file, read_json(file), "data", list):
            for paragraph in _member(file, article, "paragraphs", list):
                context = _text(str(file), paragraph, "context")
                for record in _member(file, paragraph, "qas", list):
                    id_ = _text(f"{file}, a question", record, "id")
                    where = f"{file}, question {id_},"
                    marked = _marked_answers(where, record, context)
                    if not marked:
                        continue
                    answers, starts = zip(*marked, strict=True)
                    example = Example(id_, _text(where, record, "question"), answers)
                    yield GoldSpans(example, str(article.get("title", "")), context, starts)


def _marked_answers(where: str, record: Any, context: str) -> list[tuple[str, int]]:
    """Text and start of each answer that has characters."""
    marked = []
    for answer in _member(where, record, "answers", list):
        text = _member(where, answer, "text", str)
        start = _member(where, answer, "answer_start", int)
        if context[start : start + len(text)] != text:
            raise OrqaError(
                f"{where} has the answer {text!r} where its context has "
                f"{context[start : start + len(text)]!r}; the file is damaged."
            )
        if text:
            marked.append((text, start))
    return marked


def read_squad(files: Paths) -> Iterator[Example]:
    """SQuAD 1.1 as an open dataset: questions and distinct answers, without their paragraphs."""
    for gold in read_gold_spans(files):
        yield replace(gold.example, answers=_distinct(gold.example.answers))


def read_wikimovies(files: Paths) -> Iterator[Example]:
    """WikiMovies: "1 question<tab>answer, answer" lines, and the list of its entities.

    Answers are entities, some of which hold commas themselves, so that the line can only be cut
    with their list at hand: one of `files` is named like `entities.txt`.
    """
    lists = [file for file in files if "entities" in file.name and "qa" not in file.name]
    if len(lists) != 1 or len(files) < 2:
        raise OrqaError(
            "WikiMovies needs its entity list (entities.txt) among the files, and at least one "
            "file of questions: the answers cannot be told apart without it."
        )
    entities = read_entities(lists[0])
    for file in files:
        if file in lists:
            continue
        for where, line in read_lines(file):
            numbered, tab, answers = line.partition("\t")
            number, space, question = numbered.partition(" ")
            if not (tab and space and number.isdigit() and answers.strip()):
                raise OrqaError(f"{where} is no line of WikiMovies: '1 question<tab>answers'.")
            cut = _cut_at_commas(answers.strip(), entities)
            if cut is None:
                raise OrqaError(
                    f"{where} has answers that are not in {lists[0]} ({answers.strip()!r}); give "
                    "the entity list of the same release."
                )
            yield Example("", question, cut)


def read_entities(file: Path) -> frozenset[str]:
    """The entity list of WikiMovies, one a line."""
    return frozenset(line.strip() for _, line in read_lines(file) if line.strip())


def _cut_at_commas(answers: str, entities: frozenset[str]) -> tuple[str, ...] | None:
    """Cuts "A, B, C" into entities, few and long ones before many and short ones."""
    parts = answers.split(", ")
    # How the parts from each place on are cut, None where they cannot be.
    cut_from: list[tuple[str, ...] | None] = [*[None] * len(parts), ()]
    for first in reversed(range(len(parts))):
        for end in range(len(parts), first, -1):
            rest, entity = cut_from[end], ", ".join(parts[first:end])
            if rest is not None and entity in entities:
                cut_from[first] = (entity, *rest)
                break
    return cut_from[0]


def read_entity_questions(files: Paths) -> Iterator[Example]:
    """EntityQuestions: JSON files of one relation each, or folders of them."""
    for file in files:
        for part in sorted(file.glob("*.json")) if file.is_dir() else [file]:
            records = read_json(part)
            if not isinstance(records, list):
                raise OrqaError(f"{part} holds no list of questions, as EntityQuestions does.")
            for number, (where, record) in enumerate(_numbered(part, records), start=1):
                yield replace(_pair(where, record), id=f"{part.stem}-{number}")


# --- TensorFlow Datasets --------------------------------------------------------------------------


def _from_tfds(
    name: str, dataset: Dataset, split: Split | None, data_dir: str | os.PathLike[str] | None
) -> tuple[Iterator[Example], str]:
    if dataset.tfds is None:
        raise OrqaError(f"{name} is not in TFDS; name its files.")
    if split is None:
        raise OrqaError(f"Name the split of {name} that TFDS is to give.")
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise OrqaError(
            f"Without files {name} comes from TFDS, which is not installed; name the files, or "
            "install the extra: pip install 'orqa_jax[tfds]'."
        ) from None
    tfds_name, splits = dataset.tfds
    place = {} if data_dir is None else {"data_dir": os.fspath(data_dir)}
    try:
        builder = tfds.builder(tfds_name, **place)
        records = builder.as_data_source(split=splits[split])
    # TFDS raises exceptions of its own, of the file system and of its readers.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise OrqaError(
            f"TFDS does not open {tfds_name} ({reason}); prepare it once with "
            f"`tfds build {tfds_name} --file_format=array_record`, or name the dataset's files."
        ) from error
    examples = map(_TFDS_EXAMPLES[name], records)
    return (example for example in examples if example.answers), f"TFDS {tfds_name} {splits[split]}"


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _tfds_natural_questions(record: Mapping[str, Any]) -> Example:
    spans = record["annotations"]["short_answers"]  # a list for each annotation, field by field
    original = {
        "document_html": _string(record["document"]["html"]),
        "annotations": [
            {
                "short_answers": [
                    {field: int(spans[field][annotation][i]) for field in _NQ_OFFSETS}
                    for i in range(len(spans["start_token"][annotation]))
                ]
            }
            for annotation in range(len(spans["start_token"]))
        ],
    }
    id_ = _string(record["id"])
    answers = _short_answers(f"TFDS natural_questions, question {id_},", original)
    return Example(id_, _string(record["question"]["text"]), answers)


def _tfds_triviaqa(record: Mapping[str, Any]) -> Example:
    answer = record["answer"]
    answers = _distinct([_string(answer["value"]), *map(_string, answer["aliases"])])
    return Example(_string(record["question_id"]), _string(record["question"]), answers)


def _tfds_web_questions(record: Mapping[str, Any]) -> Example:
    return Example("", _string(record["question"]), _distinct(map(_string, record["answers"])))


def _tfds_squad(record: Mapping[str, Any]) -> Example:
    answers = _distinct(map(_string, record["answers"]["text"]))
    return Example(_string(record["id"]), _string(record["question"]), answers)


_NQ_OFFSETS = ("start_token", "end_token", "start_byte", "end_byte")
_TFDS_EXAMPLES: dict[str, Callable[[Mapping[str, Any]], Example]] = {
    "natural_questions": _tfds_natural_questions,
    "trivia_qa": _tfds_triviaqa,
    "web_questions": _tfds_web_questions,
    "squad": _tfds_squad,
}

# --- What they share ------------------------------------------------------------------------------


def _numbered(file: Path, records: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (words for messages, object) for each of the questions of a file."""
    for number, record in enumerate(records, start=1):
        where = f"{file}, question {number},"
        if not isinstance(record, dict):
            raise OrqaError(f"{where} is no JSON object; the file is not of this dataset.")
        yield where, record


def _pair(where: str, record: dict[str, Any]) -> Example:
    answers = record.get("answer", record.get("answers"))
    kept = _distinct(_strings(where, [answers] if isinstance(answers, str) else answers, "answer"))
    if not kept:
        raise OrqaError(f"{where} has no answer.")
    id_ = "" if record.get("id") is None else record_id(where, record)
    return Example(id_, _text(where, record, "question"), kept)


def _strings(where: str, value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise OrqaError(f"{where} needs {key!r} to be a list of strings.")
    return value


def _distinct(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer for answer in answers if answer.strip()))


def _text(where: str, record: Any, key: str) -> str:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise OrqaError(f"{where} needs a {key!r} that is a string and not blank.")
    return value


def _member(where: Any, record: Any, key: str, kind: type) -> Any:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise OrqaError(f"{where} has no {key!r} where it should; it is not of this dataset.")
    return value


_AS_TRAIN: dict[Split, str] = {"train": "train", "dev": "train"}

DATASETS: dict[str, Dataset] = {
    "natural_questions": Dataset(
        read_natural_questions,
        {"train": 79_168, "dev": 8_757, "test": 3_610},
        resplit=True,
        tfds=("natural_questions", {**_AS_TRAIN, "test": "validation"}),
    ),
    "web_questions": Dataset(
        read_pairs,
        {"train": 3_417, "dev": 361, "test": 2_032},
        resplit=True,
        tfds=("web_questions", {**_AS_TRAIN, "test": "test"}),
    ),
    "curated_trec": Dataset(
        read_pairs, {"train": 1_353, "dev": 133, "test": 694}, match="regex", resplit=True
    ),
    "trivia_qa": Dataset(
        read_triviaqa,
        {"train": 78_785, "dev": 8_837, "test": 11_313},
        resplit=True,
        tfds=("trivia_qa/unfiltered.nocontext", {**_AS_TRAIN, "test": "validation"}),
    ),
    "squad": Dataset(
        read_squad,
        {"train": 78_713, "dev": 8_886, "test": 10_570},
        resplit=True,
        tfds=("squad", {**_AS_TRAIN, "test": "validation"}),
    ),
    "wiki_movies": Dataset(read_wikimovies, {"train": 96_185, "dev": 10_000, "test": 9_952}),
    "entity_questions": Dataset(
        read_entity_questions, {"train": 176_560, "dev": 22_068, "test": 22_075}
    ),
}
