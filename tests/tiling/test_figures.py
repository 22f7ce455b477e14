"""Figures of `show` appear exactly once: in windows and notebooks through pyplot, else not."""

import sys
import threading

import numpy as np
import pytest
from checks import ran

from dask_tiled import show

pytestmark = pytest.mark.thorough

BACKEND = """
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

shown = []

class Manager(FigureManagerBase):
    def show(self):
        shown.append(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, **_):
        from matplotlib import pyplot as plt
        shown.extend(map(plt.figure, plt.get_fignums()))

class FigureCanvas(FigureCanvasAgg):
    manager_class = Manager
"""
IMAGE = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """Yield a function that switches pyplot to a fake backend, with windows if `framework`."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(tmp_path)
    former = plt.get_backend()
    plt.close("all")  # figures that other tests may have left

    def use(name, framework=None):
        (tmp_path / f"{name}.py").write_text(BACKEND)
        plt.switch_backend(f"module://{name}")
        module = sys.modules[name]
        module.FigureCanvas.required_interactive_framework = framework
        return module

    yield use
    plt.close("all")
    plt.switch_backend(former)


def test_scripts_show_windows(backend, tmp_path):
    from matplotlib import pyplot as plt

    windows = backend("fake_windows", "fake")
    figures = [show(IMAGE), show(IMAGE)]
    assert windows.shown == []
    plt.show()
    assert windows.shown == figures
    plt.close("all")
    show(IMAGE, tmp_path / "picture.png")
    assert plt.get_fignums() == []


def test_prompts_open_windows_at_once(backend, monkeypatch):
    windows = backend("fake_prompt", "fake")
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    figure = show(IMAGE)
    assert windows.shown == [figure]
    assert figure._repr_png_() is None  # shown in the window already


def test_number_of_open_windows_is_limited(backend, monkeypatch):
    from matplotlib import pyplot as plt

    backend("fake_many", "fake")
    monkeypatch.setattr("dask_tiled.tiling.figures.MOST_OPEN", 3)
    own = plt.figure()
    figures = [show(IMAGE) for _ in range(5)]
    kept = [plt.figure(number) for number in plt.get_fignums()]
    assert kept == [own, *figures[2:]]
    assert plt.rcParams["figure.max_open_warning"] == 20


def test_notebooks_show_pictures_once(backend):
    from matplotlib import pyplot as plt

    backend("fake_inline")
    figure = show(IMAGE)
    assert len(plt.get_fignums()) == 1  # for pyplot to show at the end of the cell
    data, told = figure._repr_mimebundle_(include=None, exclude=None)
    assert data["image/png"].startswith(b"\x89PNG")
    assert 200 < told["image/png"]["width"] <= 960
    assert plt.get_fignums() == []  # the cell has shown it


def test_other_threads_open_no_windows(backend):
    from matplotlib import pyplot as plt

    backend("fake_threads", "fake")
    thread = threading.Thread(target=show, args=(IMAGE,))
    thread.start()
    thread.join()
    assert plt.get_fignums() == []


def test_without_display_no_figures_are_kept():
    """Neither many figures nor the missing display causes a warning."""
    matplotlib = pytest.importorskip("matplotlib")
    ran(
        """
import matplotlib, numpy as np, dask_tiled
matplotlib.rcParams["figure.max_open_warning"] = 2
for _ in range(3):
    figure = dask_tiled.show(np.eye(2))
from matplotlib import pyplot as plt
plt.show()
assert plt.get_fignums() == []
assert figure._repr_png_()[0].startswith(b"\\x89PNG")
""",
        MPLBACKEND="agg",
        PYTHONWARNINGS="error,ignore::DeprecationWarning",  # by old matplotlib with new pyparsing
        MPLCONFIGDIR=matplotlib.get_cachedir(),  # it has the list of fonts
    )


@pytest.mark.slow
def test_notebook_cells_show_each_picture_once(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = {
        "import dask_tiled, numpy as np": 0,
        "dask_tiled.show(np.eye(9))": 1,
        "dask_tiled.show(np.eye(9))\nprint()": 1,
        "figure = dask_tiled.show(np.eye(9))": 1,
        "figure": 1,
        "for _ in range(3): dask_tiled.show(np.eye(9))": 3,
        "dask_tiled.show(np.eye(9), 'picture.png');": 0,
    }
    made = [nbformat.v4.new_code_cell(source) for source in cells]
    notebook = nbformat.v4.new_notebook(cells=made)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, resources=resources, timeout=600).execute()
    pictures = [sum("image/png" in one.get("data", ()) for one in cell.outputs) for cell in made]
    assert pictures == [*cells.values()]
    assert not any(one.get("name") == "stderr" for cell in made for one in cell.outputs)
