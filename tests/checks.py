"""What several tests ask: of errors, of damaged files, of facts, of how something is computed."""

import ctypes
import os
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager

import pytest
from dask._task_spec import TaskRef
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_tiled import DatasetError, describe, frame_facts, open_dataset, to_zarr
from dask_tiled.array.dask_graph.rewriting import rewritten
from dask_tiled.array.tasks import pixels_of


@contextmanager
def refused(path, match=None, kind=DatasetError, *, told=False):
    """Expect an error that names a file; where asked, also what was expected and found."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    error = caught.value
    assert error.path == str(path)
    assert str(path) in str(error)
    if told:
        assert error.expected is not None
        assert error.found is not None
        assert f"expected {error.expected}" in str(error)
        assert f"found {error.found}" in str(error)


def opens_or_says_why(path, *, facts=False, most=1 << 24, **options):
    """Open and compute: the only error allowed is a DatasetError that names a file.

    Arrays of more than 16 MiB, up to ``most`` bytes, are not computed.
    """
    try:
        arr = open_dataset(path, **options)
        assert arr.nbytes < most
        if arr.nbytes < 1 << 24:
            arr.compute()
        if facts:
            frame_facts(arr).compute()
    except DatasetError as error:
        says = error
    else:
        return
    assert says.path is not None
    assert len(str(says)) < 5000


def instrument_of(path, **options):
    """Return names and values of what a file says of its instrument, which stand where they say."""
    desc = describe(path, **options)
    for fact in desc.instrument.values():
        found = desc.metadata
        for key in fact.where:
            found = found[key]
        assert found is not None
    return {name: fact.value for name, fact in desc.instrument.items()}


def write_hdf5(path, fill):
    """Make an HDF5 file of what a function puts into it."""
    import h5py

    with h5py.File(path, "w") as file:
        fill(file)
    return path


def nearly(said, digits=1e-6, absolute=0):
    """Let numbers differ a little."""
    return {
        name: value if isinstance(value, str) else pytest.approx(value, digits, absolute)
        for name, value in said.items()
    }


def stop_export(monkeypatch, journaled, arr, place, after, **options):
    """Interrupt an export when it has noted so many chunks in such a journal; list their notes."""
    note, noted = journaled.note, []

    def failing(self, entries):
        if len(noted) == after:
            raise KeyboardInterrupt
        noted.append(entries)
        note(self, entries)

    with monkeypatch.context() as patch:
        patch.setattr(journaled, "note", failing)
        with pytest.raises(KeyboardInterrupt):
            to_zarr(arr, place, **options)
    return noted


def on_tiles(*results):
    """Return whether nothing is decoded to whole chunks when results are computed together."""
    graph = HighLevelGraph.merge(*(result.__dask_graph__() for result in results))
    keys = [result.__dask_keys__() for result in results]
    layers = rewritten(graph, list(flatten(keys))).layers.values()
    functions = [layer.task.func for layer in layers if isinstance(layer, Blockwise)]
    return pixels_of not in functions


def coarsened(function, x, sizes):
    """Make one pixel of several neighbours, as ``da.coarsen`` does."""
    parts = [(n // sizes.get(axis, 1), sizes.get(axis, 1)) for axis, n in enumerate(x.shape)]
    return function(
        x.reshape([n for pair in parts for n in pair]), axis=tuple(range(1, 2 * x.ndim, 2))
    )


def recipe_of(result):
    """Return the recipe by which a result is computed."""
    layers = rewritten(result.__dask_graph__(), list(flatten(result.__dask_keys__()))).layers
    value, _ = layers[result.name].indices[0]
    value = layers[value.key][value.key].value if isinstance(value, TaskRef) else value
    (recipe,) = value.recipes
    return recipe


def ran(code, *arguments, **environment):
    """Run Python code in a process of its own; give what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def peak_memory():
    """Return a list, to which the most bytes that were taken are added at the end."""
    found = []
    tracemalloc.start()
    try:
        yield found
    finally:
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def least_peak(function):
    """Return the least peak of memory of three calls: the first imports, other threads work."""
    peaks = []
    for _ in range(3):
        with peak_memory() as found:
            function()
        peaks += found
    return min(peaks)


@contextmanager
def unprivileged():
    """Refuse root what is refused to the owner of a file, in this thread; others lose nothing."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "capset"):
        pytest.skip("root has no capabilities that it can lay down here")
    version = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third, of this thread
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones, twice
    libc.capget(version, capabilities)
    before = capabilities[0]
    capabilities[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(version, capabilities)
    try:
        yield
    finally:
        capabilities[0] = before
        libc.capset(version, capabilities)
