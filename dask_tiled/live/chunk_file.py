"""An HDF5 file whose chunks are the compressed frames of a detector, as they came.

It is laid out as DECTRIS' own files are. Readers follow it while it is written (SWMR), and it is
whole up to the last flush if the process is killed.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dask_tiled.errors import StreamError, format_bytes, printable
from dask_tiled.files.paths import open_file
from dask_tiled.formats.hdf5.pieces import LOST_CHUNKS
from dask_tiled.live.outputs import KEPT, Bound, disk_error
from dask_tiled.live.series import PackedArray, SeriesStart, WrongMessageError
from dask_tiled.system.files import allocate
from dask_tiled.system.names import offered

GROWTH = 256
"""Frames by which the dataset grows at once; it is cut at each flush."""
AHEAD, SLACK = 32 << 20, 8 << 20
"""Bytes that are reserved at once, and kept for what the library writes late, such as its index:
it would leave a file that cannot be read if the disk became full."""
INDEX_BYTES = 64
"""Most bytes of the index for a chunk."""
END_OF_FILE = slice(28, 36)
"""The address of the end of the file in the superblock, version 3."""
UNITS = {
    "pixel_size_x": ("x_pixel_size", "m"), "pixel_size_y": ("y_pixel_size", "m"),
    "count_time": ("count_time", "s"), "frame_time": ("frame_time", "s"),
    "sensor_thickness": ("sensor_thickness", "m"), "sensor_material": ("sensor_material", ""),
    "detector_description": ("description", ""), "saturation_value": ("saturation_value", ""),
    "beam_center_x": ("beam_center_x", "pixel"), "beam_center_y": ("beam_center_y", "pixel"),
    "detector_serial_number": ("detector_number", ""),
}  # fmt: skip
"""Names and units of NeXus for the facts of a series."""
_flock, _SHARED = offered("fcntl", "flock"), offered("fcntl", "LOCK_SH")
OF_BEAM = {"incident_energy": "eV", "incident_wavelength": "angstrom"}


class ChunkFile:
    """Appends the frames of a series to an HDF5 file.

    Parameters
    ----------
    path : str
    bound : Bound
    start : SeriesStart
    channels : tuple of str
    frame : PackedArray
        The first frame, whose shape, dtype and compression all others have.
    in_memory : bool
        Whether the file is in memory.

    Attributes
    ----------
    frames, nbytes : int
        Frames of all channels that readers see, and their bytes.
    """

    def __init__(
        self,
        path: str,
        bound: Bound,
        start: SeriesStart,
        channels: tuple[str, ...],
        frame: PackedArray,
        *,
        in_memory: bool = False,
    ) -> None:
        import h5py
        import hdf5plugin

        _check_masks(start.masks, channels, frame.shape)
        self.path, self._bound, self.like, self._in_memory = path, bound, frame, in_memory
        self.channels, self.frames, self.nbytes = channels, 0, 0
        self._written = self._bytes = self._end = self._room = 0
        lead = (1, len(channels)) if len(channels) > 1 else (1,)
        self._lead = lead[1:]
        self._filters = {
            "bslz4": dict(hdf5plugin.Bitshuffle(nelems=0, cname="lz4")),
            "lz4": dict(hdf5plugin.LZ4()),
            "": {},
        }
        # Readers lock the file, too: the library must not lock it for itself alone.
        self._file = h5py.File(path, "w", libver="latest", locking=False)
        self._lock = shared_lock(path)
        try:
            detector = self._file.create_group("entry/instrument/detector")
            self._write_facts(start)
            self._write_masks(detector, start.masks)
            self._dataset = self._file.create_dataset(
                "entry/data/data_000001",
                shape=(0, *lead[1:], *frame.shape),
                maxshape=(None, *lead[1:], *frame.shape),
                chunks=(1, *(1 for _ in lead[1:]), *frame.shape),
                dtype=frame.dtype,
                **self._filters[frame.compression],
            )
            self._dataset.attrs[LOST_CHUNKS] = True
            self._write_chunk = self._dataset.id.write_direct_chunk
            self._file.swmr_mode = True
            self._size, self._reserved = os.path.getsize(path), 0
            self._reserve(0)
        except BaseException:
            self._file.close()
            os.close(self._lock)
            raise

    def append(self, first: int, images: Sequence[Sequence[bytes | memoryview]]) -> None:
        """Write the compressed frames of all channels at some positions that follow one another.

        Raises
        ------
        StreamError
            The recording is full.
        """
        sizes, write = [sum(map(len, image)) for image in images], self._write_chunk
        self._reserve(sum(sizes) + INDEX_BYTES * len(images) * len(self.channels))
        if first + len(images) > self._room:
            self._room = first + len(images) + GROWTH
            self._dataset.resize(self._room, 0)
        bound = self._bound.nbytes or math.inf
        for number, (image, nbytes) in enumerate(zip(images, sizes, strict=True), first):
            if self._bytes + nbytes > bound:
                what, expected = "the recording is full", f"{format_bytes(int(bound))} at most"
                raise StreamError(what, path=self.path, expected=expected, hint=KEPT)
            if self._lead:
                for channel, pixels in enumerate(image):
                    write((number, channel, 0, 0), pixels)
            else:
                write((number, 0, 0), image[0])
            self._bytes += nbytes
            self._written += 1
            self._end = max(self._end, number + 1)

    def flush(self) -> None:
        """Show readers what was written."""
        if self._written == self.frames:
            return
        if self._room != self._end:
            self._room = self._end
            self._dataset.resize(self._end, 0)
        self._dataset.flush()
        self.frames, self.nbytes = self._written, self._bytes

    def close(self) -> None:
        """Close the file, without what was reserved."""
        self.flush()
        self._file.close()
        os.close(self._lock)
        with open_file(self.path, "r+b") as file:
            file.truncate(int.from_bytes(file.read(END_OF_FILE.stop)[END_OF_FILE], "little"))

    def _reserve(self, nbytes: int) -> None:
        """Reserve room before the library needs it.

        Raises
        ------
        StreamError
            The disk is full.
        """
        self._size += nbytes
        if self._size + SLACK > self._reserved:
            self._reserved = self._size + SLACK + AHEAD
            reserve(self.path, self._reserved, in_memory=self._in_memory)

    def _write_facts(self, start: SeriesStart) -> None:
        """Write the facts of a series where NeXus has them; all others as they are named."""
        entry = self._file["entry"]
        entry.attrs["NX_class"] = "NXentry"
        detector = entry["instrument/detector"]
        specific = detector.create_group("detectorSpecific")
        for name, value in start.facts.items():
            if name in UNITS:
                target, units = UNITS[name]
                _put(detector, target, value, units)
            elif name in OF_BEAM:
                _put(entry.require_group("instrument/beam"), name, value, OF_BEAM[name])
            elif name not in {"nimages", "ntrigger"} and "/" not in name and name.strip("."):
                _put(specific, name, value, "eV" if name.endswith("_energy") else "")
        specific["nimages"], specific["ntrigger"] = start.frames, 1
        thresholds = {
            value for name, value in start.facts.items() if name.endswith("_threshold_energy")
        }
        if len(thresholds) == 1:
            _put(detector, "threshold_energy", thresholds.pop(), "eV")

    def _write_masks(self, detector: Any, masks: Mapping[str, PackedArray]) -> None:
        """Write the pixel masks, as they came, and the names of several channels."""
        for name in self.channels if len(self.channels) > 1 else ():
            if "/" not in name:
                detector.require_group(f"{printable(name)}_channel")
        for name, mask in masks.items():
            if "/" in name:
                continue
            of_one = len(self.channels) == 1
            folder = detector if of_one else detector.require_group(f"{printable(name)}_channel")
            filters = self._filters[mask.compression]
            made = folder.create_dataset(
                "pixel_mask", mask.shape, mask.dtype, chunks=mask.shape, **filters
            )
            made.id.write_direct_chunk((0, 0), mask.data)


def reserve(path: str, nbytes: int, *, in_memory: bool, hint: str = KEPT) -> None:
    """Let a file become as long as given: allocate its blocks on a disk.

    In memory that takes as long as to write it, and the free room is looked at.

    Raises
    ------
    StreamError
        The disk is full.
    """
    if in_memory:
        if shutil.disk_usage(os.path.dirname(path)).free < nbytes - os.path.getsize(path):
            raise disk_error(OSError(errno.ENOSPC, ""), path, hint)
        return
    try:
        with open_file(path, "r+b") as file:
            allocate(file.fileno(), nbytes)
    except OSError as error:
        raise disk_error(error, path, hint) from error


def shared_lock(path: str) -> int:
    """Open a file, and lock it together with readers: another recording must not replace it."""
    fd = os.open(path, os.O_RDONLY)
    if _flock is not None:
        with suppress(OSError):  # a file system without locks
            _flock(fd, _SHARED)
    return fd


def _check_masks(
    masks: Mapping[str, PackedArray], channels: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    """Raise a WrongMessageError if a mask has not the shape of a frame, or a channel has two."""
    for mask in masks.values():
        if mask.shape != shape:
            raise WrongMessageError("shape of the pixel mask", shape, mask.shape)
    names = [printable(name) for name in masks]
    if len(names) > (1 if len(channels) == 1 else len({*names})):
        raise WrongMessageError("pixel_mask", "one of each channel", ", ".join(names)[:80])


def _put(group: Any, name: str, value: Any, units: str) -> None:
    """Write a fact with its units."""
    name = printable(name)
    if name not in group:
        fits = not isinstance(value, int) or -(1 << 63) <= value < 1 << 64
        told = value if fits else str(value)
        group[name] = printable(told) if isinstance(told, str) else told
        if units and not isinstance(value, str):
            group[name].attrs["units"] = units
