import json

import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.index import compressed
from orqa_jax.index.compressed import compress, open_compressed

MADE_FROM = {"corpus_fingerprint": "c" * 64, "weights_fingerprint": "a" * 64}


@pytest.fixture
def vectors_NP(monkeypatch):
    monkeypatch.setattr(compressed, "_CHUNK", 7)
    vectors_NP = np.random.default_rng(0).standard_normal((40, 5), dtype=np.float32)
    vectors_NP[:, 2] = 0
    vectors_NP[33] *= 10
    return vectors_NP


def test_int8_codes_are_the_nearest_multiples_of_a_column_s_step(tmp_path, vectors_NP):
    found = compress(vectors_NP, tmp_path / "int8", "int8", **MADE_FROM)
    step_P = np.abs(vectors_NP).max(axis=0) / 127
    assert found.codes_NP.dtype == np.int8
    assert np.abs(found.codes_NP[:, [0, 1, 3, 4]]).max(axis=0).tolist() == [127] * 4
    decoded_NP = found.codes_NP * found.scale_P
    assert np.all(np.abs(decoded_NP - vectors_NP) <= step_P / 2 + 1e-6)
    error_N = np.linalg.norm(decoded_NP - vectors_NP, axis=1)
    assert error_N.max() <= found.error <= 1.001 * error_N.max()
    assert found.longest == pytest.approx(np.linalg.norm(vectors_NP[33]), rel=1e-3)


def test_bfloat16_keeps_the_upper_half_of_the_bits(tmp_path, vectors_NP):
    found = compress(vectors_NP, tmp_path / "bf", "bfloat16", **MADE_FROM)
    decoded_NP = found.codes_NP.astype(np.float32)
    assert np.all(decoded_NP.view(np.uint32) & 0xFFFF == 0)
    assert np.all(np.abs(decoded_NP - vectors_NP) <= np.abs(vectors_NP) * 2.0**-8)
    assert found.scale_P.tolist() == [1.0] * 5
    error_N = np.linalg.norm(decoded_NP - vectors_NP, axis=1)
    assert error_N.max() <= found.error <= 1.001 * error_N.max()


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_what_is_opened_is_what_was_written_and_is_mapped(tmp_path, vectors_NP, precision):
    compress(vectors_NP[:3], tmp_path / "codes", precision, **MADE_FROM)  # is replaced
    made = compress(vectors_NP, tmp_path / "codes", precision, **MADE_FROM)
    opened = open_compressed(tmp_path / "codes", **MADE_FROM)
    assert isinstance(opened.codes_NP, np.memmap)
    np.testing.assert_array_equal(opened.codes_NP, made.codes_NP)
    np.testing.assert_array_equal(opened.scale_P, made.scale_P)
    assert (opened.error, opened.longest) == (made.error, made.longest)
    assert [path.name for path in tmp_path.iterdir()] == ["codes"]


def test_what_does_not_belong_is_refused(tmp_path, vectors_NP):
    folder = tmp_path / "codes"
    with pytest.raises(OrqaError, match="missing or unfinished"):
        open_compressed(folder, **MADE_FROM)
    compress(vectors_NP, folder, "int8", **MADE_FROM)
    with pytest.raises(OrqaError, match="made from weights aaaaaaaaaaaaaaaa, not from"):
        open_compressed(folder, **(MADE_FROM | {"weights_fingerprint": "b" * 64}))
    with pytest.raises(OrqaError, match="made from corpus cccccccccccccccc, not from"):
        open_compressed(folder, **(MADE_FROM | {"corpus_fingerprint": "b" * 64}))
    np.save(folder / "codes.npy", np.zeros((39, 5), np.int8))
    with pytest.raises(OrqaError, match=r"holds int8 \(39, 5\), but its manifest says int8"):
        open_compressed(folder, **MADE_FROM)
    (folder / "codes.npy").write_bytes(b"nothing")
    with pytest.raises(OrqaError, match="cannot be read"):
        open_compressed(folder, **MADE_FROM)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 0}))
    with pytest.raises(OrqaError, match="of schema 0"):
        open_compressed(folder, **MADE_FROM)
