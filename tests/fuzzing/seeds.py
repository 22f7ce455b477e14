"""Whole files to be damaged: small ones of every format and variant, and real ones."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from conftest import DATA
from formats_table import TABLE

from dask_tiled import DatasetError, describe
from dask_tiled.formats.describing import detect
from fuzzing.packings import Place, places_of

MOST_BYTES = 160 << 10
"""Real files are no larger."""


@dataclass
class Seed:
    """Files that belong together, and what opens them.

    ``files`` has their bytes by their names below a folder, ``options`` what opens them: ``path``
    is a name, or a list of names. ``places`` are the frames that were found in the files. In
    ``pixel_share`` of the mutations one of their pixels is changed.
    """

    name: str
    files: dict[str, bytes]
    options: dict
    expected: np.ndarray | None = None
    sig_dims: int = 2
    places: list[Place] = field(default_factory=list)
    pixel_share: float = 0.06

    @property
    def format(self):
        return self.name.split()[0]

    def opening(self, folder):
        """Return the arguments that open the files in a folder."""
        path = self.options["path"]
        path = [str(folder / one) for one in path] if isinstance(path, list) else str(folder / path)
        return {**self.options, "path": path}


def seeds_of(format):
    """Make all seeds of a format, the same in every run."""
    if format == "planted":
        from fuzzing.planted import SEEDS

        return SEEDS
    return [written(name) for name in TABLE if name.split()[0] == format] + real(format)


def written(name):
    """Write a sample of the table."""
    folder = Path(tempfile.mkdtemp())
    with mock.patch("time.time", return_value=1e9):  # stands in some headers
        sample = TABLE[name](folder, "scan")
    path = sample.options["path"]
    names = [str(Path(one).relative_to(folder)) for one in np.atleast_1d(path)]
    path = names if isinstance(path, list) else names[0]
    files = contents(folder, sorted(one for one in folder.rglob("*") if one.is_file()))
    shutil.rmtree(folder)
    seed = Seed(name, files, {**sample.options, "path": path}, sample.expected, sample.sig_dims)
    seed.places = list(places_of(files, sample.frames))
    if any(place.packing != "plain" or place.stream is not None for place in seed.places):
        seed.pixel_share *= 3  # there is more to be wrong
    return seed


def contents(folder, paths):
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def real(format):
    """Take small files from the folder of real ones, with all that they are read with."""
    found = []
    for path in sorted(DATA.rglob("*.npy" if format == "npy" else "*")):
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue
        try:
            if detect(str(path)).name != format:
                continue
            desc = describe(path)
        except DatasetError:
            continue
        stem = path.name.split(".")[0]
        beside = {one for one in path.parent.glob(f"{stem}*") if one.is_file()}
        members = sorted({path, *beside, *(Path(file.path) for file in desc.files)})
        if all(path.parent in one.parents for one in members):
            files = contents(path.parent, members)
            if sum(map(len, files.values())) <= 2 * MOST_BYTES:
                found.append(Seed(f"{format} {path.name}", files, {"path": path.name}))
    return found
