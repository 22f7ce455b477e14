"""Every format reads the same from a server as from local files."""

import os
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from formats_table import TABLE
from range_server import serving

from dask_tiled import open_dataset
from dask_tiled.testing import counting_frames, write_mrc, write_seq


def remote(server, sample):
    """Return the options that open a sample over HTTP."""
    path = sample.options["path"]
    urls = [server.url(p) for p in path] if isinstance(path, list) else server.url(path)
    return {**sample.options, "path": urls}


@pytest.mark.parametrize("name", TABLE)
def test_pixels(sample_of, name):
    """Remote files open whether or not the server lists the folder."""
    sample = sample_of(name)
    with serving(Path(os.path.commonpath([path.parent for path in sample.members]))) as server:
        there = open_dataset(**remote(server, sample))
        np.testing.assert_array_equal(there.compute(), sample.expected)
        index = tuple(slice(n // 3, None, 2) for n in there.shape)
        np.testing.assert_array_equal(there[index].compute(), sample.expected[index])
        server.lists = False
        again = open_dataset(**remote(server, sample))
        assert again.description == there.description


def test_filters_of_the_hdf5_library(tmp_path):
    """Chunks that only the HDF5 library decodes are read by a child process through this one."""
    expected = counting_frames((6, 8, 8), "i4")
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file.create_dataset("data", data=expected, chunks=(2, 8, 8), scaleoffset=0)
    with h5py.File(tmp_path / "plugin.h5", "w") as file:
        file.create_dataset("data", data=expected, chunks=(2, 8, 8), **hdf5plugin.Blosc2())
    with serving(tmp_path) as server:
        for name in ("own.h5", "plugin.h5"):
            arr = open_dataset(server.url(tmp_path / name))
            np.testing.assert_array_equal(arr.compute(), expected)


def test_corrections(tmp_path):
    """Dark and gain files next to a remote file are found."""
    frames = counting_frames((6, 8, 8), "u2")
    path = write_seq(tmp_path / "scan.seq", frames)
    for name in ("dark", "gain"):
        write_mrc(tmp_path / f"scan.seq.{name}.mrc", np.full((1, 8, 8), 2, "f4"))
    here = open_dataset(path, corrections="dataset")
    with serving(tmp_path) as server:
        there = open_dataset(server.url(path), corrections="dataset")
        np.testing.assert_array_equal(there.compute(), here.compute())
    assert (here.compute() != frames).any()
