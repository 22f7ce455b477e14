"""Transposed, reshaped, sliced and new axes run on tiles and have NumPy's values."""

import dask.array as da
import numpy as np
import pytest
from checks import coarsened, on_tiles

import dask_tiled
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (6, 4, 24, 64)
RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 4000, SHAPE)
RING = RNG.random(SHAPE[2:]).astype("f4")
ROW = RNG.random(SHAPE[3]).astype("f4")
BINS = 6, 4, 12, 2, 16, 4

EXPRESSIONS = {
    "scan behind": lambda a: a.transpose(2, 3, 0, 1).sum(axis=(0, 1)),
    "scan behind, one axis": lambda a: a.transpose(2, 3, 0, 1).sum(axis=2),
    "pixel by pixel": lambda a: (a.transpose(2, 3, 0, 1) * 2).max(axis=(1, 3)),
    "chunks": lambda a: a.transpose(1, 2, 3, 0) + 1,
    "swapped": lambda a: np.swapaxes(a, 0, 3).sum(axis=0),
    "moved": lambda a: np.moveaxis(a, 0, -1).mean(axis=(0, -1)),
    "spread": lambda a: np.transpose(a, (3, 2, 0, 1)).std(axis=(2, 3)),
    "weights": lambda a: (np.transpose(a, (3, 2, 0, 1)) * RING.T[:, :, None, None]).sum((0, 1)),
    "new axis": lambda a: a[:, None].sum(axis=(0, 1)),
    "new and gone": lambda a: (a[:, :, None, 5:9] * 2.0)[:, 1].sum(axis=(1, 2)),
    "expanded": lambda a: np.expand_dims(a, 0).max(axis=(0, 1, 2)),
    "scan joined": lambda a: np.reshape(a * 2, (-1, 24, 64)).sum(axis=0),
    "frames joined": lambda a: np.reshape(a, (6, 4, -1)).max(axis=-1),
    "weights joined": lambda a: (np.reshape(a, (6, 4, -1)) * RING.ravel()).sum(axis=-1),
    "both joined": lambda a: np.reshape(a, (24, -1)).mean(axis=1),
    "one axis": lambda a: np.ravel(a).sum(),
    "joined when moved": lambda a: np.reshape(np.transpose(a, (0, 1, 3, 2)), (6, 4, -1)).sum(
        (0, 1)
    ),
    "split": lambda a: np.reshape(a, BINS).sum(axis=(3, 5)),
    "split, weights": lambda a: np.reshape(a * RING, BINS).mean(axis=(3, 5)),
    "split and joined": lambda a: np.reshape(np.reshape(a, BINS), (6, 4, 24, 64)).sum((2, 3)),
    "mirrored": lambda a: a[..., ::-1, :].sum(axis=(0, 1)),
    "mirrored, weights": lambda a: (a[..., ::-1, :] * RING).sum(axis=(2, 3)),
    "mirrored and cut": lambda a: (a[..., ::-1, :] * RING)[..., 5:20, ::-2].sum(axis=(0, 1)),
    "mirrored when cut": lambda a: (a * RING)[..., 20:4:-3, :].sum(axis=(1, 2)),
    "mirrored and joined": lambda a: (
        np.reshape(a[..., ::-1, ::-1], (6, 4, -1)) * RING.ravel()
    ).sum(axis=(0, 1)),
    "mirrored and split": lambda a: np.reshape(a[..., ::-1, ::-1] * RING, BINS).sum(axis=(3, 5)),
    "mirrored twice": lambda a: (np.flip(a[..., ::-1, :] * RING, 2) + ROW)[..., 7, 4:].mean(axis=0),
    "mirrored chunks": lambda a: (a * RING)[..., ::-1, :] * 2,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_npy(tmp_path_factory.mktemp("views") / "counts.npy", COUNTS.astype(">u2"))


def assert_agrees(found, expected):
    pixels = found.compute()
    assert found.dtype == pixels.dtype == expected.dtype
    np.testing.assert_allclose(pixels, expected, rtol=1e-5)
    assert pixels.shape == expected.shape


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_views(path, name):
    arr = dask_tiled.open_dataset(path, chunks=SHAPE)
    result = EXPRESSIONS[name](arr)
    assert on_tiles(result)
    assert_agrees(result, EXPRESSIONS[name](COUNTS.astype("u2")))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [np.sum, np.mean, np.max, np.min, np.prod, np.any, np.all])
@pytest.mark.parametrize(
    ("by", "dtype"),
    [({2: 2, 3: 4}, "u2"), ({0: 2, 1: 4, 3: 16}, "f4"), ({3: 8}, "i8"), ({3: 64}, "?")],
    ids=str,
)
def test_binning(path, function, by, dtype):
    arr = dask_tiled.open_dataset(path, chunks=(4, 4, 24, 64)).astype(dtype)
    result = da.coarsen(function, arr, by)
    assert on_tiles(result)
    assert_agrees(result, coarsened(function, COUNTS.astype(dtype), by))


def test_several_views_of_the_same_pixels(path):
    """Every result has its own axes."""
    arr = dask_tiled.open_dataset(path, chunks=(4, 4, 24, 64))
    results = [EXPRESSIONS[name](arr) for name in EXPRESSIONS]
    assert on_tiles(*results)
    for found, name in zip(da.compute(*results), EXPRESSIONS, strict=True):
        np.testing.assert_allclose(found, EXPRESSIONS[name](COUNTS.astype("u2")), rtol=1e-5)


def test_axes_in_several_chunks_are_left_to_dask(path):
    arr = dask_tiled.open_dataset(path, chunks=(4, 2, 24, 64)) + 1
    pixels = COUNTS.astype("u2") + 1
    assert_agrees(arr.reshape(-1, 24, 64).sum(axis=0), pixels.reshape(-1, 24, 64).sum(axis=0))
    assert_agrees(np.flip(arr, 1).sum(axis=0), pixels[:, ::-1].sum(axis=0))
