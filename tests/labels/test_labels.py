"""Labels of arrays stay with results, and add no tasks."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from dask_tiled import Axis, DatasetError, open_dataset, to_xarray, to_zarr
from dask_tiled.graphs.rewriting import planned
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.testing import counting_frames, write_raw

SCAN = counting_frames((4, 6, 8), "uint16")
Q, R, S = Axis("q", "1/nm", 0.5), None, Axis("s", labels=tuple("abcdefgh"))


@pytest.fixture
def arr(tmp_path):
    path = write_raw(tmp_path / "scan.raw", SCAN)
    return open_dataset(path, "raw", dtype="u2", sig_shape=(6, 8), chunks=(2, 3, 4))


def plan_of(arr):
    """Return the sorted lines of the plan for all chunks of an array."""
    whole = arr.map_blocks(np.positive)
    found = str(planned(whole.dask, whole.__dask_keys__())).splitlines()
    return sorted(line.strip() for line in found if "labelled" not in line)


def tasks_of(arr):
    """Count the tasks of an array."""
    whole = arr.map_blocks(np.positive)
    (found,) = dask.optimize(whole)
    return len(dict(found.dask))


def test_labels(arr):
    found = shown_of(labelled(arr * 2.0, [Q, R, S], "px"))
    assert found.axes == (Q, R, S)
    assert found.units == "px"
    assert found.of == (arr.description,)


def test_labels_of_slices(arr):
    found = shown_of(labelled(arr * 2.0, [Q, R, S], "px")[1:, 2, ::3].T)
    assert found.axes == (Axis("s", "", 3, labels=("a", "d", "g")), Axis("q", "1/nm", 0.5, 0.5))
    assert found.units == "px"


def test_labelled_opened_arrays_stay_tiled(arr):
    axes = Q, Axis("r"), S
    found = labelled(arr, axes)
    assert isinstance(found, TiledArray)
    assert found.axes == shown_of(found).axes == axes
    assert shown_of(found - arr).axes == (None, None, None)  # the names differ
    np.testing.assert_array_equal(found, SCAN)


@pytest.mark.usefixtures("arr")
def test_graphs_may_be_plain_dictionaries():
    other = da.ones(3, chunks=3)
    other.dask = dict(other.dask)
    again = da.Array(other.dask, other.name, other.chunks, other.dtype)
    np.testing.assert_array_equal(again, np.ones(3))


def test_labels_are_pickled(arr):
    found = pickle.loads(pickle.dumps(labelled(arr.sum(0), [Q, S], "counts")))
    assert shown_of(found)[::2] == ((Q, S), "counts")


JOBS = {
    "labels": lambda a: a,
    "sums": lambda a: a.sum(0),
    "expressions": lambda a: np.sqrt(a).mean((1, 2)),
    "joins": lambda a: da.concatenate([a, a[:1]]).max(0),
    "bins": lambda a: da.coarsen(np.sum, a, {0: 2}),
    "places": lambda a: a.argmax(0),
    "chunks": lambda a: a.rechunk(3),
    "functions": lambda a: a.map_blocks(np.negative),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_labels_change_no_results_and_no_plans(arr, job):
    pixels = arr * 2.0
    expected, found = job(pixels), job(labelled(pixels, [Q, R, S], "px"))
    assert plan_of(found) == plan_of(expected)
    assert tasks_of(found) == tasks_of(expected)
    np.testing.assert_array_equal(found, expected.compute())


def test_labels_of_results_add_no_tasks(arr):
    expected, sums = arr.sum(0), labelled(arr.sum(0), [Q, S])
    assert tasks_of(sums) == tasks_of(expected)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(sums / 2, expected / 2)
    np.testing.assert_array_equal(sums.persist(), expected)
    np.testing.assert_array_equal(da.stack([sums, sums]), da.stack([expected, expected]))
    kept, below = dask.compute(sums, expected)
    np.testing.assert_array_equal(kept, below)


def test_wrong_labels_raise(arr):
    with pytest.raises(
        DatasetError, match=r"the number of axes does not match the array; expected 3 axes; found 2"
    ):
        labelled(arr, [Q, S])
    with pytest.raises(
        DatasetError, match=r"axis s does not match the array; expected 6 labels; found 8"
    ):
        labelled(arr, [Q, S, R])


LABELS = {
    "slices": (lambda a: a[:, 1::3], ("b", "e", "h")),
    "ends": (lambda a: a[:, :2], ("a", "b")),
    "reversed": (lambda a: a[:, ::-1], tuple("hgfedcba")),
    "transposed": (lambda a: a.T.sum(1), tuple("abcdefgh")),
    "places": (lambda a: da.take(a, [5, 0, 1], axis=1), ("f", "a", "b")),
    "a mask": (lambda a: a[:, np.arange(8) % 4 == 1], ("b", "f")),
    "joined": (lambda a: da.concatenate([a[:, :2], a[:, 6:]], axis=1), ("a", "b", "g", "h")),
    "joined again": (lambda a: da.concatenate([a[:, 3:], a[:, :3]], 1)[:, 4:6], ("h", "a")),
    "stacks": (lambda a: da.stack([a, a])[1], tuple("abcdefgh")),
    "stacks of others": (lambda a: da.stack([a[:, :4], a[:, 4:]]), ()),
    "joined with others": (lambda a: da.concatenate([a, da.ones((6, 2))], axis=1), None),
    "bins": (lambda a: da.coarsen(np.sum, a, {1: 2}), ()),
    "products": (lambda a: a * a[0], tuple("abcdefgh")),
    "functions": (lambda a: a.map_blocks(np.cbrt), tuple("abcdefgh")),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_positions(arr, case):
    make, expected = LABELS[case]
    found = shown_of(make(labelled(arr.sum(0), [Q, S]))).axes[-1 if case != "transposed" else 0]
    assert (found and found.labels) == expected


def test_labels_of_opened_arrays(arr):
    """Slices of opened arrays and their descriptions show the labels."""
    found = labelled(arr, [Q, Axis("r"), S])
    assert found[..., 2:4].axes[2] == Axis("s", offset=2, labels=("c", "d"))
    assert found[[2, 0, 3]].axes[2] == S
    assert "s 2 (c, d)" in repr(found[..., 2:4].description)
    assert "s 8 (a, b, c, d, e, f, g, h)" in repr(found.description)


def test_labels_and_units_in_exports(arr, tmp_path):
    found = labelled(arr.sum(0) * 1.0, [Q, S], "px")
    shown = to_xarray(found)
    assert shown.s.values.tolist() == list("abcdefgh")
    assert shown.sel(s="c").dims == ("q",)
    assert shown.attrs["units"] == "px"
    to_zarr(found, tmp_path / "a.zarr")
    assert open_dataset(tmp_path / "a.zarr").axes == (Q, S)
    assert xr.open_zarr(tmp_path / "a.zarr").data.attrs["units"] == "px"
