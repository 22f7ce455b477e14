"""A pytest plugin that runs dask's own array tests on arrays opened from files.

Arrays made by ``da.from_array``, ``da.ones`` and their kin are written to a file and opened with
the same chunks; arrays that no file can hold stay as they are. ``make test-dask`` runs it.
"""

import functools
import itertools
import shutil
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tiled import Piece, TiledArray, from_pieces
from dask_tiled.graphs import rewriting

MAKERS = "arange", "array", "asarray", "from_array", "full", "linspace", "ones", "zeros"
MOST_BYTES = 1 << 22
MANY = 1000
FEWEST = {"opened": 0.4, "rewritten": 0.2}
"""Least shares of the tests that open arrays and that have graphs rewritten."""

EXCEPTIONS = {
    **dict.fromkeys(
        (
            "test_array_core.py::test_asarray_h5py[[]False-asarray]",
            "test_array_core.py::test_from_array_list*",
            "test_array_core.py::test_from_array_ndarray_getitem",
            "test_array_core.py::test_from_array_ndarray_onechunk[[]x0]",
            "test_array_core.py::test_to_delayed_optimize_graph",
            "test_creation.py::test_creation_data_producers",
            "test_creation.py::test_from_array_getitem_fused",
            "test_optimization.py::test_dont_fuse_numpy_arrays",
            "test_array_core.py::test_zarr_irregular_chunks[[]shape[01]-chunks?-True*",
            "test_reductions.py::test_median_does_not_rechunk_if_whole_axis_in_one_chunk[[]1-*",
            "test_slicing.py::test_all_none_slices_just_mappings",
            "test_slicing.py::test_take_sorted_indexer",
        ),
        "expects layers or NumPy arrays in the graph that a graph over a file has not",
    ),
    **dict.fromkeys(
        (
            "test_array_core.py::test_no_chunks_slicing_2d",
            "test_slicing.py::test_slicing_and_unknown_chunks",
        ),
        "deletes the chunk lengths, which an opened array knows from its file",
    ),
    "test_array_core.py::test_blockwise_fusion": "one task reads several small chunks",
    "test_array_core.py::test_from_array_with_lock*": "only the array before writing has the lock",
    "test_array_core.py::test_array_copy_noop*": "the name is that of the array before writing",
    "test_array_core.py::test_constructor_plugin": "the plugin sees the array before writing, too",
    "test_array_core.py::test_binary_operator_delegation": "needs pytest-mock",
    "test_reductions.py::test_reductions_2D[[]c8]": (
        "expects a complex64 product that overflows; the engine computes it in complex128"
    ),
}
"""Tests expected to fail, by patterns of their names, with the reason."""
WARNINGS = "error:::dask[.*]", "error:::numpy[.*]"
"""Warnings that dask's own settings turn into errors."""
MARKERS = "array_expr", "gpu", "network", "normal_and_array_expr", "slow"

ORIGINAL = {name: getattr(da, name) for name in MAKERS}
FOLDER = Path(tempfile.mkdtemp(prefix="dask-suite-"))
NUMBERS = itertools.count()
COUNTED = {"opened": 0, "rewritten": 0}


def opened(arr):
    """Return the array written to a file and opened; return it unchanged if no file can hold it."""
    if type(arr) is not da.Array or type(arr._meta) is not np.ndarray or not arr.ndim:
        return arr
    if arr.dtype.kind not in "?biufc" or arr.dtype.char in "gG" or not 0 < arr.nbytes <= MOST_BYTES:
        return arr
    path = FOLDER / f"{next(NUMBERS)}.raw"
    with dask.config.set(array_optimize=da.optimize, scheduler="synchronous"):
        pixels = arr.compute()
    if type(pixels) is not np.ndarray:
        return arr
    pixels.tofile(path)
    piece = Piece(path, (0,) * arr.ndim, arr.shape)
    options = {"shape": arr.shape, "dtype": arr.dtype, "sig_ndim": (arr.ndim + 1) // 2}
    found = from_pieces([piece], **options, chunks=arr.chunks)
    found._name = arr.name
    COUNTED["opened"] += 1
    return found


def opening(maker):
    """Wrap a dask function so that its result is opened from a file."""

    @functools.wraps(maker)
    def made(*args, **kwargs):
        arr = maker(*args, **kwargs)
        if args and isinstance(args[0], da.Array):
            return arr
        return opened(arr)

    return made


REPLACED = {id(maker): opening(maker) for maker in ORIGINAL.values()}


@functools.wraps(rewriting.rewritten)
def rewritten(graph, keys, _plain=rewriting.rewritten):
    """Rewrite a graph, and count the graphs that change."""
    found = _plain(graph, keys)
    COUNTED["rewritten"] += found is not graph
    return found


def pytest_configure(config):
    for some, name in ((WARNINGS, "filterwarnings"), (MARKERS, "markers")):
        for line in some:
            config.addinivalue_line(name, line)
    dask.config.set(array_optimize=rewriting.optimize)
    del TiledArray.to_zarr  # its options differ from dask's
    rewriting.rewritten = rewritten
    for name, maker in ORIGINAL.items():
        setattr(da, name, REPLACED[id(maker)])


def pytest_unconfigure():
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Replace makers in modules that import them by name, and mark the exceptions."""
    for module in {item.module for item in items}:
        for name, value in [*vars(module).items()]:
            if id(value) in REPLACED:
                setattr(module, name, REPLACED[id(value)])
    names = [f"{item.path.name}::{item.name}" for item in items]
    for pattern, reason in EXCEPTIONS.items():
        found = [
            item for item, name in zip(items, names, strict=True) if fnmatchcase(name, pattern)
        ]
        module = pattern.partition("::")[0]
        if not found and any(name.startswith(module) for name in names):
            raise pytest.UsageError(f"no test matches the exception {pattern}")
        for item in found:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = dict(COUNTED)
    try:
        return (yield)
    finally:
        item.user_properties += [(name, COUNTED[name] > n) for name, n in before.items()]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Report how many tests open arrays, and fail if too few do."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(session.config, "workerinput") or reporter is None:
        return
    kinds = "passed", "failed", "xfailed"
    ran = [dict(one.user_properties) for kind in kinds for one in reporter.stats.get(kind, ())]
    counts = {name: sum(one.get(name, False) for one in ran) for name in COUNTED}
    said = f"{len(ran)} tests, of which {counts['opened']} open arrays"
    reporter.write_line(f"\n{said} and {counts['rewritten']} compute something of them")
    for name, part in FEWEST.items():
        if len(ran) >= MANY and counts[name] < part * len(ran):
            reporter.write_line(f"expected at least {part:.0%} of them: {name}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
