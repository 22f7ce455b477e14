"""Results keep the remaining axes of their files, with scales and units."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.fftpack
from checks import peak_memory
from conftest import ANY_PORT
from distributed import Client, LocalCluster

from dask_tiled import Axis, map_tiles, open_dataset, tiles
from dask_tiled.labels.fourier import reciprocal_units
from dask_tiled.opened.axes import labelled, shown_of
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
    "reductions of reductions": (lambda a: a.max(2).max(0), (Y,)),
    "indices of extremes": (lambda a: a.argmax(0), (Y, X)),
    "axes of length 1": (lambda a: a.sum((0, 1), keepdims=True), (None, None, X)),
    "expressions": (lambda a: np.sqrt(a.sum(0) / 3) + 1, (Y, X)),
    "functions of pixels": (lambda a: da.where(a > 3, a, 0).clip(0, 9).astype("f4"), (Z, Y, X)),
    "operands": (lambda a: (a - a.mean(0)) * np.ones((6, 8)), (Z, Y, X)),
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
    "masks": (lambda a: tiles.apply_masks(a, np.ones((2, 6, 8))), (Z, Axis("mask"))),
    "stacks": (lambda a: da.stack([a[0].sum(0), a[1].sum(0)], axis=1), (X, None)),
    "functions of tiles": (lambda a: map_tiles(lambda tile, _: 2 * tile, a), (Z, Y, X)),
    "functions of frames": (
        lambda a: map_tiles(lambda tile, _: tile.sum(1), a, sig_ndim=2), (Z, None)
    ),
    "functions that keep the shape": (lambda a: a.map_blocks(np.cbrt, dtype="f4"), (Z, Y, X)),
    "functions that change the shape": (
        lambda a: a.map_blocks(lambda x: x[:, :1], chunks=((2, 2), (1, 1), (4, 4))), (Z, None, X)
    ),
    "functions that drop an axis": (
        lambda a: a.rechunk((2, -1, 4)).map_blocks(np.ptp, axis=1, drop_axis=1), (Z, X)
    ),
    "functions that move pixels": (lambda a: a.map_blocks(np.flip), (None, None, None)),
    "methods that move pixels": (
        lambda a: a.map_blocks(np.ndarray.transpose, (0, 1, 2)),
        (None, None, None),
    ),
    "functions of neighbours": (
        lambda a: a.map_overlap(lambda x: x, depth=1, boundary="reflect"), (Z, Y, X)
    ),
    "functions with labels": (lambda a: da.blockwise(np.transpose, "ji", a[0], "ij"), (X, Y)),
    "gradients": (lambda a: da.gradient(a.astype("f4"), axis=1), (Z, Y, X)),
    "gradients in one chunk": (lambda a: da.gradient(a.rechunk(-1) + 0.5, axis=1), (Z, Y, X)),
    "medians": (lambda a: da.median(a, axis=0), (Y, X)),
    "medians of axes of length 1": (lambda a: da.median(a, axis=0, keepdims=True), (None, Y, X)),
    "quantiles": (lambda a: da.quantile(a.rechunk(-1), [0.1, 0.9], axis=0), (None, Y, X)),
    "cumulative sums": (lambda a: a.cumsum(1), (Z, Y, X)),
    "cumulative sums as a tree": (lambda a: da.cumsum(a, 1, method="blelloch"), (Z, Y, X)),
    "differences": (lambda a: da.diff(a, axis=1), (Z, Axis("y", "nm", 0.5, 0.25), X)),
    "second differences": (lambda a: da.diff(a, 2, axis=1), (Z, Axis("y", "nm", 0.5, 0.5), X)),
    "differences of distant pixels": (lambda a: a[:, 3:] - a[:, :-3], (Z, Axis("y"), X)),
    "einsum of one array": (lambda a: da.einsum("zyx->xz", a), (X, Z)),
    "einsum of a diagonal": (lambda a: da.einsum("yy->y", a[0, :, :6]), (None,)),
    "reversed": (lambda a: a[:, ::-1], (Z, Axis("y", "nm", -0.5, 2.5), X)),
    "rotated": (lambda a: da.rot90(a[0]), (Axis("x", "mrad", -2, 14), Y)),
    "rolled": (lambda a: da.roll(a, 2, axis=1), (Z, Axis("y"), X)),
    "chunks of an array": (lambda a: a.blocks[1], (Axis("z", "s", 3, 6), Y, X)),
    "indices of results": (lambda a: da.take(a.sum(0), [0, 2, 4], axis=0), (Axis("y", "nm", 1), X)),
    "uneven indices of results": (lambda a: da.take(a.sum(0), [2, 0, 1], axis=0), (Axis("y"), X)),
    "a computed mask": (lambda a: a[a.sum((1, 2)) > 5], (Axis("z"), Y, X)),
    "repeated along new axes": (lambda a: da.broadcast_to(a, (2, 4, 6, 8)), (None, Z, Y, X)),
    "repeated along old axes": (lambda a: da.broadcast_to(a.sum(0)[:1], (5, 8)), (None, X)),
    "membership": (lambda a: da.isin(a, [1, 2]), (Z, Y, X)),
    "largest values": (lambda a: da.topk(a, 4, axis=0), (None, Y, X)),
    "choices": (lambda a: da.select([a > 3], [a]), (Z, Y, X)),
    "new axes of opened arrays": (lambda a: da.expand_dims(a, 1), (Z, Axis("scan_x"), Y, X)),
    "repeated pixels": (lambda a: da.repeat(a, 2, axis=1), (Z, None, X)),
    "padded": (lambda a: da.pad(a, ((0, 0), (1, 2), (0, 0))), (Z, None, X)),
    "masked pixels": (lambda a: a[a > 3], (None,)),
    "repeated": (lambda a: da.concatenate([a, a], axis=1), (Z, Axis("y"), X)),
    "parts": (lambda a: da.concatenate([a[:, :2], a[:, 2:]], axis=1), (Z, Y, X)),
    "parts that jump": (lambda a: da.concatenate([a[:, :2], a[:, 3:]], axis=1), (Z, Axis("y"), X)),
    "joined with another array": (lambda a: da.concatenate([a, da.ones((2, 6, 8))]), (None, Y, X)),
    "a negative step": (
        lambda a: a[::-2, 1:], (Axis("z", "s", -6, 9), Axis("y", "nm", 0.5, 0.5), X)
    ),
    "indices": (lambda a: a[[3, 1]], (Axis("z", "s", -6, 9), Y, X)),
    "uneven indices": (lambda a: a[[3, 1, 0]], (Axis("z"), Y, X)),
    "a mask": (lambda a: a[np.array([False, True, False, True])], (Axis("z", "s", 6, 3), Y, X)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_keep_their_axes(arr, case):
    make, expected = CASES[case]
    assert shown_of(make(arr)).axes == expected


def fft(pixels, power):
    return pixels**power


F = Axis("f_y", "1/nm", 1 / 3)
TRANSFORMS = {
    "fft": (lambda a: da.fft.fft(a, axis=1), (Z, F, X)),
    "fft2": (da.fft.fft2, (Z, F, Axis("f_x", "1/mrad", 1 / 16))),
    "fftn": (lambda a: da.fft.fftn(a, axes=(0, 1)), (Axis("f_z", "1/s", 1 / 12), F, X)),
    "padded": (lambda a: da.fft.fft(a, 12, axis=1), (Z, Axis("f_y", "1/nm", 1 / 6), X)),
    "rfft": (lambda a: da.fft.rfft(a, axis=1), (Z, F, X)),
    "irfft": (lambda a: da.fft.irfft(da.fft.rfft(a, axis=1), axis=1), (Z, Y, X)),
    "ifft": (lambda a: da.fft.ifft(da.fft.fft(a, axis=1)[:, :, ::2], axis=1), (
        Z, Y, Axis("x", "mrad", 4))
    ),
    "interpolated": (
        lambda a: da.fft.ifft(da.fft.fft(a, axis=1), 12, axis=1), (Z, Axis("y", "nm", 0.25), X)
    ),
    "offset": (lambda a: da.fft.ifft(da.fft.fft(a[:, 1:], axis=1), axis=1), (
        Z, Axis("y", "nm", 0.5, 0.5), X)
    ),
    "twice": (lambda a: da.fft.fft(da.fft.fft(a, axis=1), axis=1), (Z, Axis("y"), X)),
    "inverse twice": (lambda a: da.fft.ifft(da.fft.ifft(a, axis=1), axis=1), (Z, Axis("y"), X)),
    "inverse first": (lambda a: da.fft.fft(da.fft.ifft(a, axis=1), axis=1), (Z, Y, X)),
    "ifft of pixels": (lambda a: da.fft.ifft(a, axis=1), (Z, F, X)),
    "shift": (
        lambda a: da.fft.fftshift(da.fft.fft(a, axis=1), axes=1),
        (Z, Axis("f_y", "1/nm", 1 / 3, -1), X),
    ),
    "odd shift": (
        lambda a: da.fft.fftshift(da.fft.fft(a[:, 1:], axis=1), axes=1),
        (Z, Axis("f_y", "1/nm", 0.4, -0.8), X),
    ),
    "back": (lambda a: da.fft.ifftshift(da.fft.fftshift(da.fft.fft(a, axis=1))), (
        Axis("z"), F, Axis("x"))
    ),
    "shift of chunks": (
        lambda a: da.fft.fft(a, axis=1).map_blocks(np.fft.fftshift, axes=1),
        (Z, Axis("f_y", "1/nm", 1 / 3, -1), X),
    ),
    "shift of pixels": (lambda a: da.fft.fftshift(a, axes=1), (Z, Axis("y"), X)),
    "function of chunks": (lambda a: a.map_blocks(np.fft.fft, None, 1, dtype="c16"), (Z, F, X)),
    "SciPy": (lambda a: a.map_blocks(scipy.fft.fft, axis=1, dtype="c16"), (Z, F, X)),
    "packed": (lambda a: a.map_blocks(scipy.fftpack.rfft, axis=1), (Z, None, X)),
    "user function with the same name": (lambda a: a.map_blocks(fft, 2, dtype="u2"), (Z, Y, X)),
    "axis in several chunks": (
        lambda a: a.rechunk((4, 3, 8)).map_blocks(np.fft.fft, axis=1, dtype="c16"),
        (None, None, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSFORMS)
def test_frequencies(arr, case):
    make, expected = TRANSFORMS[case]
    found = shown_of(make(arr.rechunk(-1))).axes
    assert [x and (x.name, x.units) for x in found] == [x and (x.name, x.units) for x in expected]
    numbers = [[(x.scale, x.offset) for x in axes if x] for axes in (found, expected)]
    np.testing.assert_allclose(*numbers, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_shifted_frequencies_are_those_of_numpy(arr, n):
    part = arr.rechunk(-1)[:, :n]
    found = shown_of(da.fft.fftshift(da.fft.fft(part, axis=1), axes=1)).axes[1]
    expected = np.fft.fftshift(np.fft.fftfreq(n, Y.scale))
    np.testing.assert_allclose(found.offset + found.scale * np.arange(n), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("units", "reciprocal"),
    [("nm", "1/nm"), ("1/nm", "nm"), ("", ""), ("m/s", "1/(m/s)"), ("1/(m/s)", "m/s")],
)
def test_reciprocal_units(units, reciprocal):
    assert reciprocal_units(units) == reciprocal


def test_persisted_results(arr):
    """Persisted graphs hold only pixels; axes are looked up by the name of the array."""
    sums = (arr.sum(0) + 1).persist()
    assert shown_of(sums) == shown_of(arr.sum(0) + 1)
    assert shown_of(sums[1:].mean(0)).axes == (X,)
    assert shown_of((sums * 2).persist()).axes == (Y, X)
    assert shown_of(arr.persist()).axes == (Z, Y, X)
    frequencies = da.fft.fft(arr.rechunk(-1), axis=1).persist()
    expected = Axis("f_y", "1/nm", F.scale, -1)
    assert shown_of(da.fft.fftshift(frequencies, axes=1)).axes[1] == expected
    (optimized,) = dask.optimize(arr.max(0))
    assert shown_of(optimized).axes == (Y, X)


def test_persisted_on_a_cluster(arr):
    options = {"processes": False, "n_workers": 1, **ANY_PORT}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        sums, peaks = dask.persist(arr.sum(0), arr.max(1))
        assert shown_of(sums).axes == (Y, X)
        assert shown_of(client.persist(peaks / 2)).axes == (Z, X)


def test_axes_of_arrays_named_by_users_are_unknown(arr):
    """Two arrays may share a name that users choose."""
    one = arr.map_blocks(np.negative, name="mine").persist()
    assert shown_of(one).axes == (None, None, None)


UNITS = {
    "parts": (lambda a: a[1:, ::2].T, "mrad"),
    "sums": (lambda a: a.sum(0), "mrad"),
    "means": (lambda a: a.mean(1), "mrad"),
    "peaks": (lambda a: a.max(0) - a.min(0), "mrad"),
    "medians": (lambda a: da.median(a, axis=0), "mrad"),
    "limits": (lambda a: da.clip(a, 0, 9).astype("f4"), "mrad"),
    "chunks": (lambda a: a.rechunk(2), "mrad"),
    "joined": (lambda a: da.concatenate([a, a]), "mrad"),
    "joined with another array": (lambda a: da.concatenate([a, da.ones((4, 6, 8))]), ""),
    "scaled": (lambda a: 2 * a, ""),
    "products": (lambda a: a * a, ""),
    "variances": (lambda a: a.var(0), ""),
    "indices": (lambda a: a.argmax(0), ""),
    "products of matrices": (lambda a: a[0] @ a[0].T, ""),
    "functions": (lambda a: a.map_blocks(np.cbrt), ""),
    "comparisons": (lambda a: a > 3, ""),
    "transforms": (lambda a: da.fft.fft(a.rechunk(-1)), ""),
    "persisted": (lambda a: a.sum(0).persist(), "mrad"),
}


@pytest.mark.parametrize("case", UNITS)
def test_units_of_values(arr, case):
    make, expected = UNITS[case]
    assert shown_of(make(labelled(arr * 1.0, (Z, Y, X), "mrad"))).units == expected


def test_each_file_is_listed_once(arr):
    (desc,) = shown_of(arr[0] + arr[1] - arr.mean(0)).of
    assert desc.files == arr.description.files


def test_axes_of_several_files(arr, tmp_path):
    """Unknown axes agree with all axes; conflicting scales are dropped."""
    same = write_nrrd(tmp_path / "same.nrrd", SCAN)[0]
    other = write_nrrd(tmp_path / "other.nrrd", SCAN, fields=FIELDS | {"spacings": "2 1 3"})[0]
    same, other = open_dataset(same), open_dataset(other)
    found = shown_of(same + arr)
    assert found.axes == (Z, Y, X)
    assert {desc.files for desc in found.of} == {same.description.files, arr.description.files}
    assert shown_of(arr + other).axes == (Z, Axis("y"), X)
    raw = open_dataset(write_raw(tmp_path / "a.raw", SCAN), "raw", dtype="u2", sig_shape=(6, 8))
    assert shown_of(arr + raw).axes == (None, Y, X)


def test_plain_dask_arrays_have_no_axes():
    found = shown_of(da.ones((3, 4)) + 1)
    assert found == ((None, None), (), "")


def test_assigned_items_keep_axes(arr):
    arr[0] = 0
    assert shown_of(arr).axes == (Z, Y, X)


def test_positions_along_long_axes_are_not_listed(tmp_path):
    """A list of positions would take more memory than the pixels."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((1, 1 << 20), "u1"))
    flipped = da.flip(open_dataset(path, chunks=(1, 1 << 19)).ravel(), 0)
    with peak_memory() as peak:
        assert shown_of(flipped).axes == (None,)
    assert peak[0] < 1 << 20
