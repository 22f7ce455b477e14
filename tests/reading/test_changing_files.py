"""Files that change: whoever has opened them gets what was there, or an error; and no signal.

A few times each here; ``make fuzz-files`` does so as often as it takes to be sure.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from formats_table import TABLE
from hypothesis import settings

from dask_tiled import DatasetError, StaleFileError, open_dataset, to_zarr

LONG = settings.default.max_examples >= 500
"""Whether as many are asked for as ``make fuzz-files`` does."""
PROGRAM = Path(__file__).with_name("changing_files.py")

# What was changed since it was opened


def put_back(path, before):
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(path):
    """Other content, and size and time of modification as before."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        (byte,) = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    put_back(path, before)


def cut_and_grow(path):
    """To the size that it had, with zeros."""
    before = path.stat()
    os.truncate(path, before.st_size // 2)
    os.truncate(path, before.st_size)
    put_back(path, before)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    """By a file of the same size and time of modification."""
    before, content = path.stat(), path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    put_back(other, before)
    os.replace(other, path)


def touch(path):
    """Who can tell that nothing was written?"""
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
    """Of files of which nothing is open, and of such as were read before."""
    if rests:
        request.getfixturevalue("at_rest")
    for number, change in enumerate(CHANGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        sample = TABLE[name](folder, "scan")
        arrays = [open_dataset(**sample.options) for _ in SPELLINGS]
        if rests:
            np.testing.assert_array_equal(arrays[0].compute(), sample.expected)
        change(sample.members[-1])
        for (spelling, use), arr in zip(SPELLINGS.items(), arrays, strict=True):
            with pytest.raises(DatasetError) as caught:
                use(arr, folder)
            told = caught.value.__cause__ if spelling == "to_zarr" else caught.value
            told = told or caught.value
            assert isinstance(told, StaleFileError), (change.__name__, spelling)
            assert told.path == str(sample.members[-1])


# What changes while it is read


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Run the program that changes files, and give its counts."""
    runs = 400 if LONG else 8
    command = [sys.executable, PROGRAM, tmp_path_factory.mktemp("files"), str(runs), "7"]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr
    sys.stdout.write(done.stdout + done.stderr)  # which ``make fuzz-files`` shows
    return dict(pair for line in done.stdout.splitlines() for pair in json.loads(line).items())


@pytest.mark.slow
def test_data_are_right_or_there_is_an_error(changed):
    """Whatever happens to a file, at whatever moment: on threads, and on processes of a cluster."""
    for kind, found in changed.items():
        assert found["runs"] > 0
        assert found["wrong"] == found["other errors"] == found["not noticed"] == 0, kind
        assert found["typed errors"] + found["signals"] > 0


@pytest.mark.slow
def test_no_signal_ends_a_process(changed):
    """But for files that nobody had touched for a minute, and that are cut while they are read."""
    signals = {kind: found["signals"] for kind, found in changed.items()}
    del signals["files at rest, cut during tasks"]
    assert set(signals.values()) == {0}
