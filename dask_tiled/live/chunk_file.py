"""An HDF5 file whose chunks are the compressed frames of a detector, as they came.

It is laid out as DECTRIS' own files are. The HDF5 library writes all but the frames and their
index. Readers follow the file while it is written, and it is whole up to the last flush if the
process is killed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any

import numpy as np

from dask_tiled.errors import StreamError, format_bytes, printable
from dask_tiled.files.paths import open_file
from dask_tiled.formats.hdf5.chunk_index import LAYOUT, header_messages
from dask_tiled.formats.hdf5.pieces import LOST_CHUNKS
from dask_tiled.live.chunk_tree import ChunkTree
from dask_tiled.live.outputs import KEPT, Bound, disk_error, write_views
from dask_tiled.live.series import PackedArray, SeriesStart, WrongMessageError
from dask_tiled.model.indexing import Index
from dask_tiled.system.files import allocate, pwrite
from dask_tiled.system.names import offered

AHEAD, SLACK = 32 << 20, 8 << 20
"""Bytes that are reserved at once, and kept for the index of what has been written."""
BEYOND = 256 << 20
"""Bytes of a hole behind the reserved ones while the file is written. The HDF5 library of a reader
refuses addresses beyond the end that it saw when it opened the file: thanks to the hole, it finds
the index later, until as many more bytes have come."""
INDEX_BYTES = 64
"""Most bytes of the index for a chunk."""
END_AT = 40
"""Where the superblock, version 0, has the address of the end of the file."""
DATASPACE, SIZES_AT, ROOT_AT = 1, 8, 3
"""A type of header messages; where it has the sizes, and a layout message the root of the index."""
UNITS = {
    "pixel_size_x": ("x_pixel_size", "m"), "pixel_size_y": ("y_pixel_size", "m"),
    "count_time": ("count_time", "s"), "frame_time": ("frame_time", "s"),
    "sensor_thickness": ("sensor_thickness", "m"), "sensor_material": ("sensor_material", ""),
    "detector_description": ("description", ""), "saturation_value": ("saturation_value", ""),
    "beam_center_x": ("beam_center_x", "pixel"), "beam_center_y": ("beam_center_y", "pixel"),
    "detector_serial_number": ("detector_number", ""),
}  # fmt: skip
"""Names and units of NeXus for the facts of a series."""
TO_CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | (offered("os", "O_BINARY") or 0)
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
        self._bytes = self._most = self._reserved = 0
        self._unseen = list[tuple[Index, Index, Index]]()  # numbers, addresses and sizes of chunks
        lead = (len(channels),) if len(channels) > 1 else ()
        self._filters = {
            "bslz4": dict(hdf5plugin.Bitshuffle(nelems=0, cname="lz4")),
            "lz4": dict(hdf5plugin.LZ4()),
            "": {},
        }
        # The oldest layout has no checksums, and a kind of index that grows along any axis.
        with h5py.File(path, "w", driver="core", backing_store=False, libver="earliest") as file:
            detector = file.create_group("entry/instrument/detector")
            self._write_facts(file, start)
            self._write_masks(detector, start.masks)
            dataset = file.create_dataset(
                "entry/data/data_000001",
                shape=(0, *lead, *frame.shape),
                maxshape=(None, *lead, *frame.shape),
                chunks=(1, *(1 for _ in lead), *frame.shape),
                dtype=frame.dtype,
                **self._filters[frame.compression],
            )
            dataset.attrs[LOST_CHUNKS] = True
            file.flush()
            image: bytes = file.id.get_file_image()
            messages = header_messages(dataset, lambda nbytes, at: image[at : at + nbytes])
            at = {kind: at for kind, at, _ in messages}
        self._frames_at, self._end = at[DATASPACE] + SIZES_AT, len(image)
        self._fd, self._lock = os.open(path, TO_CREATE, 0o666), shared_lock(path)
        grid = *lead, 1, 1
        self._tree = ChunkTree(self._fd, at[LAYOUT] + ROOT_AT, grid, self._allocate)
        try:
            self._reserve(0)
        except BaseException:
            self._end = 0
            self.close()
            raise
        # The signature comes last: readers cannot open the file before it is complete.
        pwrite(self._fd, image[END_AT + 8 :], END_AT + 8)
        pwrite(self._fd, image[:END_AT], 0)

    def append(self, first: int, images: Sequence[Sequence[bytes | memoryview]]) -> None:
        """Write the compressed frames of all channels at some positions that follow one another.

        Raises
        ------
        StreamError
            The recording is full.
        """
        step, bound = len(self.channels), self._bound.nbytes
        views = [pixels for image in images for pixels in image]
        sizes = [*map(len, views)]
        is_full = 0 < bound < self._bytes + sum(sizes)
        if is_full:
            ends = accumulate(sizes, initial=self._bytes)
            fits = step * (sum(end <= bound for end in islice(ends, 0, None, step)) - 1)
            views, sizes = views[:fits], sizes[:fits]
        self._reserve(sum(sizes) + INDEX_BYTES * len(sizes))
        self._write(first, views, sizes)
        if is_full:
            what, expected = "the recording is full", f"{format_bytes(bound)} at most"
            raise StreamError(what, path=self.path, expected=expected, hint=KEPT)

    def flush(self) -> None:
        """Show readers what was written."""
        if not self._unseen:
            return
        numbers, addresses, sizes = map(np.concatenate, zip(*self._unseen, strict=True))
        order = np.argsort(numbers, kind="stable")
        self._most = max(self._most, int(numbers[order[-1]]) // len(self.channels) + 1)
        try:
            self._tree.insert(numbers[order], addresses[order], sizes[order])
            put(self._fd, self._most, self._frames_at)
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.frames += len(numbers) // len(self.channels)
        self.nbytes, self._unseen = self._bytes, []

    def close(self) -> None:
        """Close the file, without what was reserved."""
        try:
            self.flush()
            put(self._fd, self._end, END_AT)
            os.ftruncate(self._fd, self._end)
        finally:
            os.close(self._fd)
            os.close(self._lock)

    def _write(self, first: int, views: Sequence[bytes | memoryview], sizes: Sequence[int]) -> None:
        """Write frames at the end of the file; of those that do not fit on the disk, whole ones."""
        written, step, lengths = self._end, len(self.channels), np.array(sizes, np.int64)
        ends = written + np.cumsum(lengths)
        os.lseek(self._fd, written, os.SEEK_SET)
        try:
            for count in write_views(self._fd, views):
                written += count
        except OSError as error:
            raise disk_error(error, self.path) from error
        finally:
            whole = int(np.searchsorted(ends, written, "right")) // step * step
            if whole:
                numbers = np.arange(first * step, first * step + whole)
                self._unseen.append((numbers, (ends - lengths)[:whole], lengths[:whole]))
                self._bytes += int(ends[whole - 1]) - self._end
                self._end = int(ends[whole - 1])

    def _reserve(self, nbytes: int) -> None:
        """Reserve room before it is needed.

        Raises
        ------
        StreamError
            The disk is full.
        """
        if self._end + nbytes + SLACK > self._reserved:
            until = self._end + nbytes + SLACK + AHEAD
            reserve(self.path, until, in_memory=self._in_memory, used=self._end)
            with suppress(OSError):  # a limit of the system
                os.ftruncate(self._fd, until + BEYOND)
            put(self._fd, os.path.getsize(self.path), END_AT)
            self._reserved, self._tree.fixed = until, self._end

    def _allocate(self, nbytes: int) -> int:
        """Return the address of bytes at the end."""
        if self._end + nbytes > self._reserved:  # the frames are far apart
            self._reserve(nbytes)
        self._end += nbytes
        return self._end - nbytes

    def _write_facts(self, file: Any, start: SeriesStart) -> None:
        """Write the facts of a series where NeXus has them; all others as they are named."""
        entry = file["entry"]
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


def reserve(path: str, nbytes: int, *, in_memory: bool, used: int = 0, hint: str = KEPT) -> None:
    """Let a file become as long as given: allocate the blocks behind those used, on a disk.

    In memory, allocating takes as long as writing: check the free room instead.

    Raises
    ------
    StreamError
        The disk is full.
    """
    try:
        if not in_memory:
            with open_file(path, "r+b") as file:
                allocate(file.fileno(), nbytes - used, used)
        elif shutil.disk_usage(os.path.dirname(path)).free < nbytes - used:
            raise disk_error(OSError(errno.ENOSPC, ""), path, hint)
        if os.path.getsize(path) < nbytes:
            os.truncate(path, nbytes)
    except OSError as error:
        raise disk_error(error, path, hint) from error


def put(fd: int, value: int, at: int) -> None:
    """Write a number of 8 bytes."""
    pwrite(fd, value.to_bytes(8, "little"), at)


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
