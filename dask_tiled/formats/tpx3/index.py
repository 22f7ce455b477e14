"""The index of a Timepix3 stream: blocks of whole chunks with the times of their hits, and edges.

One pass over the file makes it. It may be saved in a file beside the stream.
"""

from __future__ import annotations

import io
import zipfile
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np

from dask_tiled.files.file import opened
from dask_tiled.files.paths import is_file
from dask_tiled.files.sidecars import write_beside
from dask_tiled.formats import tools
from dask_tiled.model.decoders import function_at
from dask_tiled.model.indexing import Index

MAGIC = b"TPX3"
WORD = 8
OF_INDEX = ".index.npz"
"""Suffix of the file that saves the index."""
PART_BYTES = 1 << 20
"""Bytes indexed at once: they stay in the cache."""
BROKEN = ValueError, TypeError, KeyError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile
"""Errors of NumPy for a damaged index."""
MOST_KEPT = 8
"""Indexes kept in memory."""
FARTHEST = 1 << 60
"""Limit of times in ticks, which leaves room for differences."""
SPAN = 6_400_000
"""Ticks by which hits are expected to be late at most: 10 ms. Detectors specify none, since chips
send in turns and do not sort their hits. Later hits widen the span of their stream. Frames are
shown later by the span, which should be too short to be noticed."""


class StreamIndex(NamedTuple):
    """The index of a stream.

    Attributes
    ----------
    offset, start, first, last, hits, nbytes : int64 arrays
        For each block with hits its offset, the time before it, the times of its first and its last
        hit, the number of its hits, and its length. Without hits, that is the first block.
    times, kinds : int64 arrays
        Times and kinds of the edges of the TDC.
    chips : int
        Bits of the chips that the stream has.
    without_time : int
        Number of hits without times.
    lacking : int
        Bytes that the last chunk lacks.
    horizon : int
        Time from which on hits may still come; ``FARTHEST`` if the stream is complete.
    """

    offset: Index
    start: Index
    first: Index
    last: Index
    hits: Index
    nbytes: Index
    times: Index
    kinds: Index
    chips: int
    without_time: int
    lacking: int
    horizon: int


def index_of(file: tools.File, *, save: bool = False) -> StreamIndex:
    """Return the index of a stream; with ``save``, from a file beside it, which is made if needed.

    Raise a CorruptFileError if a chunk has no header, and a DatasetError if the index cannot be
    saved.
    """
    path = file.path + OF_INDEX
    index = _saved(path, file) if save and is_file(path) else None
    if index is None:
        index = _made(file)
        if save:
            target = io.BytesIO()
            np.savez(target, version=_version(file), **index._asdict())
            write_beside(path, target.getvalue(), "the index", "Leave out save_index.")
    return index


def _version(file: tools.File) -> str:
    return f"{file.size} {file.mtime_ns} {file.inode} {file.ctime_ns}"


def _saved(path: str, file: tools.File) -> StreamIndex | None:
    """Read a saved index; None if it is damaged, or of another version of the file."""
    try:
        with opened(path) as stream, np.load(stream, allow_pickle=False) as told:
            if str(told["version"]) != _version(file):
                return None
            columns = [np.asarray(told[name], np.int64) for name in StreamIndex._fields]
    except BROKEN:
        return None
    blocks, edges, single = columns[:6], columns[6:8], columns[8:]
    alike = all(one.ndim == 1 for one in (*blocks, *edges)) and all(one.ndim == 0 for one in single)
    alike = alike and len({*map(len, blocks)}) == len({*map(len, edges)}) == 1
    if not alike or any((abs(one) > FARTHEST).any() for one in columns):
        return None
    values: Any = (*blocks, *edges, *map(int, single))
    return StreamIndex(*values)


@lru_cache(MOST_KEPT)
def _made(file: tools.File) -> StreamIndex:
    """Index a stream in one pass."""
    indexer = _indexer()
    _read(file, indexer)
    return _index(file, indexer)


class FollowedStream:
    """The index of a stream that is being written, extended by the bytes that are new.

    Hits are late if they come after one that is much later. The span by which they are expected to
    be late grows with what comes, so that few of them are a surprise.

    Parameters
    ----------
    kind : int, optional
        Kind of the edges that show how far the time is, as hits do.

    Attributes
    ----------
    was_begun : bool
        Whether a frame has been complete; users of the index set it.
    """

    def __init__(self, kind: int | None) -> None:
        self._kind, self._indexer, self._span = kind, _indexer(), SPAN
        self._blocks = self._edges = 0  # of the index before
        self._lock, self.was_begun = Lock(), False

    def extended(self, file: tools.File, *, complete: bool) -> StreamIndex:
        """Return the index with all whole chunks of a file; all words if the file is complete.

        Blocks of the index before are unchanged, unless a heartbeat tells times for the first time.

        Raises
        ------
        CorruptFileError
            A chunk has no header.
        StaleFileError
            The file has been truncated, or replaced.
        """
        with self._lock:
            replace(file, size=self._indexer.at).check()
            self._indexer.end_block()
            _read(file, self._indexer, whole=True)
            horizon = self._widen()
            if not complete:
                return _index(file, self._indexer, horizon)
            rest = deepcopy(self._indexer)
        rest.end_block()
        _read(file, rest)
        return _index(file, rest)

    def _widen(self) -> int:
        """Widen the span by the new hits; return the time from which on hits are expected."""
        rows, (times, kinds) = self._indexer.rows(), self._indexer.edges()
        blocks, edges = slice(self._blocks), slice(self._edges)
        wanted = kinds == (-1 if self._kind is None else self._kind)
        before = _latest(rows[blocks], times[edges][wanted[edges]])
        new, marks = rows[self._blocks :], times[self._edges :][wanted[self._edges :]]
        earliest = min(new[:, 2].min(initial=FARTHEST), marks.min(initial=FARTHEST))
        if earliest < before - self._span:
            self._span = 2 * (before - int(earliest))
        self._blocks, self._edges = len(rows), len(times)
        return _latest(rows, times[wanted]) - self._span


def _latest(rows: Index, times: Index) -> int:
    return max(int(rows[:, 3].max(initial=-FARTHEST)), int(times.max(initial=-FARTHEST)))


def followed(file: tools.File, kind: int | None) -> FollowedStream:
    """Return the index of a stream that is followed; equal for the same first look at the file."""
    return _followed(file.path, file.inode, file.mtime_ns, file.ctime_ns, kind)


@lru_cache(MOST_KEPT)
def _followed(
    _path: str, _inode: int, _mtime: int, _ctime: int, kind: int | None
) -> FollowedStream:
    return FollowedStream(kind)


def _indexer() -> Any:
    return function_at("dask_tiled.kernels.tpx3:HitIndexer")()


def _read(file: tools.File, indexer: Any, *, whole: bool = False) -> None:
    """Index the words, or whole chunks, of a file that are not indexed yet."""
    part = np.empty(PART_BYTES, np.uint8)
    with file.open() as stream:
        stream.seek(indexer.at)
        while (at := indexer.at) <= file.size - WORD:
            size = cast("io.BufferedReader", stream).readinto(part[: file.size - at].data)
            wrong = indexer.add(part[: size - size % WORD], whole=whole)
            if wrong >= 0:
                _refuse(file, at + wrong, part[wrong : wrong + WORD].tobytes())
            if indexer.at == at:  # the chunk goes on behind the end
                break
            stream.seek(indexer.at)
    file.check()  # the bytes are those of one version


def _index(file: tools.File, indexer: Any, horizon: int = FARTHEST) -> StreamIndex:
    """Return the index of what is indexed so far; by default of a complete file."""
    times, kinds = indexer.edges()
    chips, without_time, left = indexer.told()
    lacking = WORD * left - file.size % WORD
    lacking = lacking % WORD if lacking < 0 else lacking
    lacking = lacking if horizon == FARTHEST else 0  # the rest of the last chunk will come
    rows = indexer.rows()
    nbytes = np.diff(rows[:, 0], append=indexer.at)
    there = np.flatnonzero(rows[:, 4])
    some = np.column_stack([rows, nbytes])[there if len(there) else slice(1)]
    columns = (*some.T.copy(), times, kinds, chips, without_time, lacking, horizon)
    return StreamIndex(*columns)


def _refuse(file: tools.File, at: int, word: bytes) -> Any:
    """Raise the error of a wrong header of a chunk."""
    problem, where = "no chunk begins where one has to", f"byte {at}"
    expected, found = "TPX3, chip 0 to 3, and whole words of 8 bytes", word.hex(" ")
    raise tools.CorruptFileError(
        problem, path=file.path, where=where, expected=expected, found=found
    )
