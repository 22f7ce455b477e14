"""Raw files: checks of options, truncated files, and the order of files."""

import os

import numpy as np
import pytest
from checks import refused, refuses

from dask_tiled import TruncatedFileError, open_dataset
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((12, 4, 8), "uint16", bits=12)
RAW = {"format": "raw", "dtype": "uint16", "sig_shape": (4, 8)}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": None}, {"sig_shape": None}, {"sig_shape": ()}, {"dtype": "nonsense"},
        {"dtype": object}, {"dtype": "V0"}, {"dtype": ("uint16", (2,))}, {"file_header": -1},
        {"frame_header": 1.5}, {"frame_footer": "3"}, {"file_header": True},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)  # fmt: skip
def test_invalid_options_raise(tmp_path, options):
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    refuses(path, **{**RAW, **options})


def test_truncated_file_in_the_middle_of_a_list(tmp_path):
    """Frames in the middle are never left out, whatever the nav_shape."""
    paths = [write_raw(tmp_path / f"{i}.raw", FRAMES) for i in range(3)]
    os.truncate(paths[1], paths[1].stat().st_size - 1)
    for nav_shape in (None, (11,), (35,)):
        with refused(paths[1], kind=TruncatedFileError, detailed=True) as caught:
            open_dataset(paths, nav_shape=nav_shape, **RAW)
        assert caught.value.hint is None


def test_raw_files_of_a_pattern_come_in_the_order_of_their_numbers(tmp_path):
    """Names are sorted as numbers: part10 comes after part9."""
    for i in range(12):
        write_raw(tmp_path / f"part{i}.raw", FRAMES[i : i + 1])
    arr = open_dataset(tmp_path / "part*.raw", dtype="uint16", sig_shape=(4, 8))
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_raw_files_of_a_list_come_in_its_order(tmp_path):
    """A list may hold a file twice."""
    paths = [write_raw(tmp_path / f"part{i}.raw", FRAMES[3 * i : 3 * i + 3]) for i in range(4)]
    order = [2, 0, 2, 1]
    arr = open_dataset([paths[k] for k in order], "raw", dtype="uint16", sig_shape=(4, 8))
    expected = FRAMES.reshape(4, 3, 4, 8)[order].reshape(12, 4, 8)
    np.testing.assert_array_equal(arr.compute(), expected)
