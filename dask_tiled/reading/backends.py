"""Choose the backend of an array, and of each of its files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from itertools import accumulate
from typing import Literal

from dask import config

from dask_tiled.errors import check_whole
from dask_tiled.files.file import HDF5, File
from dask_tiled.files.paths import SHORT, is_url, with_room
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.indexing import Bytes
from dask_tiled.reading.backend import Backend, Local
from dask_tiled.reading.buffered import Buffered, Direct
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.descriptors import lent_fd
from dask_tiled.reading.limits import (
    GAPS,
    KEPT_BYTES,
    LEAST_MAPPED_BYTES,
    MAPPED_BYTES,
    REST_SECONDS,
    SPARSE,
)
from dask_tiled.reading.mapped import Kept, MappedWindows, Resting
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.system.changes import is_network, is_written, leased
from dask_tiled.system.files import HINDERS, pread
from dask_tiled.system.pages import is_cached

Way = Literal["map", "lease", "read"]
"""How a file is read: mapped, mapped under a lease for each window, or read into a buffer."""


class Auto(Local):
    """Maps files that cannot change, or under a lease; reads all others.

    Small files stay mapped between chunks, except where that hinders other programs. Larger files,
    and all files with ``once``, are mapped a window at a time; few bytes, compressed ones, and
    frames that lie far apart are read. Workers of a cluster map nothing, as mapped pages count
    towards their memory limit.
    """

    def __init__(self, *, once: bool = False) -> None:
        super().__init__()
        self._mapped = (Resting if once or HINDERS else Kept)(self._files)
        self._once = once
        self._chosen: dict[File, Way] = {}
        self._few = False

    @cached_property
    def _buffered(self) -> Buffered:
        return Buffered(self._files)

    def expect(self, ranges: Iterable[Ranges]) -> None:
        """Note whether few bytes are needed: reading them takes less time than mapping them."""
        sizes = (x.block.nbytes if isinstance(x, BlockRange) else x.nbytes for x in ranges)
        self._few = all(total <= LEAST_MAPPED_BYTES for total in accumulate(sizes))

    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, at_once: int | None = 0
    ) -> Iterator[Window]:
        """Fetch windows in the way chosen for the file, or read frames that lie far apart."""
        way, spread = self._way(ranges.file), ranges.spread()
        if way != "read" and spread > GAPS:
            kept = self._mapped.keeps(ranges.file) is not None
            if not kept or (spread > SPARSE and not self._is_cached(ranges)):
                way = "read"
        if way == "lease":
            return self._leased(ranges, limit, at_once)
        chosen = self._mapped if way == "map" else self._buffered
        return chosen.windows(ranges, limit, at_once=at_once)

    def _leased(
        self, ranges: ReadRanges, limit: int | None, at_once: int | None
    ) -> Iterator[Window]:
        """Map each window if its lease is granted, else read it.

        Under a lease no other program can truncate the file: opening it for writing blocks until
        the work on the window is done. User functions never run under a lease.
        """
        for part in self._mapped.parts(ranges, limit or MAPPED_BYTES):  # writers wait that long
            # A descriptor of its own: leases of other windows of the file may end earlier.
            with lent_fd(part.file, release=self._files.close) as fd, leased(fd) as refused:
                if not refused:
                    yield from self._mapped.windows(part, limit, at_once=at_once)
            if refused:
                yield from self._buffered.windows(part, limit, at_once=at_once)

    def _is_cached(self, ranges: ReadRanges) -> bool:
        """Return whether frames are in the page cache: in a map, loading one loads those around."""
        fd, count = self._files.fd(ranges.file), len(ranges.offsets)
        places = (ranges.offsets[k] + ranges.units.reach[0] for k in {0, count // 2, count - 1})
        return all(is_cached(fd, int(place)) for place in places)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read a byte range: compressed bytes are few, and need not count as memory any longer."""
        return self._buffered(file, start, stop)

    def view(self, file: File, start: int, stop: int) -> Bytes | None:
        """View bytes of a file that cannot change."""
        return self._of(file).view(file, start, stop)

    def private(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map private pages of a file that cannot change."""
        return self._of(file).private(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read into ``out``; a file that may change is not mapped."""
        return self._of(file).fill(file, start, out)

    def _of(self, file: File) -> Local:
        return self._mapped if self._way(file) == "map" else self._buffered

    def _way(self, file: File) -> Way:
        if self._few and not isinstance(self._mapped, Kept):  # only leases or kept maps serve few
            rest_seconds()  # raises for an invalid configuration, as when it is asked for
            return "read"
        if file not in self._chosen:
            self._chosen[file] = self._choose(file)
        way = self._chosen[file]
        if not self._few or way == "read":
            return way
        stays = file.size <= KEPT_BYTES and (way == "lease" or self._mapped.keeps(file))
        return way if stays else "read"

    def _choose(self, file: File) -> Way:
        fd = self._files.fd(file)
        at_rest = rests(file, fd)
        if on_a_cluster():
            return "read"
        if at_rest:
            return "map"
        # h5py waits for the end of a lease with the GIL, which the thread that has it needs.
        return "read" if self._once or not can_rest(file) or _is_hdf5(fd) else "lease"

    def __exit__(self, *error: object) -> None:
        self._chosen.clear()
        super().__exit__(*error)


def _is_hdf5(fd: int) -> bool:
    # In MATLAB files, the signature follows a header of 512 bytes.
    return any(pread(fd, len(HDF5), at) == HDF5 for at in (0, 512))


def rests(file: File, fd: int) -> bool:
    """Return whether a file is at rest, so that it is safe to map it.

    It has been unchanged for ``dask-tiled.rest-seconds`` of dask's configuration, lies on this
    machine, and neither grows nor is open for writing. The times of a local file are of this
    machine's clock; a time in the future is no evidence of rest.

    Raises
    ------
    DatasetError
        The configuration is not a number of seconds.
    """
    seconds = rest_seconds()
    age = time.time_ns() - max(file.mtime_ns, file.ctime_ns)
    young = age < 0 or age < seconds * 10**9
    return not (young or not can_rest(file) or is_written(fd))


def rest_seconds() -> int:
    """Return how long a file at rest has been unchanged; raise a DatasetError if it is no time."""
    name = "dask-tiled.rest-seconds"
    return check_whole(name, config.get(name, REST_SECONDS), least=0)


def can_rest(file: File) -> bool:
    """Return whether a file is local and does not grow."""
    return not (file.grows or is_remote(file.path))


def is_remote(path: str) -> bool:
    """Return whether a file is behind a URL, or on a network file system.

    Loading mapped pages can fail there.
    """
    if is_url(path):
        return True
    try:
        return with_room(partial(is_network, path), path)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False


BACKENDS: dict[str, type[Backend]] = {"mmap": MappedWindows, "buffered": Buffered, "direct": Direct}


def backend_for(io: str) -> Backend:
    """Create the backend with a name; "once" is "auto" for a single pass over the files."""
    if io in ("auto", "once"):
        return Auto(once=io == "once")
    return BACKENDS[io]()
