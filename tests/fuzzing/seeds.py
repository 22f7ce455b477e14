"""Whole files to damage: small ones of every format and variant, and real ones."""

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
"""Size limit of real files."""


@dataclass
class Seed:
    """Files that belong together, and the arguments that open them.

    ``files`` maps names below a folder to contents; ``path`` in ``options`` is a name, or a list of
    names. ``places`` are the frames found in the files. A share of ``pixel_share`` of the mutations
    changes one of their pixels.
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
    """Return all seeds of a format, or those of a variant, as in "hdf5 delmic".

    They are the same in every run.
    """
    if format == "planted":
        from fuzzing.planted import SEEDS

        return SEEDS
    own = [written(name) for name in TABLE if f"{name} ".startswith(f"{format} ")]
    return own + real(format)


def written(name):
    """Return a sample of the table as a seed."""
    folder = Path(tempfile.mkdtemp())
    with mock.patch("time.time", return_value=1e9):  # some headers hold it
        sample = TABLE[name](folder, "scan")
    path = sample.options["path"]
    names = [str(Path(one).relative_to(folder)) for one in np.atleast_1d(path)]
    path = names if isinstance(path, list) else names[0]
    files = contents(folder, sorted(one for one in folder.rglob("*") if one.is_file()))
    shutil.rmtree(folder)
    seed = Seed(name, files, {**sample.options, "path": path}, sample.expected, sample.sig_dims)
    seed.places = list(places_of(files, sample.frames))
    if any(place.packing != "plain" or place.stream is not None for place in seed.places):
        seed.pixel_share *= 3  # more can be wrong
    return seed


def contents(folder, paths):
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def real(format):
    """Return small real files as seeds, with all files that are read with them."""
    seeds = []
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
                seeds.append(Seed(f"{format} {path.name}", files, {"path": path.name}))
    return seeds
