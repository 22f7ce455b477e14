"""The table of formats: what every one of them is tested with.

A format adds a row, and ``test_battery.py`` does the rest.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.testing import (
    counting_frames,
    write_blo,
    write_empad,
    write_mib,
    write_mib_series,
    write_npy,
    write_raw,
    write_seq,
)


class Sample(NamedTuple):
    """A small file, or files that belong together, and what is in them.

    Attributes
    ----------
    options : dict
        What opens them: arguments of ``open_dataset``, with ``path``.
    expected : array
        The pixels, in shape and native dtype.
    members : list of Path
        All files, in the order of their frames; those that hold no pixels at the end.
    sig_dims : int
        How many of the last axes are signal axes.
    known_by : {"content", "suffix", "name"}
        What the format is found out by: what the file at ``path`` holds, whatever it is called; its
        suffix as well; or nothing but ``format=``.
    counted : bool
        Whether the files say how many frames there are, so that a file that lost some is noticed.
    cut : list of Path, optional
        The files that are cut short to see what happens; by default all.
    """

    options: dict[str, Any]
    expected: np.ndarray
    members: list[Path]
    sig_dims: int = 2
    known_by: str = "content"
    counted: bool = True
    cut: list[Path] | None = None

    @property
    def sig_shape(self):
        return self.expected.shape[self.expected.ndim - self.sig_dims :]

    @property
    def frames(self):
        """The frames on one axis."""
        return self.expected.reshape(-1, *self.sig_shape)


def make_raw(folder, stem, *, dtype="<u2", gaps=(0, 0, 0)):
    names = ("file_header", "frame_header", "frame_footer")
    sizes = dict(zip(names, gaps, strict=True))
    frames = counting_frames((12, 5, 7), dtype)
    path = write_raw(folder / f"{stem}.raw", frames, **sizes)
    told = {"format": "raw", "dtype": dtype, "sig_shape": (5, 7), **sizes}
    expected = frames.astype(frames.dtype.newbyteorder("="))
    return Sample({"path": path, **told}, expected, [path], known_by="name", counted=False)


def make_raw_series(folder, stem):
    gaps = {"file_header": 13, "frame_header": 3, "frame_footer": 2}
    frames = counting_frames((12, 5, 7), "u2")
    paths = [
        write_raw(folder / f"{stem}{i}.raw", part, **gaps)
        for i, part in enumerate(np.split(frames, [2, 9]))
    ]
    told = {"path": paths, "format": "raw", "dtype": "u2", "sig_shape": (5, 7), **gaps}
    return Sample(told, frames, paths, known_by="name", counted=False, cut=paths[-1:])


def make_npy(folder, stem, *, order):
    array = counting_frames((3, 4, 5, 7), ">u2")
    path = write_npy(folder / f"{stem}.npy", array, order=order)
    return Sample({"path": path}, array.astype("u2"), [path])


def make_mib(folder, stem, *, dtype, bits, **options):
    frames = counting_frames((12, 4, 128), dtype, bits=bits)
    path = write_mib(folder / f"{stem}.mib", frames, hdr=False, **options)
    return Sample({"path": path}, frames, [path], counted=False)


def make_mib_hdr(folder, stem):
    frames = counting_frames((3, 4, 6, 9), "u2", bits=12)
    path = write_mib(folder / f"{stem}.mib", frames)
    hdr = path.with_suffix(".hdr")
    return Sample({"path": hdr}, frames, [path, hdr])


def make_mib_series(folder, stem):
    frames = counting_frames((12, 4, 128), "u2", bits=12)
    members = write_mib_series(
        folder / f"{stem}-", frames, frames_per_file=5, hdr=False, kind="R64", depth=12
    )
    return Sample({"path": members[0]}, frames, members, counted=False)


def make_blo(folder, stem, *, dtype, order):
    frames = counting_frames((3, 4, 6, 6), dtype)
    path = write_blo(folder / f"{stem}.blo", frames, order=order)
    return Sample({"path": path}, frames, [path])


def make_empad(folder, stem, *, by=".xml", nav=(2, 3), mode="acquire"):
    frames = counting_frames((*nav, 128, 128), "f4")
    name = f"{stem}_frames.raw" if by == ".xml" else f"{stem}_x3_y2.raw"
    path = write_empad(folder / f"{stem}.xml", frames, mode=mode, raw_name=name)
    raw = path.with_name(name)
    if by == ".xml":
        return Sample({"path": path}, frames, [raw, path])
    path.unlink()
    return Sample({"path": raw}, frames, [raw], known_by="suffix")


def make_seq(folder, stem, *, dtype, version):
    frames = counting_frames((12, 5, 7), dtype)
    path = write_seq(folder / f"{stem}.seq", frames, version=version)
    return Sample({"path": path}, frames, [path])


# The first word of a name is the name of the format.
TABLE: dict[str, Callable[[Path, str], Sample]] = {
    "raw": make_raw,
    "raw with gaps": partial(make_raw, dtype=">f4", gaps=(13, 3, 2)),
    "raw series": make_raw_series,
    "npy C": partial(make_npy, order="C"),
    "npy F": partial(make_npy, order="F"),
    "mib u16": partial(make_mib, kind="U16", dtype="u2", bits=16),
    "mib 1 bit": partial(make_mib, kind="R64", depth=1, dtype="u1", bits=1),
    "mib 6 bit": partial(make_mib, kind="R64", depth=6, dtype="u1", bits=6),
    "mib 12 bit": partial(make_mib, kind="R64", depth=12, dtype="u2", bits=12),
    "mib 24 bit": partial(make_mib, kind="R64", depth=24, dtype="u4", bits=24),
    "mib 1 bit quad": partial(make_mib, kind="R64", depth=1, quad=True, dtype="u1", bits=1),
    "mib 12 bit quad": partial(make_mib, kind="R64", depth=12, quad=True, dtype="u2", bits=12),
    "mib hdr": make_mib_hdr,
    "mib series": make_mib_series,
    "blo": partial(make_blo, dtype="u1", order="<"),
    "blo 16 bit big-endian": partial(make_blo, dtype="u2", order=">"),
    "empad scan": make_empad,
    "empad scan while searching": partial(make_empad, mode="search"),
    "empad series": partial(make_empad, nav=(4,)),
    "empad raw file alone": partial(make_empad, by=".raw"),
    "seq 4": partial(make_seq, dtype="u1", version=4),
    "seq 5": partial(make_seq, dtype="u2", version=5),
}
