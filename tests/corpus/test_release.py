"""The corpus files of the 2019 release, as TensorFlow writes them, become the same blocks."""

from pathlib import Path

import numpy as np
import pytest
from oracles.bundle import example, write_records

from orqa_jax.corpus import release
from orqa_jax.corpus.release import import_release_corpus, read_tfrecords
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "the", "flood", "took", "quay", "ilse", "##s", ".", "a", "of", "umber"]
GOLDEN = Path(__file__).parents[1] / "golden"
BLOCKS = [
    ("Ilse", ["The flood took the quay.", "A quay."]),
    ("Ilse", ["The Ilse floods."]),
    ("Umber", ["A flood of the Umber.", "The quay.", "Floods."]),
]


def write_release(folder: Path) -> WordPiece:
    folder.mkdir(exist_ok=True)
    tokenizer = WordPiece.from_vocab(VOCABULARY)
    texts, titles, examples = [], [], []
    for title, sentences in BLOCKS:
        pieces = [encoded.ids for encoded in tokenizer.encode(sentences)]
        starts = np.cumsum([0, *(len(ids) for ids in pieces[:-1])])
        (title_ids,) = (encoded.ids for encoded in tokenizer.encode([title]))
        ids = np.concatenate(pieces)
        texts.append(" ".join(sentences).encode())
        titles.append(title.encode())
        examples.append(example(title_ids=title_ids, token_ids=ids, sentence_starts=starts))
    for name, records in (("blocks", texts), ("titles", titles), ("examples", examples)):
        write_records(folder / f"{name}.tfr", records)
    return tokenizer


def test_blocks_keep_their_numbers_and_wordpieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(release, "_BATCH", 2)
    tokenizer = write_release(tmp_path / "tfr")
    store = import_release_corpus(tmp_path / "tfr", tmp_path / "corpus", tokenizer)
    assert len(store) == 3
    for block, (title, sentences) in enumerate(BLOCKS):
        assert store.title(block) == store.document_id(block) == title
        assert store.text(block) == " ".join(sentences)
        pieces = [encoded.ids for encoded in tokenizer.encode(sentences)]
        np.testing.assert_array_equal(store.block_tokens(block), np.concatenate(pieces))
        np.testing.assert_array_equal(store.title_tokens(block), tokenizer.encode([title])[0].ids)
        lengths = [len(ids) for ids in pieces]
        assert store.sentence_starts(block).tolist() == np.cumsum([0, *lengths[:-1]]).tolist()
    first = len(" ".join(BLOCKS[0][1])) + 1
    assert [store.document_start(block) for block in range(3)] == [0, first, 0]
    assert store.manifest["documents"] == 2
    assert store.tokenizer_fingerprint == tokenizer.fingerprint
    assert BlockStore(tmp_path / "corpus").fingerprint == store.fingerprint


def test_what_tensorflow_wrote(tmp_path: Path) -> None:
    vocabulary = (GOLDEN / "bert" / "vocab.txt").read_text("utf-8").splitlines()
    tokenizer = WordPiece.from_vocab(vocabulary)
    store = import_release_corpus(GOLDEN / "corpus", tmp_path / "corpus", tokenizer)
    assert [store.title(block) for block in range(5)] == ["q a", "q a", "É e", "z", "z"]
    assert store.text(2) == "j k l m n o"
    assert [vocabulary[i] for i in store.block_tokens(2)] == ["j", "k", "l", "m", "n", "o"]
    assert [vocabulary[i] for i in store.title_tokens(2)] == ["e", "e"]
    assert store.sentence_starts(2).tolist() == [0, 2, 3]
    assert store.sentence_starts(1).tolist() == [0]


def test_defects_are_named(tmp_path: Path) -> None:
    folder, out = tmp_path / "tfr", tmp_path / "corpus"
    tokenizer = write_release(folder)
    other = WordPiece.from_vocab([*VOCABULARY, "##ood", "fl"][::-1])
    with pytest.raises(
        OrqaError, match=r"Of the first 3 blocks in .*, 3 are other wordpieces under"
    ):
        import_release_corpus(folder, out, other)
    titles = folder / "titles.tfr"
    whole = titles.read_bytes()
    titles.write_bytes(whole[:-5])
    with pytest.raises(OrqaError, match=r"titles.tfr ends within record 3"):
        import_release_corpus(folder, out, tokenizer)
    titles.write_bytes(whole[:5])
    with pytest.raises(OrqaError, match=r"titles.tfr ends within record 1"):
        import_release_corpus(folder, out, tokenizer)
    write_records(titles, [b"Ilse"])
    with pytest.raises(OrqaError, match="one of them ends after 1 blocks"):
        import_release_corpus(folder, out, tokenizer)
    titles.write_bytes(b"no records at all")
    with pytest.raises(OrqaError, match="is no TFRecord file, or damaged at record 1"):
        import_release_corpus(folder, out, tokenizer)
    write_records(titles, [b"Ilse", b"\xff", b"Umber"])
    with pytest.raises(OrqaError, match=r"titles.tfr is not UTF-8 in record 2"):
        import_release_corpus(folder, out, tokenizer)
    titles.write_bytes(whole)
    write_records(folder / "examples.tfr", [example(token_ids=[1]), b"", b"\xff"])
    with pytest.raises(OrqaError, match=r"examples.tfr has no example .* in record 1"):
        import_release_corpus(folder, out, tokenizer)
    titles.unlink()
    with pytest.raises(OrqaError, match=r"titles.tfr cannot be read"):
        import_release_corpus(folder, out, tokenizer)
    assert not out.exists()


def test_records_of_any_length(tmp_path: Path) -> None:
    records = [b"", b"x" * 70_000, b"last"]
    assert list(read_tfrecords(write_records(tmp_path / "r.tfr", records))) == records


def test_a_tenth_of_the_first_blocks_may_be_other_wordpieces(tmp_path: Path) -> None:
    tokenizer = WordPiece.from_vocab(VOCABULARY)
    (of_text,) = (encoded.ids for encoded in tokenizer.encode(["The quay."]))
    folder = tmp_path / "tfr"
    folder.mkdir()
    write_records(folder / "blocks.tfr", [b"The quay."] * 120)
    write_records(folder / "titles.tfr", [b"Quay"] * 120)
    for others in (10, 11):
        rows = [of_text[:-1]] * others + [of_text] * (120 - others)
        examples = [example(title_ids=[8], token_ids=ids, sentence_starts=[0]) for ids in rows]
        write_records(folder / "examples.tfr", examples)
        if others == 10:
            assert len(import_release_corpus(folder, tmp_path / "corpus", tokenizer)) == 120
        else:
            with pytest.raises(OrqaError, match=r"Of the first 100 blocks in .*, 11 are other"):
                import_release_corpus(folder, tmp_path / "again", tokenizer)
