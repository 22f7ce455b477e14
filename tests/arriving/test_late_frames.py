"""Frames of a recording that were lost, and come late."""

from contextlib import nullcontext

import numpy as np
import pytest

import dask_tiled
from dask_tiled.live.chunk_file import ChunkFile
from dask_tiled.live.outputs import Bound
from dask_tiled.live.series import PackedArray, SeriesStart
from dask_tiled.opened.growing import rows_as_they_come

SHAPE = (2, 3)


class Recorded:
    """A file of frames, whose pixels are their number and 1 more for each channel."""

    def __init__(self, path, channels=1):
        names = tuple("ab"[:channels])
        first = PackedArray(SHAPE, np.dtype("u2"), "", bytes(12))
        self.file = ChunkFile(str(path), Bound(), SeriesStart(1, 0, names, {}, {}), names, first)
        self.channels = channels

    def write(self, *numbers):
        for number in numbers:
            values = range(number, number + self.channels)
            images = [np.full(SHAPE, value, "u2").tobytes() for value in values]
            self.file.append(number, [images])
        self.file.flush()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


@pytest.mark.parametrize("channels", [1, 2])
def test_arrays_and_results(path, channels):
    recorded = Recorded(path, channels)
    recorded.write(*range(1, 9), *range(12, 16))
    arr = dask_tiled.open_dataset(path, follow=True, missing="fill")
    recorded.write(10)
    with pytest.warns(UserWarning, match="lost frames came late"):
        arr = arr.refresh()
    there = np.isin(np.arange(16), [*range(1, 9), 10, 12, 13, 14, 15])
    pixels = arr.compute().reshape(16, channels, -1)
    np.testing.assert_array_equal(pixels[:, 0, 0], np.arange(16) * there)
    np.testing.assert_array_equal(pixels[:, -1, 0], (np.arange(16) + channels - 1) * there)
    recorded.write(16)
    assert len(arr.refresh()) == 17, "nothing came late"
    recorded.file.close()


def test_frames_that_moved(path):
    recorded = Recorded(path)
    recorded.write(1, 2, 4)
    arr = dask_tiled.open_dataset(path, follow=True, missing="fill")
    recorded.write(2, 3)
    with pytest.raises(dask_tiled.StaleFileError, match="moved or changed"):
        arr.refresh()
    recorded.file.close()


@pytest.mark.filterwarnings("ignore:.*has stopped growing")
@pytest.mark.parametrize("number", [4, 10])
def test_exported_rows(path, number):
    """A row that is written has no frame 4; frame 10 belongs to a row that waits."""
    recorded = Recorded(path)
    recorded.write(1, 2, 3, 5, 6, 7, 8, 9, 11)
    options = {"nav_shape": (4, 4), "follow": True, "missing": "fill"}
    rows = rows_as_they_come(dask_tiled.open_dataset(path, **options), 2, 1)
    first = next(rows)
    assert (first.first, first.stop) == (0, 2)
    recorded.write(number)
    recorded.file.close()
    is_refused = number == 4
    expected = pytest.raises(dask_tiled.StaleFileError, match="written have changed")
    with (
        pytest.warns(UserWarning, match="lost frames came late"),
        expected if is_refused else nullcontext(),
    ):
        last = next(rows)
    if not is_refused:
        assert last.arr[2].compute()[:, 0, 0].tolist() == [8, 9, 10, 11]
