"""A plugin of pytest: dask's own tests on arrays that are opened from files.

What a test makes by ``da.from_array`` or ``da.ones`` is written to a file and opened in
the same chunks; what no file holds stays as it is. ``make test-dask`` runs it.
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
from dask_tiled.array.dask_graph import rewriting

MAKERS = "arange", "array", "asarray", "from_array", "full", "linspace", "ones", "zeros"
MOST_BYTES = 1 << 22
MANY = 1000
FEWEST = {"opened": 0.4, "rewritten": 0.2}
"""Which part of many tests has to open arrays, and to have graphs rewritten."""

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
        "looks for layers or arrays of numpy in the graph, which that of a file has not",
    ),
    **dict.fromkeys(
        (
            "test_array_core.py::test_no_chunks_slicing_2d",
            "test_slicing.py::test_slicing_and_unknown_chunks",
        ),
        "takes the lengths of chunks away from the array, which are those of the file",
    ),
    "test_array_core.py::test_blockwise_fusion": "counts tasks: small chunks are read by fewer",
    "test_array_core.py::test_from_array_with_lock*": "the lock is that of what is written",
    "test_array_core.py::test_array_copy_noop*": "the name is that of what is written",
    "test_array_core.py::test_constructor_plugin": "the plugin sees the array that is written, too",
    "test_array_core.py::test_binary_operator_delegation": "needs pytest-mock",
    "test_reductions.py::test_reductions_2D[[]c8]": (
        "overflows on the way to a product of complex64, which is kept in complex128"
    ),
}
"""Tests that fail, by patterns of their names, and why."""
WARNINGS = "error:::dask[.*]", "error:::numpy[.*]"
"""What dask's own settings make errors."""
MARKERS = "array_expr", "gpu", "network", "normal_and_array_expr", "slow"

ORIGINAL = {name: getattr(da, name) for name in MAKERS}
FOLDER = Path(tempfile.mkdtemp(prefix="dask-suite-"))
NUMBERS = itertools.count()
COUNTED = {"opened": 0, "rewritten": 0}


def opened(arr):
    """Write an array to a file and open it; give it back where no file holds such."""
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
    """Open what a function of dask makes."""

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
    """Count the graphs of which the engine computes something."""
    found = _plain(graph, keys)
    COUNTED["rewritten"] += found is not graph
    return found


def pytest_configure(config):
    for some, name in ((WARNINGS, "filterwarnings"), (MARKERS, "markers")):
        for line in some:
            config.addinivalue_line(name, line)
    dask.config.set(array_optimize=rewriting.optimize)
    del TiledArray.to_zarr  # which has other options than dask's
    rewriting.rewritten = rewritten
    for name, maker in ORIGINAL.items():
        setattr(da, name, REPLACED[id(maker)])


def pytest_unconfigure():
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Take the makers from modules that import them by name, and mark the exceptions."""
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
            raise pytest.UsageError(f"no test has the name of an exception: {pattern}")
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
    """Say how many tests are about opened arrays, and fail where these are few."""
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
