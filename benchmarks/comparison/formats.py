"""The formats that are compared. One more is one more entry of ``FORMATS``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing import write_mib, write_raw

Array = npt.NDArray[Any]
Shape = tuple[int, int]
Write = Callable[[Path, Iterable[Array], Shape], Path]


@dataclass(frozen=True)
class FileFormat:
    """A kind of file: how it is written, and how each reader is told to open it.

    Attributes
    ----------
    name : str
        Name in tables.
    sig : tuple of int
        Shape of a frame.
    dtype : str
        Type of the frames that are written.
    level, limit : float
        Counts in the bright part of a frame, and a bound that none reaches.
    write : callable
        Writes frames to a folder, given their scan shape; returns the file.
    header : int
        Bytes in front of each frame.
    stored : str
        Type of what a frame is stored as, and
    stored_shape : tuple of int
        its shape, for numpy.
    decode : callable, optional
        Makes frames of what numpy finds.
    options : mapping
        Of ``dask_tiled.open_dataset``.
    libertem : str
        LiberTEM's name of the format, and
    libertem_options : mapping
        what it wants to know beside path and scan shape.
    rosettasciio : str
        RosettaSciIO's name of the format; empty where it has none.
    """

    name: str
    sig: Shape
    dtype: str
    level: float
    limit: float
    write: Write
    stored: str
    stored_shape: tuple[int, ...]
    header: int = 0
    decode: Callable[[Array], Array] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    libertem: str = "mib"
    libertem_options: Mapping[str, Any] = field(default_factory=dict)
    rosettasciio: str = "quantumdetector"

    @property
    def record(self) -> np.dtype[Any]:
        """A frame with its header, as numpy sees it."""
        return np.dtype([("header", f"V{self.header}"), ("pixels", self.stored, self.stored_shape)])


def raw(name: str, dtype: str, level: float, limit: float, sig: Shape = (256, 256)) -> FileFormat:
    """Frames of one type, one after the other."""

    def write(folder: Path, frames: Iterable[Array], _nav: Shape) -> Path:
        return write_raw(folder / "scan.raw", frames)

    return FileFormat(
        name,
        sig,
        dtype,
        level,
        limit,
        write,
        stored=dtype,
        stored_shape=sig,
        options={"format": "raw", "dtype": dtype, "sig_shape": sig},
        libertem="raw",
        libertem_options={"dtype": dtype, "sig_shape": sig},
        rosettasciio="ripple",
    )


def merlin(
    name: str,
    dtype: str,
    level: float,
    bits: int,
    *,
    kind: str,
    depth: int | None = None,
    quad: bool = False,
    stored: str,
    stored_shape: tuple[int, ...],
    decode: Callable[[Array], Array] | None = None,
) -> FileFormat:
    """Make the format of Merlin frames, 256 x 256 for each chip."""

    def write(folder: Path, frames: Iterable[Array], nav: Shape) -> Path:
        path = folder / "scan.mib"
        return write_mib(path, frames, kind=kind, depth=depth, quad=quad, nav_shape=nav)

    return FileFormat(
        name,
        (512, 512) if quad else (256, 256),
        dtype,
        level,
        2**bits,
        write,
        stored=stored,
        stored_shape=stored_shape,
        header=768 if quad else 384,
        decode=decode,
    )


def lanes(dtype: str) -> Callable[[Array], Array]:
    """Pixels in 64-bit words, the first of a word in its lowest bits."""
    return lambda words: words.astype("<u8").view(dtype)


def unpack_bits(words: Array) -> Array:
    """Give 64 pixels of a word."""
    return np.unpackbits(words.astype("<u8").view("u1"), axis=-1, bitorder="little")


def join_24(words: Array) -> Array:
    """Join two 12-bit images, the upper bits first."""
    upper, lower = np.moveaxis(lanes("<u2")(words).astype("u4"), 1, 0)
    return upper << 12 | lower


def assemble_quad(words: Array) -> Array:
    """Put four chips, side by side in readout order, in their places; two stand on their heads."""
    chips = lanes("<u2")(words).reshape(len(words), 256, 4, 256)
    chip4, chip3, chip2, chip1 = np.moveaxis(chips, 2, 0)
    upper = np.concatenate([chip1, chip2], axis=2)
    lower = np.concatenate([chip3[:, ::-1, ::-1], chip4[:, ::-1, ::-1]], axis=2)
    return np.concatenate([upper, lower], axis=1)


R12, WORDS = lanes("<u2"), ">u8"

FORMATS = {
    "raw-u16": raw("raw u16", "<u2", 200, 2**16),
    "raw-f4-be": raw("raw f4, big-endian", ">f4", 200, 2**24),
    "merlin-u8": merlin(
        "Merlin U08", "u1", 30, 8, kind="U08", stored="u1", stored_shape=(256, 256)
    ),
    "merlin-u16": merlin(
        "Merlin U16", "u2", 200, 12, kind="U16", stored=">u2", stored_shape=(256, 256)
    ),
    "merlin-u32": merlin(
        "Merlin U32", "u4", 1e6, 24, kind="U32", stored=">u4", stored_shape=(256, 256)
    ),
    "merlin-r1": merlin(
        "Merlin raw 1 bit",
        "u1",
        0.5,
        1,
        kind="R64",
        depth=1,
        stored=WORDS,
        stored_shape=(256, 4),
        decode=unpack_bits,
    ),
    "merlin-r6": merlin(
        "Merlin raw 6 bit",
        "u1",
        30,
        6,
        kind="R64",
        depth=6,
        stored=WORDS,
        stored_shape=(256, 32),
        decode=lanes("u1"),
    ),
    "merlin-r12": merlin(
        "Merlin raw 12 bit",
        "u2",
        200,
        12,
        kind="R64",
        depth=12,
        stored=WORDS,
        stored_shape=(256, 64),
        decode=R12,
    ),
    "merlin-r24": merlin(
        "Merlin raw 24 bit",
        "u4",
        1e6,
        24,
        kind="R64",
        depth=24,
        stored=WORDS,
        stored_shape=(2, 256, 64),
        decode=join_24,
    ),
    "merlin-quad-r12": merlin(
        "Merlin quad raw 12 bit",
        "u2",
        200,
        12,
        kind="R64",
        depth=12,
        quad=True,
        stored=WORDS,
        stored_shape=(256, 256),
        decode=assemble_quad,
    ),
}
