"""Compiling is said once, with the time it took, and not where the machine code is there."""

import logging

import pytest
from checks import ran

from dask_tiled.kernels import compiling

READ = """
import sys
sys.stderr = sys.stdout
import numpy as np, dask_tiled
from dask_tiled.kernels import compiling
compiling.SOON, compiling.NOTICEABLE = 60, 0  # it ends before
np.ones((2, 3, 4, 4), "u2").tofile(sys.argv[1])
shapes = {"nav_shape": (2, 3), "sig_shape": (4, 4)}
dask_tiled.open_dataset(sys.argv[1], format="raw", dtype=">u2", **shapes).compute()
"""


@pytest.mark.slow
def test_the_first_process_tells(tmp_path):
    def said():
        return ran(READ, tmp_path / "a.raw", NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines()

    first = said()
    assert first[0] == "compiling for this kind of data; that is kept for the next time ..."
    assert first[1].startswith("... compiled in ")
    assert len(first) == 2
    assert said() == []


def test_kernels_that_follow_are_one_message(caplog, monkeypatch):
    monkeypatch.setattr(compiling, "SOON", 0.01)
    monkeypatch.setattr(compiling, "NOTICEABLE", 0.0)
    notice = compiling.Notice()
    with caplog.at_level(logging.WARNING, "dask_tiled"):
        with notice.timed():
            pass
        assert caplog.messages == []  # it was there
        for _ in range(3):
            with notice.timed():
                notice.begin()
        notice._end.join()
        for _ in range(2):
            with notice.timed():
                notice.begin()
    assert len(caplog.messages) == 2
    with caplog.at_level(logging.ERROR, "dask_tiled"), notice.timed():
        notice.begin()
    notice._end.join()
    assert len(caplog.messages) == 2  # who wants errors alone hears of none
