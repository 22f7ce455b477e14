"""The compared formats. A new format needs one new entry of ``FORMATS``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import hdf5plugin  # noqa: F401 - registers filters in h5py
import numpy as np

from comparison.file_format import Array, FileFormat, Frames, Shape, stored
from dask_tiled.testing import (
    write_blo,
    write_empad,
    write_frms6,
    write_k2is,
    write_mib,
    write_mrc,
    write_raw,
    write_seq,
)


def raw(name: str, dtype: str, level: float, limit: float, sig: Shape = (256, 256)) -> FileFormat:
    """Return the format of raw files: frames of one dtype, one after another."""
    pixel = np.dtype(dtype)
    return FileFormat(
        name=name,
        sig=sig,
        dtype=dtype,
        level=level,
        limit=limit,
        write=lambda folder, frames, _nav: write_raw(folder / "scan.raw", frames),
        files="scan.raw",
        record=stored(dtype, sig),
        options={"format": "raw", "dtype": dtype, "sig_shape": sig},
        libertem="raw",
        libertem_options={"dtype": dtype, "sig_shape": sig},
        rosettasciio="ripple",
        rosettasciio_options=lambda nav: {
            "rpl_info": {
                "width": sig[1],
                "height": sig[0],
                "depth": nav[0] * nav[1],
                "offset": 0,
                "data-length": pixel.itemsize,
                "data-type": {"u": "unsigned", "i": "signed", "f": "float"}[pixel.kind],
                "byte-order": "big-endian" if pixel.str[0] == ">" else "little-endian",
                "record-by": "image",
            }
        },
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
    words: tuple[str, tuple[int, ...]],
    decode: Callable[[Array], Array] | None = None,
) -> FileFormat:
    """Return the format of Merlin files, with 256 x 256 pixels per chip."""
    return FileFormat(
        name=name,
        sig=(512, 512) if quad else (256, 256),
        dtype=dtype,
        level=level,
        limit=2**bits,
        write=lambda folder, frames, nav: write_mib(
            folder / "scan.mib", frames, kind=kind, depth=depth, quad=quad, nav_shape=nav
        ),
        files="scan.mib",
        record=stored(*words, header=768 if quad else 384),
        decode=decode,
        libertem="mib",
        rosettasciio="quantumdetector",
        upside_down=True,
    )


def frms6(name: str, binning: int) -> FileFormat:
    """Return the format of pnCCD files: frames of 264 x 264 pixels in several files."""
    height, width = 264 // binning, 264

    def write(folder: Path, frames: Frames, nav: Shape) -> None:
        write_frms6(
            folder / "scan",
            (frame[::binning] for frame in frames),
            dark=np.full((2, height, width), 7, "u2"),  # frames are read without dark correction
            scan_shape=nav,
            binning=binning,
            frames_per_file=500,
        )

    return FileFormat(
        name=name,
        sig=(264, 264),
        dtype="u2",
        level=200,
        limit=2**14,
        write=write,
        files="scan_*[1-9]*.frms6",
        record=np.dtype(f"V{64 + 2 * height * width}"),
        binning=binning,
        libertem="frms6",
        libertem_options={"enable_offset_correction": False},
    )


def write_k2(folder: Path, frames: Frames, nav: Shape) -> None:
    """Write the scan with one more frame before and after it; LiberTEM needs the frame before."""
    blank = np.zeros((1860, 2048), "u2")
    around = chain([blank], frames, [blank])
    # The shutter flag is set one frame late.
    write_k2is(folder / "scan_", around, scan_shape=nav, shutter_from=2)


def lanes(dtype: str) -> Callable[[Array], Array]:
    """Return a decoder of pixels in 64-bit words, first pixel in the lowest bits."""
    return lambda words: words.astype("<u8").view(dtype)


def unpack_bits(words: Array) -> Array:
    """Unpack the 64 pixels of each word."""
    return np.unpackbits(words.astype("<u8").view("u1"), axis=-1, bitorder="little")


def join_24(words: Array) -> Array:
    """Join two 12-bit images, the upper bits first."""
    upper, lower = np.moveaxis(lanes("<u2")(words).astype("u4"), 1, 0)
    return upper << 12 | lower


def assemble_quad(words: Array) -> Array:
    """Assemble frames from four chips in readout order, two of them rotated by 180 degrees."""
    chips = lanes("<u2")(words).reshape(len(words), 256, 4, 256)
    chip4, chip3, chip2, chip1 = np.moveaxis(chips, 2, 0)
    upper = np.concatenate([chip1, chip2], axis=2)
    lower = np.concatenate([chip3[:, ::-1, ::-1], chip4[:, ::-1, ::-1]], axis=2)
    return np.concatenate([upper, lower], axis=1)


def hdf5(name: str, level: float, **filters: Any) -> FileFormat:
    """Return the format of NeXus files with one chunk per frame, as detectors write them."""

    def write(folder: Path, frames: Frames, nav: Shape) -> None:
        import h5py

        with h5py.File(folder / "scan.h5", "w") as file:
            shape = (*nav, 256, 256)
            made = file.create_dataset(
                "entry/data/data", shape, "u2", chunks=(1, 1, 256, 256), **filters
            )
            file["entry"].attrs["NX_class"] = "NXentry"
            file["entry/data"].attrs.update({"NX_class": "NXdata", "signal": "data"})
            for place, frame in zip(np.ndindex(nav), frames, strict=True):
                made[place] = frame

    return FileFormat(
        name=name,
        sig=(256, 256),
        dtype="u2",
        level=level,
        limit=2**16,
        write=write,
        files="scan.h5",
        record=np.dtype(f"V{256 * 256 * 2}"),  # decoded pixels
        libertem="hdf5",
        libertem_options={"ds_path": "entry/data/data"},
        rosettasciio="nexus",
        rosettasciio_options=lambda _nav: {"nxdata_only": True},
    )


BITSHUFFLE = {"compression": 32008, "compression_opts": (0, 2)}
"""Bitshuffle with LZ4, as on Dectris detectors: filter number and parameters."""
WORDS = ">u8"

FORMATS = {
    "raw-u16": raw("raw u16", "<u2", 200, 2**16),
    "raw-f4": raw("raw f4", "<f4", 200, 2**24),
    "raw-f8": raw("raw f8", "<f8", 200, 2**24),
    "raw-u8": raw("raw u8", "u1", 30, 2**8),
    "raw-i16": raw("raw i16", "<i2", 200, 2**15),
    "raw-u32": raw("raw u32", "<u4", 200, 2**24),
    "raw-i32": raw("raw i32", "<i4", 200, 2**24),
    "raw-i64": raw("raw i64", "<i8", 200, 2**24),
    "raw-f4-be": raw("raw f4, big-endian", ">f4", 200, 2**24),
    "merlin-u8": merlin("Merlin U08", "u1", 30, 8, kind="U08", words=("u1", (256, 256))),
    "merlin-u16": merlin("Merlin U16", "u2", 200, 12, kind="U16", words=(">u2", (256, 256))),
    "merlin-u32": merlin("Merlin U32", "u4", 1e6, 24, kind="U32", words=(">u4", (256, 256))),
    "merlin-r1": merlin(
        "Merlin raw 1 bit",
        "u1",
        0.5,
        1,
        kind="R64",
        depth=1,
        words=(WORDS, (256, 4)),
        decode=unpack_bits,
    ),
    "merlin-r6": merlin(
        "Merlin raw 6 bit",
        "u1",
        30,
        6,
        kind="R64",
        depth=6,
        words=(WORDS, (256, 32)),
        decode=lanes("u1"),
    ),
    "merlin-r12": merlin(
        "Merlin raw 12 bit",
        "u2",
        200,
        12,
        kind="R64",
        depth=12,
        words=(WORDS, (256, 64)),
        decode=lanes("<u2"),
    ),
    "merlin-r24": merlin(
        "Merlin raw 24 bit",
        "u4",
        1e6,
        24,
        kind="R64",
        depth=24,
        words=(WORDS, (2, 256, 64)),
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
        words=(WORDS, (256, 256)),
        decode=assemble_quad,
    ),
    "frms6": frms6("FRMS6", 1),
    "frms6-bin4": frms6("FRMS6, binned 4 times", 4),
    "k2is": FileFormat(
        name="K2IS",
        sig=(1860, 2048),
        dtype="u2",
        level=200,
        limit=2**12,
        write=write_k2,
        files="scan_?.bin",
        record=np.dtype(f"V{8 * 32 * 0x5758}"),
        period=7,
        libertem="k2is",
    ),
    "blo": FileFormat(
        name="BLO",
        sig=(144, 144),
        dtype="u1",
        level=30,
        limit=2**8,
        write=lambda folder, frames, nav: write_blo(folder / "scan.blo", frames, nav_shape=nav),
        files="scan.blo",
        record=stored("u1", (144, 144), header=6),
        libertem="blo",
        rosettasciio="blockfile",
    ),
    "empad": FileFormat(
        name="EMPAD",
        sig=(128, 128),
        dtype="f4",
        level=200,
        limit=2**24,
        write=lambda folder, frames, nav: write_empad(folder / "scan.xml", frames, nav_shape=nav),
        files="scan_*.raw",
        record=stored("<f4", (128, 128), footer=2 * 128 * 4),
        opened="scan.xml",
        libertem="empad",
        rosettasciio="empad",
    ),
    "seq": FileFormat(
        name="SEQ",
        sig=(256, 256),
        dtype="u2",
        level=200,
        limit=2**16,
        write=lambda folder, frames, _nav: write_seq(folder / "scan.seq", frames),
        files="scan.seq",
        record=stored("<u2", (256, 256), footer=8192),  # time stamp and padding
        libertem="seq",
    ),
    "mrc": FileFormat(
        name="MRC",
        sig=(256, 256),
        dtype="u2",
        level=200,
        limit=2**16,
        write=lambda folder, frames, _nav: write_mrc(folder / "scan.mrc", frames),
        files="scan.mrc",
        record=stored("<u2", (256, 256)),
        libertem="mrc",
        rosettasciio="mrc",
    ),
    "hdf5": hdf5("HDF5", 1),
    "hdf5-gzip": hdf5("HDF5, gzip", 1, compression="gzip", shuffle=True),
    "hdf5-bitshuffle": hdf5("HDF5, bitshuffle + LZ4", 1, **BITSHUFFLE),
}
