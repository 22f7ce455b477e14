"""Checks that several tests share: errors, special files, facts, plans, memory, waiting."""

import ctypes
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from contextlib import chdir, contextmanager, suppress
from importlib import import_module

import pytest
from dask._task_spec import DataNode, TaskRef
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_tiled import DatasetError, describe, frame_facts, open_dataset, to_zarr
from dask_tiled.graphs.rewriting import rewritten
from dask_tiled.plans.tasks import pixels_of


def pytorch():
    """Return PyTorch; if absent, skip the test or module, or fail if that is required."""
    if os.environ.get("DASK_TILED_REQUIRE_TORCH") == "1":
        return import_module("torch")
    return pytest.importorskip(
        "torch", reason="PyTorch is not installed: set TORCH=, see make help"
    )


@contextmanager
def refused(path, match=None, kind=DatasetError, *, detailed=False):
    """Expect an error that names a file and, if `detailed`, the expected and the found value."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    error = caught.value
    assert error.path == str(path)
    assert str(path) in str(error)
    if detailed:
        assert error.expected is not None
        assert error.found is not None
        assert f"expected {error.expected}" in str(error)
        assert f"found {error.found}" in str(error)


def refuses(path, match=None, kind=DatasetError, *, content=None, detailed=False, **options):
    """Expect an error that names a file when it is opened, with other content if given."""
    if content is not None:
        path.write_bytes(content)
    with refused(path, match, kind, detailed=detailed):
        open_dataset(path, **options)


def opens_or_raises(path, *, facts=False, most=1 << 24, **options):
    """Open and compute a file; the only error allowed is a DatasetError that names a file.

    Arrays above 16 MiB are opened only, and have to stay below ``most`` bytes.
    """
    try:
        arr = open_dataset(path, **options)
        assert arr.nbytes < most
        if arr.nbytes < 1 << 24:
            arr.compute()
        if facts:
            frame_facts(arr).compute()
    except DatasetError as error:
        caught = error
    else:
        return
    assert caught.path is not None
    assert len(str(caught)) < 5000


def damage(path, rng, places, nbytes=4):
    """Overwrite some bytes at each place in a file with random ones."""
    with path.open("r+b") as file:
        for place in places:
            file.seek(int(place))
            file.write(rng.bytes(nbytes))


def instrument_of(path, **options):
    """Return the instrument facts of a file; each must point to an entry of the metadata."""
    desc = describe(path, **options)
    for fact in desc.instrument.values():
        found = desc.metadata
        for key in fact.where:
            found = found[key]
        assert found is not None
    return {name: fact.value for name, fact in desc.instrument.items()}


def axes_text(desc):
    """Return name, scale, offset unless it is 0, and units of each axis, in one line."""

    def text_of(axis):
        offset = f"{axis.offset:+.6g}" if axis.offset else ""
        return f"{axis.name} {axis.scale:.6g}{offset} {axis.units}".strip()

    return ", ".join(map(text_of, desc.axes))


def write_hdf5(path, contents):
    """Write an HDF5 file, and return its path.

    The contents are a function that fills the file, or arrays and links by path. A dictionary has
    the attributes of a group, a tuple a value and its units, and "path@name" is one attribute.
    """
    import h5py

    with h5py.File(path, "w") as file:
        for place, content in {} if callable(contents) else contents.items():
            item, _, name = place.partition("@")
            if name:
                file[item or "/"].attrs[name] = content
            elif isinstance(content, dict):
                file.require_group(place).attrs.update(content)
            elif isinstance(content, tuple):
                file[place], file[place].attrs["units"] = content
            else:
                file[place] = content
        if callable(contents):
            contents(file)
    return path


def nearly(facts, digits=1e-6, absolute=0):
    """Return the facts with their numbers compared approximately."""
    return {
        name: value if isinstance(value, str) else pytest.approx(value, digits, absolute)
        for name, value in facts.items()
    }


def stop_export(monkeypatch, journaled, arr, place, after, **options):
    """Interrupt an export after `after` notes in a journal, and return these notes."""
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
    """Return whether results, computed together, run on tiles without decoded chunks."""
    graph = HighLevelGraph.merge(*(result.__dask_graph__() for result in results))
    keys = [result.__dask_keys__() for result in results]
    layers = rewritten(graph, list(flatten(keys))).layers.values()
    functions = [layer.task.func for layer in layers if isinstance(layer, Blockwise)]
    return pixels_of not in functions


def coarsened(function, x, sizes):
    """Reduce blocks of neighbouring pixels, as ``da.coarsen`` does."""
    parts = [(n // sizes.get(axis, 1), sizes.get(axis, 1)) for axis, n in enumerate(x.shape)]
    return function(
        x.reshape([n for pair in parts for n in pair]), axis=tuple(range(1, 2 * x.ndim, 2))
    )


def depth_of(tasks):
    """Return the largest number of tasks that depend on one another."""
    depths = {}
    waiting = [*tasks]
    while waiting:
        below = [x for x in tasks[waiting[-1]].dependencies if x not in depths]
        if below:
            waiting += below
            continue
        key = waiting.pop()
        inner = [depths[x] for x in tasks[key].dependencies]
        depths[key] = max(inner, default=0) + (not isinstance(tasks[key], DataNode))
    return max(depths.values())


def recipe_of(result):
    """Return the one recipe that computes a result."""
    layers = rewritten(result.__dask_graph__(), list(flatten(result.__dask_keys__()))).layers
    value, _ = layers[result.name].indices[0]
    value = layers[value.key][value.key].value if isinstance(value, TaskRef) else value
    (recipe,) = value.recipes
    return recipe


def ran(code, *arguments, **environment):
    """Run Python code in a new process, and return its output."""
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
    """Yield a list that receives the peak of traced memory on exit."""
    found = []
    tracemalloc.start()
    try:
        yield found
    finally:
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def least_peak(function):
    """Return the lowest memory peak of three calls: imports and other threads add to some."""
    peaks = []
    for _ in range(3):
        with peak_memory() as found:
            function()
        peaks += found
    return min(peaks)


def wait_for(condition, seconds=300):
    """Wait until a condition returns a true value, and return the value; only hangs take longer."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"the condition is not true after {seconds} s"
        time.sleep(0.02)
    return found


def open_files(folder):
    """Return the number of this process's descriptors of files in a folder, also of removed ones.

    Other descriptors come and go: of connections and threads that earlier tests have used.
    """
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
    return found


def listen(path):
    """Make a socket by its name in its folder, as the whole path may be too long."""
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


@contextmanager
def unprivileged():
    """Drop root's right to bypass file permissions in this thread; other users have none."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "capset"):
        pytest.skip("root's capabilities cannot be dropped on this system")
    version = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    capabilities = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    libc.capget(version, capabilities)
    before = capabilities[0]
    capabilities[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(version, capabilities)
    try:
        yield
    finally:
        capabilities[0] = before
        libc.capset(version, capabilities)
