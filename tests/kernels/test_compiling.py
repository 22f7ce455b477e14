"""Compiling is announced once, with its duration, and not if the machine code is cached."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from checks import ran

from dask_tiled.kernels import compiling

READ = """
import sys
sys.stderr = sys.stdout
import numpy as np, dask_tiled
from dask_tiled.kernels import compiling
compiling.SOON, compiling.NOTICEABLE = 60, 0  # compiling ends sooner
np.ones((2, 3, 4, 4), "u2").tofile(sys.argv[1])
shapes = {"nav_shape": (2, 3), "sig_shape": (4, 4)}
dask_tiled.open_dataset(sys.argv[1], format="raw", dtype=">u2", **shapes).compute()
"""


@pytest.mark.slow
def test_only_the_first_process_announces(tmp_path):
    def messages():
        return ran(READ, tmp_path / "a.raw", NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines()

    first = messages()
    assert first[0] == "compiling for this pixel type, once; the code is cached ..."
    assert first[1].startswith("... compiled in ")
    assert len(first) == 2
    assert messages() == []


def test_successive_kernels_share_a_message(caplog, monkeypatch):
    monkeypatch.setattr(compiling, "SOON", 0.01)
    monkeypatch.setattr(compiling, "NOTICEABLE", 0.0)
    notice = compiling.Notice()
    with caplog.at_level(logging.WARNING, "dask_tiled"):
        with notice.timed():
            pass
        assert caplog.messages == []  # nothing was compiled
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
    assert len(caplog.messages) == 2  # none at level ERROR


class Cells:
    """A fake Jupyter kernel with the outputs of each cell, and the callbacks at its end."""

    def __init__(self, monkeypatch):
        self.shown, self.at_end, self.kernel = [[]], [], None
        self.events = SimpleNamespace(
            register=lambda _, function: self.at_end.append(function),
            unregister=lambda _, function: self.at_end.remove(function),
        )
        ipython, of_display = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython, of_display.display = lambda: self, self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", of_display)

    def display(self, data, *, raw, display_id):
        assert raw
        assert display_id
        outputs = self.shown[-1]
        outputs.append(data["text/plain"])
        place = len(outputs) - 1
        return SimpleNamespace(
            update=lambda data, raw: outputs.__setitem__(place, data["text/plain"]) or raw
        )

    def end(self):
        for function in [*self.at_end]:
            function(None)
        self.shown.append([])


MESSAGE = "compiling for this pixel type, once; the code is cached ...\n... compiled in "


def test_notebooks_show_messages_in_the_compiling_cell(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "NOTICEABLE", 0.0)
    # Handlers of pytest would get the messages.
    monkeypatch.setattr(compiling.LOGGER, "propagate", False)
    cells, notice = Cells(monkeypatch), compiling.Notice()

    def compile_some():
        for _ in range(2):
            with notice.timed():
                notice.begin()

    compile_some()
    cells.end()
    with notice.timed():
        pass  # nothing was compiled
    cells.end()
    compile_some()
    monkeypatch.setattr(compiling, "SOON", 0.01)
    compile_some()
    notice._end.join()  # the cell goes on
    cells.end()
    monkeypatch.setattr(compiling, "SOON", 60)
    compile_some()
    compiling.LOGGER.setLevel(logging.ERROR)
    cells.end()
    compiling.LOGGER.setLevel(logging.NOTSET)
    counts = [len(outputs) for outputs in cells.shown]
    assert counts == [1, 0, 1, 1, 0]
    assert cells.shown[0][0].startswith(MESSAGE)
    assert cells.shown[2][0].startswith(MESSAGE)
    assert cells.shown[3] == [MESSAGE.partition("\n")[0]]  # no duration at level ERROR
    assert cells.at_end == []
    assert capsys.readouterr() == ("", "")


def test_notebooks_with_a_log_handler_get_messages(monkeypatch, caplog):
    cells, notice = Cells(monkeypatch), compiling.Notice()
    with caplog.at_level(logging.WARNING, "dask_tiled"), notice.timed():
        notice.begin()
    assert len(caplog.messages) == 1
    assert cells.shown == [[]]
