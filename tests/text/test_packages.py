import sys

from orqa_jax.text.packages import package_folder


def test_packages_are_found_without_being_imported(tmp_path, monkeypatch):
    (tmp_path / "carries_data").mkdir()
    (tmp_path / "carries_data" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "single.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folder("carries_data") == tmp_path / "carries_data"
    assert "carries_data" not in sys.modules
    assert package_folder("single") is None
    assert package_folder("no_such_package_at_all") is None
