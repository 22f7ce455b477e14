"""Streams of X-ray events of Velox, one for each detector, as tables of sparse pieces.

Layout facts: files of Velox 3.15 and 3.16. ``Data`` holds words of 2 bytes: 65535 ends a pixel, any
other word is one count in that channel of the pixel. ``FrameLocationTable`` lists the word at which
each frame of the scan begins; the last pixel may lack its end.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, check_whole
from dask_tiled.files.file import File
from dask_tiled.formats.hdf5.chunk_index import list_chunks
from dask_tiled.formats.hdf5.library import chunks_of, filters_of
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.tools.events import (
    SUM,
    add_words,
    count_words,
    event_layout,
    frames_shown,
    overflow,
)
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import EventDecoder, function_at
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Bytes, Index
from dask_tiled.model.layout import Layout

WORD, COUNTS = np.dtype("<u2"), np.dtype("u2")
END = 65535
"""Word that ends a pixel."""
KERNELS = "dask_tiled.kernels.events"
TABLE = "FrameLocationTable"
MOST_FRAMES = 1 << 24
PIECE_WORDS = 1 << 13
"""Most words of a piece: chunks may be longer, and the stream need not have any."""


class Streams(NamedTuple):
    """Streams that are added up, and the part of them that is shown."""

    members: tuple[Any, ...]
    """Datasets of words."""
    scan: tuple[int, int]
    channels: int
    n_frames: int
    frames: range | None = None
    """Frames shown along an axis of their own; None adds all of them up."""
    bins: int = 1
    """Neighbouring channels that are added up."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array: frames unless they are added up, scan, channels."""
        along = () if self.frames is None else (len(self.frames),)
        return *along, *self.scan, self.channels // self.bins

    def asked(self, path: str, frames: Any, bins: int) -> Streams:
        """Return the part that the options of a user ask for."""
        shown = frames_shown(path, frames, self.n_frames)
        check_whole("rebin_energy", bins, least=1, path=path)
        if self.channels % bins:
            problem, expected = "invalid rebin_energy", f"a divisor of {self.channels} channels"
            raise DatasetError(problem, path=path, expected=expected, found=bins)
        return self._replace(frames=None if frames == SUM else shown, bins=bins)

    def layout(self, tree: Tree) -> Layout:
        """Lay out the words: each piece lies in one chunk, and in one frame of the scan."""
        pixels, files = math.prod(self.scan), list[File]()
        shown = range(self.n_frames) if self.frames is None else self.frames
        columns = list[tuple[Index, ...]]()
        for number, data in enumerate(self.members):
            file = File.at(data.file.filename)
            files += [file] * (file not in files)
            frame, offset, nbytes = _pieces(tree, data, file, pixels)
            place, rest = np.divmod(frame - shown.start, shown.step)
            some = np.flatnonzero((rest == 0) & (place >= 0) & (place < len(shown)))
            place = place[some]
            group, at = number * len(shown) + place, np.full(len(some), files.index(file))
            columns.append((place, group, at, offset[some], nbytes[some]))
        place, group, at, offset, nbytes = map(np.concatenate, zip(*columns, strict=True))
        start = 0 * place if self.frames is None else pixels * place
        options = {"pixels": pixels, "bins": self.bins}
        decoder = EventDecoder(
            f"{__name__}:add", COUNTS, tuple(options.items()), index=f"{__name__}:index"
        )
        *nav, channels = self.shape
        layout = event_layout(
            files,
            math.prod(nav),
            (channels,),
            decoder,
            offset=offset,
            nbytes=nbytes,
            start=start,
            stop=start + pixels,
            state=group,
            file=at,
        )
        return layout.show(tuple(nav))


def _pieces(tree: Tree, data: Any, file: File, pixels: int) -> tuple[Index, Index, Index]:
    """Return frame, offset and size of each piece of a stream."""
    tree.check_sources(data)
    starts = _frame_starts(data, pixels)
    size, places = _stored(data, file)
    steps = (np.arange(0, len(data), step) for step in {size, min(size, PIECE_WORDS)})
    edges = np.unique(np.concatenate([*steps, starts]))
    lengths = np.diff(edges, append=len(data))
    offset = places[edges // size] + WORD.itemsize * (edges % size)
    return np.searchsorted(starts, edges, "right") - 1, offset, WORD.itemsize * lengths


def _frame_starts(data: Any, pixels: int) -> Index:
    """Read the word at which each frame begins; check that frames are long enough."""
    table = data.parent[TABLE]
    if table.dtype.kind != "u" or not 0 < table.size <= MOST_FRAMES:
        _refuse(data, "invalid table of frames", "1 whole number for each", table.dtype)
    told = table[()].reshape(-1)
    if told[0] != 0 or (told > len(data)).any() or (told[1:] <= told[:-1]).any():
        _refuse(data, "invalid table of frames", f"words ascending from 0 to {len(data)}", told)
    starts = told.astype(np.int64)
    lengths = np.diff(starts, append=len(data) + 1)  # the last pixel may lack its end
    if (lengths < pixels).any():
        short = int(np.argmax(lengths < pixels))
        _too_few(data.file.filename, f"frame {short} of {data.name}", pixels, f"{lengths[short]}")
    return starts


def _stored(data: Any, file: File) -> tuple[int, Index]:
    """Return how many words lie together, and the offset of each such part in the file."""
    if data.dtype != WORD or data.size != len(data) or filters_of(data) or data.is_virtual:
        _refuse(data, "a stream in another encoding", "words of 2 bytes, not filtered", data.dtype)
    if data.chunks is None:
        count, offset = len(data), data.id.get_offset()
        if offset is None or data.external:
            _refuse(data, "words that are not in the file", "an offset", offset)
        return PIECE_WORDS, offset + WORD.itemsize * np.arange(0, count, PIECE_WORDS)
    size, chunks = chunks_of(data)[0], list_chunks(data, file, 0)
    expected = np.arange(0, len(data), size)
    if not np.array_equal(chunks.where[:, 0], expected):
        _refuse(
            data, "a part of the stream is missing", f"{len(expected)} chunks", len(chunks.where)
        )
    return size, chunks.offsets


def _refuse(data: Any, problem: str, expected: str, found: Any) -> NoReturn:
    path, where = data.file.filename, data.name
    raise CorruptFileError(problem, path=path, where=where, expected=expected, found=str(found))


def _too_few(path: str, where: str, pixels: int, found: str) -> NoReturn:
    what, expected = "a frame of the stream has too few pixels", f"{pixels} pixels"
    hint = "Pass frames=slice(0, n) for the frames before it."
    raise TruncatedFileError(
        what, path=path, where=where, expected=expected, found=found, hint=hint
    )


def index(run: EventRun, fetch: Fetch, *, pixels: int, bins: int) -> tuple[Index, Index, Index]:
    """Find the pixels of each piece, by counting the ends of pixels before it in its frame."""
    kernel, found, done = function_at(f"{KERNELS}:pixels_kernel")(), [], []
    for part, data in run.parts(fetch):
        counts, ends = np.empty((2, len(part.sizes)), np.int64)
        kernel(data, part.offsets, part.sizes, counts, ends)
        found.append(counts)
        done.append(ends)
    counts, ends = map(np.concatenate, (found, done))
    firsts = np.flatnonzero(np.diff(run.states, prepend=-1))
    totals = np.add.reduceat(counts, firsts)
    lasts = np.append(firsts[1:], len(counts)) - 1
    complete = np.where(totals == pixels, ends[lasts] > 0, totals == pixels - 1)
    if not complete.all():
        wrong = int(np.argmin(complete))
        at, number = int(run.offsets[firsts[wrong]]), int(totals[wrong])
        if number < pixels:
            _too_few(run.file.path, f"byte {at}", pixels, f"{number + 1}")
        run.refuse("a frame of the stream has too many pixels", at, pixels, f"{number} ends")
    before = np.cumsum(counts) - counts
    before -= np.repeat(before[firsts], np.diff(firsts, append=len(counts)))
    stops = np.minimum(before + counts + 1, pixels)
    return run.starts + before, run.starts + stops, run.states


def add(run: EventRun, fetch: Fetch, target: EventTarget, *, pixels: int, bins: int) -> None:
    """Add the events of pieces to their pixels."""
    kernel = function_at(f"{KERNELS}:channels_kernel")(
        target.out.dtype, by_pixel=not (target.columns > 0).any()
    )
    channels = bins * len(target.columns)
    columns = np.full(END + 1, -1, np.int32)
    columns[:channels] = np.repeat(target.columns, bins)
    shared = target.shared(run)
    if shared.any():
        numbers = count_words(run.some(shared), fetch)
        if numbers[channels:END].any():
            for part, data in run.some(shared).parts(fetch):
                _check_words(part, data, channels)
        add_words(run, target, columns, numbers)
    for part, data in run.some(~shared).parts(fetch):
        first, stop = int(part.starts.min()), int(part.stops.max())
        arrays = part.offsets, part.sizes, part.starts, first, target.rows(first, stop), columns
        at = kernel(data, *arrays, channels, target.out)
        if at >= 0:
            _check_words(part, data, channels)
            overflow(run, target.out.dtype)


def _check_words(part: EventRun, data: Bytes, channels: int) -> None:
    """Check that all words are channels, or end a pixel."""
    for at, size in zip(part.offsets.tolist(), part.sizes.tolist(), strict=True):
        words = data[at : at + size].view(WORD)
        unknown = np.flatnonzero((words >= channels) & (words != END))
        if len(unknown):
            place, word = at + WORD.itemsize * int(unknown[0]), words[unknown[0]]
            part.refuse("no such channel", place, f"channels below {channels}", word)
