"""Real files: every one holds what independent readers see in it."""

import os
import subprocess
import sys

import numpy as np
import pytest
from manifest import HDR_ROWS, MIB_ROWS, NPY_ROWS, PROCESSED_ROWS, RAW_ROWS, by_file, expected_of

import dask_tiled

pytestmark = pytest.mark.usefixtures("synchronous")

# Run without numba's compiler, which takes longer than reading these files does as plain Python;
# with buffered reads, because the memory-mapped ones refuse a single 1-bit raw frame; and file by
# file, because otherwise every file that starts alike is taken for a part of the scan.
LIBERTEM_READER = """
import sys
import numpy as np
from libertem.api import Context
from libertem.common import Shape
from libertem.io.dataset.base import BufferedBackend, TilingScheme

context = Context.make_with("inline")
for path, count, target in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    data = context.load(
        "mib", path=path, nav_shape=(int(count),), disable_glob=True, io_backend=BufferedBackend()
    )
    frames = np.full(tuple(data.shape), np.nan)
    tileshape = Shape((1, *data.shape.sig), sig_dims=2)
    scheme = TilingScheme.make_for_shape(tileshape=tileshape, dataset_shape=data.shape)
    for partition in data.get_partitions():
        for tile in partition.get_tiles(scheme, dest_dtype=np.float64):
            start = tile.tile_slice.origin[0]
            frames[start : start + tile.shape[0]] = tile.data
    np.save(target, frames)
"""


def without_leading_one(shape):
    return shape[1:] if len(shape) > 2 and shape[0] == 1 else shape


def frames_of(path):
    """Open one file, all of its frames on one axis."""
    pixels = dask_tiled.open_dataset(path).compute()
    return pixels.reshape(-1, *pixels.shape[-2:])


@by_file(MIB_ROWS, "row")
def test_mib_file_has_the_shape_dtype_and_sum_of_the_manifest(data, row):
    """Every Merlin capture opens without being told anything."""
    arr = dask_tiled.open_dataset(data / row["file"])
    shape, dtype, total = expected_of(row)
    assert arr.description.format == "mib"
    assert without_leading_one(arr.shape) == without_leading_one(shape)
    assert arr.dtype == dtype
    assert arr.compute().sum(dtype=np.uint64) == total


@by_file(HDR_ROWS, "row")
def test_hdr_file_opens_the_mib_file_beside_it(data, row):
    """A .hdr file stands for its .mib file."""
    hdr = data / row["file"]
    by_hdr = dask_tiled.open_dataset(hdr)
    by_mib = dask_tiled.open_dataset(hdr.with_suffix(".mib"))
    assert [file.path for file in by_hdr.description.files] == [
        os.path.abspath(hdr.with_suffix(".mib"))
    ]
    assert by_hdr.shape == by_mib.shape
    assert by_hdr.description.layout == by_mib.description.layout


@pytest.mark.filterwarnings("ignore:.*created on Python 2:UserWarning")  # numpy's own reader
@by_file(NPY_ROWS, "row")
def test_npy_file_has_the_shape_dtype_and_sum_of_the_manifest(data, row):
    """Every npy file opens, and holds what numpy reads; pickled objects are refused."""
    path = data / row["file"]
    if "O" in row["shape_dtype"]:
        with pytest.raises(dask_tiled.DatasetError, match="pickle") as caught:
            dask_tiled.open_dataset(path)
        assert str(path.name) in str(caught.value)
        return
    arr = dask_tiled.open_dataset(path)
    shape, dtype, total = expected_of(row)
    assert arr.description.format == "npy"
    assert arr.shape == shape
    assert arr.dtype == dtype
    pixels = arr.compute()
    np.testing.assert_array_equal(pixels, np.load(path))
    assert pixels.sum() == pytest.approx(total, rel=1e-14)


@pytest.fixture(scope="module")
def libertem_frames(data, tmp_path_factory):
    """What LiberTEM reads from every Merlin capture, by file name."""
    pytest.importorskip("libertem", reason="LiberTEM is not installed")
    folder = tmp_path_factory.mktemp("libertem")
    jobs = []
    for number, row in enumerate(MIB_ROWS):
        shape, _, _ = expected_of(row)
        count = shape[0] if len(shape) == 3 else 1
        jobs += [data / row["file"], count, folder / f"{number}.npy"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", LIBERTEM_READER, *map(str, jobs)]
    result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {row["file"]: np.load(folder / f"{number}.npy") for number, row in enumerate(MIB_ROWS)}


@by_file(MIB_ROWS, "row")
def test_mib_file_equals_libertem_pixel_for_pixel(data, libertem_frames, row):
    """Processed or raw, one chip or four: LiberTEM sees the same picture."""
    found = frames_of(data / row["file"])
    np.testing.assert_array_equal(found, libertem_frames[row["file"]])


@by_file(PROCESSED_ROWS, "row")
def test_processed_mib_file_equals_rosettasciio_upside_down(data, row):
    """RosettaSciIO shows the same pixels, but the first row at the bottom."""
    reader = pytest.importorskip("rsciio.quantumdetector", reason="RosettaSciIO is not installed")
    path = data / row["file"]
    (signal,) = reader.file_reader(str(path), lazy=False)
    found = frames_of(path)
    theirs = np.asarray(signal["data"]).reshape(found.shape)
    np.testing.assert_array_equal(found, theirs[:, ::-1])


@by_file(RAW_ROWS, "row")
def test_raw_capture_lies_like_the_processed_capture_of_the_same_detector(data, row):
    """Pixels that are always on are at the same place in both, and not in any other orientation.

    The captures are different exposures of the same, nearly dark detector, so defective pixels are
    what they have in common.
    """
    path = data / row["file"]
    processed = frames_of(path.with_name(path.name.replace("RAW", ""))).all(axis=0)
    raw = frames_of(path).all(axis=0)
    together = (raw & processed).sum()
    assert together > 0.98 * max(raw.sum(), processed.sum())
    for axes in [(0,), (1,), (0, 1)]:  # they cluster, so that about half coincide when turned
        assert (np.flip(raw, axes) & processed).sum() < 0.6 * together
