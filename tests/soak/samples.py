"""Two versions of a sample of each format, with known pixels."""

import shutil
import threading
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import formats_table
import h5py
import numpy as np
import tifffile
from acquisitions import is_header
from formats_table import Sample

from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

SHAPE = (24, 64, 256)
"""Shape of the large samples, which take long enough to read for faults to hit."""


def make_large(folder, stem, *, write, suffix, options=None, **written):
    frames = formats_table.counting_frames(SHAPE, "u2", bits=12)
    path = folder / f"{stem}{suffix}"
    write(path, frames, **written)
    return Sample({"path": path, **(options or {})}, frames, [path], known_by="suffix")


def write_hdf5(path, frames):
    with h5py.File(path, "w") as file:
        file.create_dataset("frames", data=frames, chunks=(1, 64, 64), compression="gzip")


RAW = {"format": "raw", "dtype": "u2", "sig_shape": SHAPE[1:]}
TABLE = {
    **formats_table.TABLE,
    "raw large": partial(make_large, write=write_raw, suffix=".raw", options=RAW),
    "npy large": partial(make_large, write=write_npy, suffix=".npy"),
    "mib large": partial(
        make_large, write=write_mib, suffix=".mib", kind="R64", depth=12, hdr=False
    ),
    "hdf5 large": partial(make_large, write=write_hdf5, suffix=".h5"),
    "tiff large": partial(
        make_large, write=tifffile.imwrite, suffix=".tif", compression="zlib", tile=(64, 64)
    ),
}


# Frames are patched in a module, which all threads share.
WRITING = threading.Lock()


class Versions(NamedTuple):
    """A sample, and another that may replace it."""

    folders: tuple[Path, Path]
    samples: tuple[Sample, Sample]

    @classmethod
    def of(cls, root, name):
        """Write both versions once; the second has all axes reversed."""
        with WRITING:
            return cls._of(root, name)

    @classmethod
    @cache
    def _of(cls, root, name):
        folders = tuple(root / f"{list(TABLE).index(name)}-{k}" for k in range(2))
        samples = []
        for folder, turned in zip(folders, (False, True), strict=True):
            folder.mkdir(parents=True)

            def frames(*args, turned=turned, **options):
                made = counting_frames(*args, **options)
                return np.ascontiguousarray(np.flip(made)) if turned else made

            with patch.object(formats_table, "counting_frames", frames):
                samples.append(TABLE[name](folder, "scan"))
        assert not np.array_equal(*(sample.expected for sample in samples)), name
        return cls(folders, tuple(samples))

    def put(self, folder):
        """Copy the first version to a folder, and return the sample there."""
        shutil.copytree(self.folders[0], folder, dirs_exist_ok=True)
        sample = self.samples[0]
        moved = partial(_moved, old=self.folders[0], new=folder)
        options = {**sample.options, "path": moved(sample.options["path"])}
        return sample._replace(options=options, members=moved(sample.members))

    @property
    def truths(self):
        """Pixels of both versions."""
        return [sample.expected for sample in self.samples]

    @property
    def pixels(self):
        """Names of the files that hold pixels."""
        sample = self.samples[0]
        return [
            self._name(path)
            for path in sample.members
            if path != sample.links and not is_header(path)
        ]

    @property
    def cut(self):
        """Names of the files whose truncation opening detects."""
        sample = self.samples[0]
        return [self._name(path) for path in sample.cut] if sample.cut else self.pixels

    def _name(self, path):
        return path.relative_to(self.folders[0])


def _moved(path, old, new):
    if isinstance(path, list):
        return [_moved(one, old, new) for one in path]
    return new / path.relative_to(old)
