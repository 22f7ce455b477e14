"""The pages with examples run as doctests, each in an empty directory."""

import pytest

collect_ignore = ["conf.py"]


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
