"""DrQA whole: articles by TF-IDF, answers from their paragraphs (Chen et al. 2017)."""

from collections.abc import Collection, Sequence
from pathlib import Path

from orqa_jax.baselines.drqa.read import DocumentReader
from orqa_jax.baselines.drqa.retrieve import ARTICLES, TfIdfIndex, paragraph_places
from orqa_jax.baselines.drqa.train import load_reader, reader_vectors
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.predict import Answer, Candidate
from orqa_jax.qa.datasets import read_entities


class DrqaAnswerer:
    """Answers questions; an `orqa_jax.predict.System`.

    Args:
      store: The blocks.
      index: Over their articles.
      reader: Of paragraphs.
      closed: Accept only these answers, where a data set lists them (WikiMovies).
    """

    def __init__(
        self,
        store: BlockStore,
        index: TfIdfIndex,
        reader: DocumentReader,
        *,
        closed: Collection[str] | None = None,
    ) -> None:
        self.store = store
        self._index, self._reader, self._closed = index, reader, closed

    @property
    def reader_beam(self) -> None:
        """Whole articles are read, so the number of blocks differs between questions."""
        return None

    def answer(self, questions: Sequence[str], *, retrieve: int = 100) -> list[Answer]:
        """The best answer of each question; retrieved are the blocks of its articles, in order.

        Args:
          questions: Any number of questions.
          retrieve: Blocks to report; only those of the first articles are read.

        Raises:
          OrqaError: A question is empty.
        """
        for place, question in enumerate(questions, 1):
            if not question.strip():
                raise OrqaError(f"Question {place} of the batch is empty; ask something.")
        # An article has at least one block, so this many are enough to report.
        found = min(max(retrieve, ARTICLES), len(self._index))
        ids_BK, scores_BK = self._index.search(questions, found)
        # (block, first character within the block, paragraph)
        places = [
            [
                (block, start, text)
                for article in ids[:ARTICLES].tolist()
                for block in self._index.blocks(article)
                for start, text in paragraph_places(self.store.text(block))
            ]
            for ids in ids_BK
        ]
        spans = self._reader.read(
            questions, [[text for _, _, text in part] for part in places], self._closed
        )
        answers = []
        for question, ids, scores, part, span in zip(
            questions, ids_BK, scores_BK, places, spans, strict=True
        ):
            reported = [
                (block, float(score))
                for article, score in zip(ids.tolist(), scores, strict=True)
                for block in self._index.blocks(article)
            ][:retrieve]
            candidates: tuple[Candidate, ...] = ()
            if span is not None:
                block, start, _ = part[span.paragraph]
                candidates = (self._candidate(block, start + span.start, span.text, span.score),)
            blocks, block_scores = zip(*reported, strict=True)
            answers.append(Answer(question, candidates, blocks, block_scores))
        return answers

    def _candidate(self, block: int, start: int, text: str, score: float) -> Candidate:
        block_start = self.store.document_start(block)
        return Candidate(
            answer=text,
            block=block,
            title=self.store.title(block),
            document_id=self.store.document_id(block),
            start=block_start + start,
            end=block_start + start + len(text),
            block_start=block_start,
            block_text=self.store.text(block),
            # Which article a span is from plays no part in choosing it.
            retrieval_score=0.0,
            reader_score=score,
            # Its scores are not normalised over paragraphs (section 3.2 of the paper).
            probability=None,
        )


def load_drqa(run: Path, *, closed: Path | None = None) -> DrqaAnswerer:
    """Opens what a run folder holds for DrQA: ``corpus``, ``tfidf`` and ``drqa``.

    Args:
      run: The folder of the run.
      closed: Text file of the only answers to accept, one a line.

    Raises:
      OrqaError: A part is missing, or parts do not belong together.
    """
    store = BlockStore(run / "corpus")
    index = TfIdfIndex.open(run / "tfidf", corpus_fingerprint=store.fingerprint)
    folder = run / "drqa" / "model"
    reader = DocumentReader(load_reader(folder, reader_vectors(folder)))
    answers = None if closed is None else read_entities(closed)
    if answers is not None and not answers:
        raise OrqaError(f"{closed} holds no answers; it needs one a line.")
    return DrqaAnswerer(store, index, reader, closed=answers)
