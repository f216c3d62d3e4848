"""WordPiece tokenisation in which every wordpiece knows its place in the original text."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import regex
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.trainers import WordPieceTrainer

from orqa_jax.errors import OrqaError
from orqa_jax.text.languages import UNSPACED

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_COMBINING_MARK = 0x300
_SMALLEST_VOCABULARY = 1000
# An encoding in the Rust library takes some 200 bytes a wordpiece until it is an array.
_CHARACTERS_AT_ONCE = 200_000


@dataclass(frozen=True)
class Encoded:
    """The wordpieces of one text.

    Attributes:
        ids: int32 [L], entries of the vocabulary.
        starts: int32 [L], character offset of each wordpiece in the original text.
        ends: int32 [L], end of each wordpiece, exclusive: ``text[starts[i]:ends[i]]`` spells it
            with its case, accents and combining marks. Starts and ends never decrease; pieces of
            one decomposed character (Hangul) share its span.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]


class WordPiece:
    """A BERT tokenizer without special tokens, padding or truncation.

    Text that happens to spell a special token, such as "[SEP]", is encoded as the characters it
    is made of, so that no document can place a separator in a model's input.

    Attributes:
        vocab_size: entries an embedding table needs, V.
        cls_id, sep_id, pad_id, mask_id: ids of the special tokens.
        continues_word: bool [V], True for pieces that continue a word ("##ing"); in scripts without
            spaces between words none does, since nobody knows where words start.
        fingerprint: sha256, in hex, of all that decides the ids of a text; the same for a
            tokenizer.json and a vocab.txt of one tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Wraps `tokenizer`, whose model must be WordPiece; `load` and `from_vocab` are the doors.

        Raises:
            ValueError: another kind of model, or a special token is not in the vocabulary.
        """
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

        definition = json.loads(tokenizer.to_str())
        kind = definition["model"].get("type")
        if kind != "WordPiece":
            raise ValueError(f"its model is {kind}, not WordPiece")
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        missing = [token for token in _SPECIAL_TOKENS if token not in vocab]
        if missing:
            raise ValueError(f"its vocabulary lacks {', '.join(missing)}")

        self.vocab_size = max(vocab.values()) + 1
        self.cls_id = vocab["[CLS]"]
        self.sep_id = vocab["[SEP]"]
        self.pad_id = vocab["[PAD]"]
        self.mask_id = vocab["[MASK]"]
        self._unk_id = vocab["[UNK]"]
        prefix = definition["model"]["continuing_subword_prefix"]
        self.continues_word: npt.NDArray[np.bool_] = np.zeros(self.vocab_size, dtype=bool)
        continuing = regex.compile(rf"{regex.escape(prefix)}(?![{UNSPACED}])", regex.V1)
        self.continues_word[[i for token, i in vocab.items() if continuing.match(token)]] = True
        self.fingerprint = _fingerprint(definition)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordPiece:
        """Reads a tokenizer from a model folder.

        tokenizer.json is preferred; otherwise vocab.txt, with `do_lower_case`, `strip_accents` and
        `tokenize_chinese_chars` from tokenizer_config.json where that exists.

        Raises:
            OrqaError: the folder holds no tokenizer, or one that cannot be used.
        """
        folder = Path(folder)
        try:
            if (folder / "tokenizer.json").is_file():
                return cls(Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8")))
            if (folder / "vocab.txt").is_file():
                return cls(_read_vocab(folder))
        # The tokenizers library raises bare Exception on a malformed file.
        except Exception as error:
            raise OrqaError(
                f"The tokenizer in {folder} cannot be used ({error}); "
                "point to the folder of a BERT model with a WordPiece tokenizer."
            ) from error
        raise OrqaError(
            f"There is no tokenizer in {folder}: it needs a tokenizer.json or a vocab.txt."
        )

    @classmethod
    def from_vocab(cls, vocab: Sequence[str], *, lowercase: bool = True) -> WordPiece:
        """Makes a tokenizer whose ids are positions in `vocab`, which holds the special tokens.

        Raises:
            ValueError: a special token is not in `vocab`.
        """
        return cls(_build(vocab, lowercase=lowercase))

    @classmethod
    def learn(cls, texts: Iterable[str], size: int, *, lowercase: bool = True) -> WordPiece:
        """Learns a vocabulary of at most `size` wordpieces from texts, as BERT's are learned.

        Each letter of a script without spaces between words is a wordpiece of its own, as BERT's
        tokenizers have it for Chinese: then the wordpieces of an answer are always among those of
        the text around it.

        Raises:
            OrqaError: there is no text, or `size` is less than 1000.
        """
        if size < _SMALLEST_VOCABULARY:
            raise OrqaError(
                f"A vocabulary of {size} wordpieces is too small; learn {_SMALLEST_VOCABULARY}."
            )
        tokenizer = _build(_SPECIAL_TOKENS, lowercase=lowercase)
        letters = pre_tokenizers.Split(Regex(f"[{UNSPACED}]"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, letters])
        trainer = WordPieceTrainer(
            vocab_size=size, special_tokens=list(_SPECIAL_TOKENS), show_progress=False
        )
        tokenizer.train_from_iterator(map(_readable, texts), trainer)
        if tokenizer.get_vocab_size() == len(_SPECIAL_TOKENS):
            raise OrqaError("There is no text to learn a vocabulary from.")
        return cls(tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes `folder`/tokenizer.json, atomically; other libraries can read it too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            written = Path(scratch) / "tokenizer.json"
            written.write_text(self._tokenizer.to_str(pretty=True), "utf-8")
            os.replace(written, folder / "tokenizer.json")

    def encode_answers(self, answers: Sequence[Sequence[str]]) -> list[list[npt.NDArray[np.int32]]]:
        """Wordpieces of the answers of each question, to be compared with those of blocks.

        An answer of which a part is [UNK] gets none: it would match whatever else is [UNK].
        """
        encoded = iter(self.encode([answer for of_question in answers for answer in of_question]))
        none = np.zeros(0, np.int32)
        found = [[next(encoded).ids for _ in of_question] for of_question in answers]
        return [[none if self._unk_id in ids else ids for ids in each] for each in found]

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Encodes texts, in parallel where `tokenizers` may use threads."""
        readable = [_readable(text) for text in texts]
        encodings = self._tokenizer.encode_batch(readable, add_special_tokens=False)
        return [_to_arrays(text, e) for text, e in zip(readable, encodings, strict=True)]

    def encode_ids(
        self, texts: Sequence[str]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The ids that `encode` gives, without offsets: in memory that does not grow with them.

        Returns:
            int32, the ids of all texts end to end, and int32 [len(texts)], how many each has.
        """
        ids, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        first = 0
        while first < len(texts):
            after, characters = first, 0
            while after < len(texts) and characters < _CHARACTERS_AT_ONCE:
                characters += len(texts[after])
                after += 1
            encodings = self._tokenizer.encode_batch_fast(
                [_readable(text) for text in texts[first:after]], add_special_tokens=False
            )
            count = np.fromiter(map(len, encodings), np.int32, len(encodings))
            flat = chain.from_iterable(encoding.ids for encoding in encodings)
            ids.append(np.fromiter(flat, np.int32, int(count.sum())))
            counts.append(count)
            first = after
        return np.concatenate(ids), np.concatenate(counts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Tokenizer's own pickle forgets `encode_special_tokens`.
        return _from_definition, (self._tokenizer.to_str(),)


def _from_definition(definition: str) -> WordPiece:
    return WordPiece(Tokenizer.from_str(definition))


def _build(
    vocab: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> Tokenizer:
    ids = {token: i for i, token in enumerate(vocab)}
    missing = [token for token in _SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(f"its vocabulary lacks {', '.join(missing)}")
    tokenizer = Tokenizer(WordPieceModel(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def _read_vocab(folder: Path) -> Tokenizer:
    lines = (folder / "vocab.txt").read_text("utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
    return _build(
        lines,
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        split_chinese=config.get("tokenize_chinese_chars", True),
    )


def _fingerprint(definition: dict[str, Any]) -> str:
    """sha256 of a tokenizer.json without what never changes the ids `encode` gives."""
    content = {
        "normalizer": definition["normalizer"],
        "pre_tokenizer": definition["pre_tokenizer"],
        "model": definition["model"],
        "added_tokens": [t for t in definition["added_tokens"] if not t["special"]],
    }
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _readable(text: str) -> str:
    # Lone surrogates (JSON allows "\ud800") have no UTF-8 form; U+FFFD keeps the offsets.
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def _to_arrays(text: str, encoding: Any) -> Encoded:
    ids = np.array(encoding.ids, dtype=np.int32)
    flat = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int32, count=2 * len(ids))
    starts, ends = flat[0::2].copy(), flat[1::2].copy()
    if not text.isascii() and len(ids):
        _take_in_marks(text, starts, ends)
    return Encoded(ids, starts, ends)


def _take_in_marks(text: str, starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]) -> None:
    """Moves `ends`, in place, over combining marks that normalisation dropped after a piece.

    Without this the last letter of a decomposed "café" would lose its accent in an answer.
    """
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    limits = np.append(starts[1:], np.int32(len(text)))
    open_gaps = np.flatnonzero(ends < limits)
    for i in open_gaps[code_points[ends[open_gaps]] >= _FIRST_COMBINING_MARK]:
        end, limit = int(ends[i]), int(limits[i])
        while end < limit and unicodedata.category(text[end]) == "Mn":
            end += 1
        ends[i] = end
