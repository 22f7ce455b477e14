"""Changing files: readers get the opened version or an error, never a mixture or a signal.

A few runs of each kind; ``make fuzz-files`` runs hundreds.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from formats_table import TABLE
from hypothesis import settings

from dask_tiled import DatasetError, StaleFileError, open_dataset, to_zarr

LONG = settings.default.max_examples >= 500
"""Whether ``make fuzz-files`` runs these tests."""
PROGRAM = Path(__file__).with_name("changing_files.py")

# Changes after opening


def put_back(path, before):
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(path):
    """Change a byte, and restore the time of modification."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        (byte,) = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    put_back(path, before)


def cut_and_grow(path):
    """Truncate a file, and extend it with zeros to its former size."""
    before = path.stat()
    os.truncate(path, before.st_size // 2)
    os.truncate(path, before.st_size)
    put_back(path, before)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    """Replace a file by another of the same size and time of modification."""
    before, content = path.stat(), path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    put_back(other, before)
    os.replace(other, path)


def touch(path):
    """Set the time of modification, as a write would."""
    os.utime(path)


CHANGES = [rewrite, cut_and_grow, truncate, replace, touch]
FORMATS = ["raw series", "mib 12 bit quad", "tiff tiles", "hdf5 gzip"]
SPELLINGS = {
    "compute": lambda arr, _: arr.compute(),
    "slice": lambda arr, _: arr[..., 1:3, ::2].sum(axis=-1).compute(),
    "persist": lambda arr, _: arr.persist(),
    "to_zarr": lambda arr, folder: to_zarr(arr, folder / "out.zarr", progress=False),
}


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("rests", [False, True], ids=["recent", "at rest"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_change_is_noticed(tmp_path, request, name, rests):
    """Changes raise, whether the file was read before or not."""
    if rests:
        request.getfixturevalue("at_rest")
    for number, change in enumerate(CHANGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        sample = TABLE[name](folder, "scan")
        arrays = [open_dataset(**sample.options) for _ in SPELLINGS]
        if rests:
            np.testing.assert_array_equal(arrays[0].compute(), sample.expected)
        time.sleep(0.02)  # the steps of times in many file systems
        change(sample.members[-1])
        for (spelling, use), arr in zip(SPELLINGS.items(), arrays, strict=True):
            with pytest.raises(DatasetError) as caught:
                use(arr, folder)
            told = caught.value.__cause__ if spelling == "to_zarr" else caught.value
            told = told or caught.value
            assert isinstance(told, StaleFileError), (change.__name__, spelling)
            assert told.path == str(sample.members[-1])


# Changes during reads


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Run the program that changes files, and return its counts."""
    runs = 400 if LONG else 8
    command = [sys.executable, PROGRAM, tmp_path_factory.mktemp("files"), str(runs), "7"]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr
    sys.stdout.write(done.stdout + done.stderr)  # shown by ``make fuzz-files``
    return dict(pair for line in done.stdout.splitlines() for pair in json.loads(line).items())


@pytest.mark.slow
def test_results_are_right_or_raise(changed):
    """Changes at any moment give right pixels or an error, with threads and with a cluster."""
    for kind, found in changed.items():
        assert found["runs"] > 0
        assert found["wrong"] == found["other errors"] == found["not noticed"] == 0, kind
        assert found["typed errors"] + found["signals"] > 0


@pytest.mark.slow
def test_no_signal_ends_a_process(changed):
    """The exception: files unchanged for a minute that are truncated during reads."""
    signals = {kind: found["signals"] for kind, found in changed.items()}
    del signals["files at rest, cut during tasks"]
    assert set(signals.values()) == {0}
