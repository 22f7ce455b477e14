"""The chunks of a region, one by one, equal the pixels of the file."""

from itertools import product

import numpy as np
import pytest
from checks import peak_memory
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import open_dataset
from dask_tiled.export.zarr.parts import BlockPixels
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.testing import counting_frames, write_mib, write_raw

FRAMES = counting_frames((4, 5, 6, 8), "uint16")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Open a scan whose pixels are decoded, and one whose pixels are native."""
    folder = tmp_path_factory.mktemp("scan")
    raw = write_raw(folder / "scan.raw", FRAMES.astype("<u2"))
    return {
        "mib": open_dataset(write_mib(folder / "scan.mib", FRAMES)),
        "raw": open_dataset(raw, nav_shape=(4, 5), sig_shape=(6, 8), dtype="<u2"),
    }


@given(st.data())
def test_parts_of_a_source(files, data):
    """Arrays and slices are read in any regions and chunks.

    In a larger block, the region consists of whole chunks.
    """
    index = data.draw(st.sampled_from([np.s_[:], np.s_[1], np.s_[:, 2], np.s_[::2, 1:, 3]]))
    arr = files[data.draw(st.sampled_from(["mib", "raw"]))][index]
    expected = FRAMES[index]
    chunk = tuple(data.draw(st.integers(1, n + 2)) for n in arr.shape)
    ends = [data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n))) for n in arr.shape]
    whole = data.draw(st.booleans())
    if whole:
        ends = [(a // k * k, -(-b // k) * k) for (a, b), k in zip(ends, chunk, strict=True)]
    region = tuple(slice(a, min(a + b, n)) for (a, b), n in zip(ends, arr.shape, strict=True))
    source = Source(arr.description.layout, arr.description.conversion, "auto")
    inside = expected[region]
    box = tuple((some.start, some.stop) for some in region)
    if whole:
        box = tuple((0, n) for n in arr.shape)
    counts = [-(-n // k) for n, k in zip(inside.shape, chunk, strict=True)]
    with Workspace() as workspace:
        seen = []
        for place, pixels in BlockPixels(source, box, workspace).parts(region, chunk):
            corners = zip(place, chunk, strict=True)
            want = inside[tuple(slice(k * n, (k + 1) * n) for k, n in corners)]
            np.testing.assert_array_equal(pixels, want)
            seen.append(place)
    assert seen == list(product(*map(range, counts)))


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [((2, 2048, 2048), (1, 512, 512)), ((64, 256, 256), (64, 1, 4))],
    ids=["large-frames", "small-chunks"],
)
def test_parts_take_little_more_than_their_block(tmp_path, shape, chunk):
    """Frames may be large, or cut into many chunks."""
    path = write_raw(tmp_path / "scan.raw", np.zeros(shape, ">u2"))
    arr = open_dataset(path, nav_shape=shape[:1], sig_shape=shape[1:], dtype=">u2")
    source = Source(arr.description.layout, arr.description.conversion, "auto")
    box, region = tuple((0, n) for n in shape), tuple(slice(0, n) for n in shape)
    with Workspace() as workspace:
        next(BlockPixels(source, box, workspace).parts(region, chunk))  # compiles what is needed
        with peak_memory() as peak:
            for _ in BlockPixels(source, box, workspace).parts(region, chunk):
                pass
    assert peak[0] < 1.4 * arr.nbytes
