"""Progress bars: they show what is done, and speak of nothing else."""

import sys
import warnings
from contextlib import closing
from types import SimpleNamespace

from dask_tiled.export import running
from dask_tiled.export.bars import progress_bar


def test_a_notebook_without_widgets_is_no_reason_to_warn(monkeypatch, capsys):
    kernel = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    for name in ("auto", "autonotebook", "notebook"):
        monkeypatch.delitem(sys.modules, f"tqdm.{name}", raising=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bar = progress_bar(total=3)
    assert not said
    bar.update(3)
    bar.close()
    assert "3/3" in capsys.readouterr().err


def test_time_goes_on_while_nothing_is_done(monkeypatch, capsys):
    monkeypatch.setattr(running, "TICK", 0.001)
    with closing(running._Bar({("a", 0): 10}, 10, show=True, title="waiting")) as bar:
        bar.bar.mininterval = 0
        shown = ""
        while shown.count("waiting") < 5:
            shown += capsys.readouterr().err
