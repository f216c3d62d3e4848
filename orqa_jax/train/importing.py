"""Old artefacts become what this package trains, indexes and answers with.

A run folder is filled as training would fill it: ``corpus``, ``ict/model``, ``index`` and
``finetune/model``. Imported parts carry the same fingerprints, so what does not belong together is
refused as ever.
"""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from orqa_jax.corpus.release import import_release_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.embeddings import EmbeddingWriter
from orqa_jax.models.foreign import (
    Imported,
    load_realm,
    load_tensorflow_bert,
    load_tensorflow_embeddings,
    load_tensorflow_reader,
    load_tensorflow_retriever,
)
from orqa_jax.models.weights import save_bert
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import finetune, ict
from orqa_jax.train.checkpoint import describe_model, save_model

# Of the 2019 release.
_QUESTION_LENGTH, _BLOCK_LENGTH, _READER_LENGTH, _READER_BEAM = 64, 288, 320, 5
_CHUNK_BLOCKS = 65_536

logger = logging.getLogger(__name__)


def import_bert(source: Path, out: Path, *, lowercase: bool, hidden_act: str | None = None) -> None:
    """Turns a released BERT (`bert_model.ckpt`) into an encoder folder as of Hugging Face.

    Args:
      source: folder of the release.
      out: folder to write.
      lowercase: whether its vocabulary is uncased.
      hidden_act: see `load_tensorflow_bert`.

    Raises:
      OrqaError: see `load_tensorflow_bert`; its vocab.txt is missing, or of another size; there is
        something in ``out`` already.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise OrqaError(f"{out} exists and is not an empty folder; choose another folder.")
    found = load_tensorflow_bert(source, hidden_act=hidden_act)
    if not (source / "vocab.txt").exists():
        raise OrqaError(f"{source / 'vocab.txt'} does not exist; copy it from the release.")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_bert(partial, found.config, found.params)
    shutil.copyfile(source / "vocab.txt", partial / "vocab.txt")
    about = {"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"}
    (partial / "tokenizer_config.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    _check_vocabulary(WordPiece.load(partial), found.config.vocab_size, source)
    partial.replace(out)
    _report(source, out, found)


def import_corpus(source: Path, run: Path, encoder: Path) -> None:
    """Turns blocks.tfr, titles.tfr and examples.tfr into ``run/corpus``."""
    import_release_corpus(source, run / "corpus", WordPiece.load(encoder))


def import_retriever(source: Path, run: Path, encoder: Path, **shape: Any) -> None:
    """Turns the released ICT module, or REALM's embedder, into ``run/ict/model``.

    With its ``encoded`` block embeddings beside it, and a corpus in the run, ``run/index`` follows.

    Raises:
      OrqaError: see `load_tensorflow_retriever`; the embeddings are of another number of blocks.
    """
    found = load_tensorflow_retriever(source, **shape)
    _save_retriever(run, encoder, found)
    _report(source, run / "ict" / "model", found)
    if (source / "encoded").is_dir():
        if (run / "corpus").is_dir():
            _save_embeddings(run, load_tensorflow_embeddings(source))
        else:
            logger.warning("Import the corpus first, and then this again for its block embeddings.")


def import_answerer(source: Path, run: Path, encoder: Path, **shape: Any) -> None:
    """Turns a fine-tuned ORQA checkpoint into ``run/finetune/model``.

    The run holds the corpus and the retriever that it was fine-tuned from already.
    """
    retriever = load_tensorflow_retriever(source, **shape)
    reader = load_tensorflow_reader(source, **shape)
    _save_answerer(run, encoder, retriever, reader, _READER_LENGTH, _READER_BEAM)
    placed = set(retriever.unplaced) & set(reader.unplaced)
    both = dataclasses.replace(reader, unplaced=sorted(placed))
    _report(source, run / "finetune" / "model", both)


def import_realm(source: Path, run: Path, encoder: Path) -> None:
    """Turns a Hugging Face REALM into ``run/ict/model``, and for open-QA the index and answerer.

    Raises:
      OrqaError: see `load_realm`; the embeddings are of another number of blocks.
    """
    found = load_realm(source)
    _save_retriever(run, encoder, found.embedder)
    _report(source, run / "ict" / "model", found.embedder)
    if found.block_embeddings is not None:
        _save_embeddings(run, found.block_embeddings)
    if found.reader is not None:
        lengths = found.reader_length, found.reader_beam
        _save_answerer(run, encoder, found.embedder, found.reader, *lengths)
        logger.info("%s: imported.", run / "finetune" / "model")


def _save_retriever(run: Path, encoder: Path, found: Imported) -> None:
    tokenizer = WordPiece.load(encoder)
    _check_vocabulary(tokenizer, found.config.bert.vocab_size, encoder)
    (run / "ict").mkdir(parents=True, exist_ok=True)
    save_model(
        run / "ict" / "model",
        kind=ict.MODEL_KIND,
        description={
            "retriever": dataclasses.asdict(found.config),
            "question_length": _QUESTION_LENGTH,
            "block_length": _BLOCK_LENGTH,
            "config": {"encoder": str(encoder)},
        },
        params={"encoder": found.params},
        tokenizer=tokenizer,
    )


def _save_embeddings(run: Path, embeddings_NP: np.ndarray) -> None:
    store = BlockStore(run / "corpus")
    about = describe_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    if len(embeddings_NP) != len(store):
        raise OrqaError(
            f"The checkpoint has embeddings of {len(embeddings_NP):,} blocks, but the corpus in "
            f"{run / 'corpus'} has {len(store):,}; import the corpus that they were made of."
        )
    writer = EmbeddingWriter(
        run / "index",
        count=len(store),
        projection_size=embeddings_NP.shape[1],
        corpus_fingerprint=store.fingerprint,
        weights_fingerprint=about["weights_fingerprint"],
        chunk_size=_CHUNK_BLOCKS,
    )
    for blocks in writer.pending:
        writer.write(blocks, np.asarray(embeddings_NP[blocks.start : blocks.stop], np.float32))
        logger.info("index: %d of %d blocks", blocks.stop, len(store))
    writer.finish()


def _save_answerer(
    run: Path,
    encoder: Path,
    retriever: Imported,
    reader: Imported,
    reader_length: int,
    reader_beam: int,
) -> None:
    tokenizer = WordPiece.load(encoder)
    for bert in (retriever.config.bert, reader.config.bert):
        _check_vocabulary(tokenizer, bert.vocab_size, encoder)
    store = BlockStore(run / "corpus")
    about = describe_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    settings = finetune.FinetuneConfig(
        corpus=str(run / "corpus"),
        retriever=str(run / "ict" / "model"),
        index=str(run / "index"),
        train="",
        out=str(run / "finetune"),
        encoder=str(encoder),
        reader_length=reader_length,
        reader_beam=reader_beam,
        max_span_wordpieces=reader.config.max_span_wordpieces,
        span_hidden_size=reader.config.span_hidden_size,
        whole_word_spans=False,
        substring_labels=True,
    )
    fingerprints = {
        "corpus_fingerprint": store.fingerprint,
        "retriever_fingerprint": about["weights_fingerprint"],
    }
    (run / "finetune").mkdir(parents=True, exist_ok=True)
    save_model(
        run / "finetune" / "model",
        kind=finetune.MODEL_KIND,
        description={
            "retriever": dataclasses.asdict(retriever.config),
            "reader": dataclasses.asdict(reader.config),
            "question_length": _QUESTION_LENGTH,
            "reader_length": reader_length,
            "reader_beam": reader_beam,
            "whole_word_spans": False,
            "config": dataclasses.asdict(settings) | fingerprints,
            **fingerprints,
        },
        params={"retriever": {"encoder": retriever.params}, "reader": reader.params},
        tokenizer=tokenizer,
    )


def _check_vocabulary(tokenizer: WordPiece, vocab_size: int, folder: Path) -> None:
    if tokenizer.vocab_size != vocab_size:
        raise OrqaError(
            f"The vocabulary in {folder} has {tokenizer.vocab_size} entries, but the weights have "
            f"embeddings of {vocab_size}; give the vocabulary of these weights."
        )


def _report(source: Path, out: Path, found: Imported) -> None:
    logger.info("%s: imported from %s.", out, source)
    if found.unplaced:
        logger.info("Of no use here: %s.", ", ".join(found.unplaced))
