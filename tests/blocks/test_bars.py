"""Progress bars show progress, and no warnings."""

import importlib
import re
import sys
import warnings
from contextlib import closing
from io import StringIO
from types import SimpleNamespace

import pytest
from checks import wait_for

from dask_tiled.blocks import bars, running
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


@pytest.mark.thorough
def test_idle_bars_are_redrawn(monkeypatch, capsys):
    monkeypatch.setattr(running, "TICK", 0.001)
    monkeypatch.setattr(bars, "LOG_SECONDS", 0)
    with closing(running._Bar({("a", 0): 10}, 10, show=True, title="waiting")) as bar:
        bar.bar.mininterval = 0
        shown = StringIO()
        wait_for(
            lambda: shown.write(capsys.readouterr().err) and shown.getvalue().count("waiting") > 4
        )


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


SHOWN = re.compile(
    r"copy: +(\d+)%\|.*\| ([\d.]+[kMG]?)/([\d.]+[kMG]?) \[(\d\d:\d\d)<(\d\d:\d\d|\?), +(.*B/s)\]"
)
"""Share, bytes, all bytes, time, time left, rate."""


def test_terminals_show_bytes_rate_and_time_left_in_place(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(total=4_000_000, show=None, desc="copy", mininterval=0, ncols=100) as bar:
        for _ in range(4):
            bar.update(1_000_000)
    first, *shown = [SHOWN.match(text).groups() for text in terminal.getvalue().split("\r")[1:]]
    assert first[:3] == ("0", "0.00", "4.00M")
    assert [text[:3] for text in shown][:4] == [
        ("25", "1.00M", "4.00M"),
        ("50", "2.00M", "4.00M"),
        ("75", "3.00M", "4.00M"),
        ("100", "4.00M", "4.00M"),
    ]
    assert all(left != "?" and re.match(r"[\d.]+[kMGTP]?B/s", rate) for *_, left, rate in shown)
    assert terminal.getvalue().count("\n") == 1


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 5), (1e9, 2)])
def test_logs_get_a_line_now_and_then(monkeypatch, seconds, lines):
    """The first and the last line are always written, and no carriage return."""
    monkeypatch.setattr(bars, "LOG_SECONDS", seconds)
    log = StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar(total=4_000_000, show=True, desc="copy", mininterval=0, ncols=100) as bar:
        for _ in range(4):
            bar.update(1_000_000)
    text = log.getvalue()
    assert "\r" not in text
    shown = [SHOWN.match(line).groups() for line in text.splitlines()]
    assert len({line[1] for line in shown}) == lines
    assert (shown[0][1], shown[-1][1]) == ("0.00", "4.00M")
