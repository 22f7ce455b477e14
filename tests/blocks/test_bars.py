"""Progress bars show progress, and no warnings."""

import importlib
import sys
import warnings
from contextlib import closing
from types import SimpleNamespace

import pytest

from dask_tiled.blocks import running
from dask_tiled.blocks.bars import progress_bar


@pytest.fixture
def kernel(monkeypatch):
    """Make this process look like a Jupyter kernel to tqdm and the package."""
    shell = SimpleNamespace(kernel=None, config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", SimpleNamespace())
    monkeypatch.setattr(importlib.import_module("IPython"), "get_ipython", lambda: shell)
    for name in ("auto", "autonotebook", "notebook"):
        monkeypatch.delitem(sys.modules, f"tqdm.{name}", raising=False)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("show", [None, True, False])
def test_notebooks_without_widgets_show_text(show, monkeypatch, capsys):
    """The text changes in place, without a warning and without output to stderr."""
    texts = []

    def display(data, *, raw, display_id=None):
        assert raw
        texts.append((display_id, data["text/plain"]))
        return SimpleNamespace(update=display)

    monkeypatch.setattr(importlib.import_module("IPython.display"), "display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bar = progress_bar(total=3, show=show, unit_scale=False)
    assert not caught
    bar.update(3)
    bar.close()
    if show is False:
        assert texts == []
    else:
        assert [new for new, _ in texts] == [True, *[None] * (len(texts) - 1)]
        assert "0/3" in texts[0][1]
        assert "3/3" in texts[-1][1]
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("kernel")
def test_notebooks_with_widgets_show_them_by_default(monkeypatch, capsys):
    shown = []
    tqdm = importlib.import_module("tqdm.notebook")
    monkeypatch.setattr(tqdm, "display", shown.append)
    with progress_bar(total=3, show=None) as bar:
        bar.update(3)
    ((_, widget, _),) = (box.children for box in shown)
    assert (widget.value, widget.max) == (3, 3)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_by_default_without_a_terminal(monkeypatch, capsys):
    with progress_bar(total=3, show=None) as bar:
        bar.update(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    assert progress_bar(total=3, show=True).disable


def test_idle_bars_are_redrawn(monkeypatch, capsys):
    monkeypatch.setattr(running, "TICK", 0.001)
    with closing(running._Bar({("a", 0): 10}, 10, show=True, title="waiting")) as bar:
        bar.bar.mininterval = 0
        shown = ""
        while shown.count("waiting") < 5:
            shown += capsys.readouterr().err
