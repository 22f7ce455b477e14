"""What is computed of files keeps those of their axes that are left, with scales and units."""

import dask.array as da
import numpy as np
import pytest

from dask_tiled import Axis, map_tiles, open_dataset, tiles
from dask_tiled.array.axes import shown_of
from dask_tiled.testing import counting_frames, write_nrrd, write_raw

SCAN = counting_frames((4, 6, 8), "uint16")
FIELDS = {"spacings": "2 0.5 3", "units": '"mrad" "nm" "s"'}
Z, Y, X = Axis("z", "s", 3), Axis("y", "nm", 0.5), Axis("x", "mrad", 2)


@pytest.fixture
def arr(tmp_path):
    """Open a volume with three scales, in several chunks."""
    path = write_nrrd(tmp_path / "volume.nrrd", SCAN, fields=FIELDS)[0]
    found = open_dataset(path, chunks=(2, 3, 4))
    assert found.description.axes == (Z, Y, X)
    return found


CASES = {
    "sums": (lambda a: a.sum(0), (Y, X)),
    "deviations": (lambda a: a.std((-1, 1)), (Z,)),
    "sums one after the other": (lambda a: a.max(2).max(0), (Y,)),
    "positions": (lambda a: a.argmax(0), (Y, X)),
    "axes of length 1": (lambda a: a.sum((0, 1), keepdims=True), (None, None, X)),
    "expressions": (lambda a: np.sqrt(a.sum(0) / 3) + 1, (Y, X)),
    "functions of pixels": (lambda a: da.where(a > 3, a, 0).clip(0, 9).astype("f4"), (Z, Y, X)),
    "arrays beside": (lambda a: (a - a.mean(0)) * np.ones((6, 8)), (Z, Y, X)),
    "slices": (lambda a: a[1:, 2, ::2], (Axis("z", "s", 3, 3), Axis("x", "mrad", 4))),
    "slices of sums": (
        lambda a: a.sum(0)[2:4, 1::3], (Axis("y", "nm", 0.5, 1), Axis("x", "mrad", 6, 2))
    ),
    "new axes": (lambda a: a.sum(0)[3, None, :, None], (None, X, None)),
    "turned": (lambda a: a.sum(0).rechunk(-1)[::-1], (Axis("y", "nm", -0.5, 2.5), X)),
    "moved": (lambda a: da.moveaxis(a, 0, -1).sum(1).T, (Z, Y)),
    "bins": (
        lambda a: da.coarsen(np.sum, a.rechunk(-1), {1: 2, 2: 4}),
        (Z, Axis("y", "nm", 1, 0.25), Axis("x", "mrad", 8, 3)),
    ),
    "bins of sums": (
        lambda a: da.coarsen(np.mean, a.sum(0), {0: 3}), (Axis("y", "nm", 1.5, 0.5), X)
    ),
    "bins by shape": (lambda a: a.reshape(4, 3, 2, 8).sum(2), (Z, Axis("y", "nm", 1, 0.25), X)),
    "joined": (lambda a: a.sum(0).reshape(-1), (None,)),
    "rechunked": (lambda a: a.sum(0).rechunk(5), (Y, X)),
    "products": (lambda a: da.tensordot(a, np.ones((6, 8)), 2), (Z,)),
    "matrix products": (lambda a: a.astype("f4") @ np.ones((8, 3), "f4"), (Z, Y, None)),
    "einsum": (lambda a: da.einsum("zyx,yx->z", a, np.ones((6, 8))), (Z,)),
    "masks": (lambda a: tiles.apply_masks(a, np.ones((2, 6, 8))), (Z, None)),
    "stacks": (lambda a: da.stack([a[0].sum(0), a[1].sum(0)], axis=1), (X, None)),
    "Fourier transforms": (lambda a: da.fft.fft(a.rechunk(-1), axis=2), (None, None, None)),
    "functions of chunks": (lambda a: a.map_blocks(np.flip), (None, None, None)),
    "functions of tiles": (lambda a: map_tiles(lambda tile, _: 2 * tile, a), (Z, None, None)),
    "masked pixels": (lambda a: a[a > 3], (None,)),
    "repeated": (lambda a: da.concatenate([a, a], axis=1), (Z, Axis("y"), X)),
    "parts": (lambda a: da.concatenate([a[:, :2], a[:, 2:]], axis=1), (Z, Y, X)),
    "parts that jump": (lambda a: da.concatenate([a[:, :2], a[:, 3:]], axis=1), (Z, Axis("y"), X)),
    "parts of others": (lambda a: da.concatenate([a, da.ones((2, 6, 8))]), (None, Y, X)),
    "every second one backwards": (
        lambda a: a[::-2, 1:], (Axis("z", "s", -6, 9), Axis("y", "nm", 0.5, 0.5), X)
    ),
    "places": (lambda a: a[[3, 1]], (Axis("z", "s", -6, 9), Y, X)),
    "uneven places": (lambda a: a[[3, 1, 0]], (Axis("z"), Y, X)),
    "a mask": (lambda a: a[np.array([False, True, False, True])], (Axis("z", "s", 6, 3), Y, X)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_axes_that_are_left(arr, case):
    make, expected = CASES[case]
    assert shown_of(make(arr)).axes == expected


def test_files_that_are_read(arr):
    """Each once, also where parts of it are read."""
    (desc,) = shown_of(arr[0] + arr[1] - arr.mean(0)).of
    assert desc.files == arr.description.files


def test_several_files(arr, tmp_path):
    """One that says nothing of its axes agrees with others; two scales are none."""
    same = write_nrrd(tmp_path / "same.nrrd", SCAN)[0]
    other = write_nrrd(tmp_path / "other.nrrd", SCAN, fields=FIELDS | {"spacings": "2 1 3"})[0]
    same, other = open_dataset(same), open_dataset(other)
    found = shown_of(same + arr)
    assert found.axes == (Z, Y, X)
    assert {desc.files for desc in found.of} == {same.description.files, arr.description.files}
    assert shown_of(arr + other).axes == (Z, Axis("y"), X)
    raw = open_dataset(write_raw(tmp_path / "a.raw", SCAN), "raw", dtype="u2", sig_shape=(6, 8))
    assert shown_of(arr + raw).axes == (None, Y, X)


def test_arrays_of_others():
    found = shown_of(da.ones((3, 4)) + 1)
    assert found == ((None, None), (), "")


def test_assigned_items(arr):
    """They leave axes as they are."""
    arr[0] = 0
    assert shown_of(arr).axes == (Z, Y, X)
