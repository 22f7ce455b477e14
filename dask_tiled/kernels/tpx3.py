"""The numba kernels of Timepix3 streams: words of 64 bits, in chunks of one chip each.

Times are in ticks of 1.5625 ns. Hits store the lowest 34 bits of theirs, and edges of the TDC the
lowest 36: each is the time nearest to that of the word before it. Heartbeats store whole times.
Layout facts: the table of words in the SERVAL manual, as public readers quote it, and real files.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.limits import INDEXED_BYTES
from dask_tiled.kernels.words import inlined, inner, little64
from dask_tiled.model.indexing import Bytes, Index

MAGIC = np.uint64(0x33585054)
"""The letters ``TPX3``, the lower half of the header of a chunk."""
CHIPS = 4
HIT, TIMELESS, EDGE = 0xB, 0xA, 0x6
LOW_HALF, HIGH_HALF = 0x44, 0x45
HIT_BITS, EDGE_BITS = 34, 36
LEFT, CHIP, TIME, SURE, ROW, SEEN, WITHOUT_TIME, EDGES, SHIFT, DONE, ENDED, HALVES = range(12)
"""Numbers kept between calls: words left of the chunk, its chip, the last time, whether it is
unknown, known up to the range of hits or of edges, or known; the number of the block, bits of chips
that were seen, words of hits without times, edges found, by how much earlier times were shifted,
bytes indexed by the last call, whether the next chunk begins a block, and from ``HALVES`` on the
lower half of each chip's heartbeat, -1 if there is none."""
STATE = HALVES + CHIPS
MOST_BYTES = 4 * INDEXED_BYTES
"""Bytes after which a block ends though a heartbeat is not complete, as its other half is lost."""
FARTHEST = np.int64(1 << 62)
LATEST = np.int64(np.iinfo(np.int64).max)
OFFSET, START, FIRST, LAST, HITS = range(5)
"""Columns of the index: the offset of a block, the time before it, those of its first and last
hit, and the number of its hits."""
X_OF_CHIP, Y_OF_CHIP = np.array([256, 511, 255, 0]), np.array([0, 511, 511, 0])
DIRECTION = np.array([1, -1, -1, 1])
"""The corner of each of four chips, and the direction of both its axes."""


@inlined
def _bits(word, first, count):
    return np.int64((word >> np.uint64(first)) & np.uint64((1 << count) - 1))


@inlined
def _near(raw, time, bits):
    """Return the time nearest to another one that has the given lowest bits."""
    return time + (((raw - time) << (64 - bits)) >> (64 - bits))


@inlined
def _hit_time(word):
    return (((_bits(word, 0, 16) << 14) | _bits(word, 30, 14)) << 4) - _bits(word, 16, 4)


@inlined
def _edge_time(word):
    """Return the lowest bits of the time of an edge, whose fine steps 1 to 12 are 1/6 tick each."""
    return (_bits(word, 9, 35) << 1) + (_bits(word, 5, 4) > 6)


@inlined
def _heartbeat(word, chip, state):
    """Take one half of a heartbeat; return its time once both are there, else -1."""
    kind, halves = _bits(word, 56, 8), HALVES + chip
    if kind == LOW_HALF:
        state[halves] = _bits(word, 16, 32)
    elif kind == HIGH_HALF and state[halves] >= 0:
        time = ((_bits(word, 16, 16) << 32) | state[halves]) << 4
        state[halves] = -1
        return time
    return np.int64(-1)


@inner
def _span(src, k, stop, time):
    """Return the earliest and the latest time of words, if all are hits, and the last one.

    They count from a time before; a span of half the range of times or more says that there are
    other words, or that times may wrap.
    """
    alike, low, high, since = True, LATEST, ~LATEST, np.int64(0)
    for at in range(8 * k, 8 * stop, 8):
        word = little64(src, at)
        since = (_hit_time(word) - time) << (64 - HIT_BITS)
        low, high = min(low, since), max(high, since)
        alike &= _bits(word, 60, 4) == HIT
    if not alike:
        return np.int64(0), FARTHEST, since
    return low >> (64 - HIT_BITS), high >> (64 - HIT_BITS), since >> (64 - HIT_BITS)


@inner
def _index_chunk(src, k, stop, rows, times, kinds, state):
    """Index words ``k`` to ``stop``, which are in one chunk."""
    row, edges, time, sure = state[ROW], state[EDGES], state[TIME], state[SURE]
    first, last, hits = rows[row, FIRST], rows[row, LAST], rows[row, HITS]
    low, high, since = _span(src, k, stop, time)
    if sure and high - low < 1 << (HIT_BITS - 1):
        rows[row, FIRST], rows[row, LAST] = min(first, time + low), max(last, time + high)
        rows[row, HITS], state[TIME] = hits + stop - k, time + since
        return
    for at in range(8 * k, 8 * stop, 8):
        word = little64(src, at)
        kind = _bits(word, 60, 4)
        if kind == HIT:
            raw = _hit_time(word)
            time = _near(raw, time, HIT_BITS) if sure else raw
            first, last, hits = min(first, time), max(last, time), hits + 1
        elif kind == EDGE:
            raw = _edge_time(word)
            time = _near(raw, time, EDGE_BITS) if sure else raw
            times[edges], kinds[edges] = time, _bits(word, 56, 4)
            edges += 1
        else:
            state[WITHOUT_TIME] += kind == TIMELESS
            beat = _heartbeat(word, state[CHIP], state)
            if beat < 0:
                continue
            shift = beat - _near(beat, time, HIT_BITS if sure == 1 else EDGE_BITS)
            if 0 < sure < 3 and shift:
                state[SHIFT] = shift
                rows[: row + 1, START : LAST + 1] += shift
                times[:edges] += shift
                first, last = first + shift, last + shift
            time = beat
        if sure == 0:
            rows[row, START] = time
        sure = max(sure, np.int64(1 if kind == HIT else 2 if kind == EDGE else 3))
    rows[row, FIRST], rows[row, LAST], rows[row, HITS] = first, last, hits
    state[EDGES], state[TIME], state[SURE] = edges, time, sure


def index_words(src, at, rows, times, kinds, state):
    """Index words of a file; return the offset of a wrong header, -1 if there is none.

    Parameters
    ----------
    src : array of uint8
        Whole words.
    at : int
        Offset of `src` in the file.
    rows : int64 array of shape (blocks, 5)
        The index, with room for blocks that begin in `src`.
    times, kinds : int64 and uint8 arrays
        Output: time and kind of each edge, with room for one in each word.
    state : int64 array of ``STATE`` numbers
    """
    count, k = src.size // 8, np.int64(0)
    state[EDGES] = state[SHIFT] = state[DONE] = 0
    while k < count:
        if state[LEFT] == 0:
            word, row = little64(src, 8 * k), state[ROW]
            size, chip = _bits(word, 48, 16), _bits(word, 32, 8)
            state[DONE] = 8 * k
            if (word & np.uint64(0xFFFFFFFF)) != MAGIC or size % 8 or chip >= CHIPS:
                return 8 * k
            state[SEEN] |= 1 << chip
            state[CHIP], state[LEFT] = chip, size >> 3
            nbytes = at + 8 * k - rows[row, OFFSET] if row >= 0 else MOST_BYTES
            is_between = state[HALVES:].max() < 0  # a block that ends in a heartbeat loses it
            if state[ENDED] or nbytes >= (INDEXED_BYTES if is_between else MOST_BYTES):
                row += 1
                rows[row, OFFSET], rows[row, START] = at + 8 * k, state[TIME]
                rows[row, FIRST], rows[row, LAST], rows[row, HITS] = FARTHEST, -FARTHEST, 0
                state[ROW], state[ENDED], state[HALVES:] = row, 0, -1
            k += 1
        else:
            stop = min(count, k + state[LEFT])
            _index_chunk(src, k, stop, rows, times, kinds, state)
            state[LEFT] -= stop - k
            k = stop
    state[DONE] = 8 * count
    return np.int64(-1)


def whole_bytes(src):
    """Return the end of the last whole chunk up to which all heartbeats have both halves.

    Where the other half does not come, it is that of the last whole chunk. Behind a wrong header,
    it is the end of all words.
    """
    count, k, end, halves = src.size // 8, np.int64(0), np.int64(0), np.int64(0)
    while k < count:
        word = little64(src, 8 * k)
        chip, stop = _bits(word, 32, 8), k + 1 + (_bits(word, 48, 16) >> 3)
        if (word & np.uint64(0xFFFFFFFF)) != MAGIC or chip >= CHIPS:
            return 8 * count if end == 8 * k else end
        if stop > count:
            break
        for at in range(8 * (k + 1), 8 * stop, 8):
            kind = _bits(little64(src, at), 56, 8)
            if kind == LOW_HALF:
                halves |= 1 << chip
            elif kind == HIGH_HALF:
                halves &= ~(1 << chip)
        k = stop
        if halves == 0 or 8 * (k - 1) >= MOST_BYTES - (1 << 17):
            end = 8 * k
    return end


def decode_hits(src, time, wide, hits):
    """Decode the hits of a block; return their number, -1 if there are more, or no header.

    Parameters
    ----------
    src : array of uint8
        The words of the block, from the header of a chunk on.
    time : int
        The time before the block, from the index.
    wide : bool
        Whether four chips make a picture of 512 x 512 pixels.
    hits : array of records
        Output: time, y, x, tot and chip.
    """
    count, k, decoded, left = src.size // 8, np.int64(0), np.int64(0), np.int64(0)
    state = np.full(STATE, -1, np.int64)
    chip = x0 = y0 = np.int64(0)
    direction = np.int64(1)
    while k < count:
        if left == 0:
            word = little64(src, 8 * k)
            chip, left = _bits(word, 32, 8), _bits(word, 48, 16) >> 3
            if (word & np.uint64(0xFFFFFFFF)) != MAGIC or chip >= CHIPS:
                return np.int64(-1)
            if wide:
                x0, y0, direction = X_OF_CHIP[chip], Y_OF_CHIP[chip], DIRECTION[chip]
            k += 1
            continue
        stop = min(count, k + left)
        left -= stop - k
        while k < stop:
            word = little64(src, 8 * k)
            k += 1
            kind = _bits(word, 60, 4)
            if kind == HIT:
                if decoded == hits.size:
                    return np.int64(-1)
                time = _near(_hit_time(word), time, HIT_BITS)
                address = _bits(word, 44, 16)
                hit = hits[decoded]
                hit.time = time
                hit.y = y0 + direction * (((address >> 1) & 0xFC) + (address & 3))
                hit.x = x0 + direction * (((address >> 8) & 0xFE) + ((address >> 2) & 1))
                hit.tot = _bits(word, 20, 10)
                hit.chip = chip
                decoded += 1
            elif kind == EDGE:
                time = _near(_edge_time(word), time, EDGE_BITS)
            else:
                beat = _heartbeat(word, chip, state)
                time = beat if beat >= 0 else time
    return decoded


@inner
def _last_before(numbers, number):
    """Return the index of the last of ascending numbers that is not larger, -1 if all are."""
    low, high = np.int64(0), np.int64(numbers.size)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


def add_hits(hits, marks, per_mark, step, width, with_tot, numbers, places, columns, apart, out):
    """Add hits to the pixels of a :class:`~dask_tiled.model.events.EventTarget`.

    Parameters
    ----------
    hits : array of records
    marks : int64 array
        Times at which frames begin, ascending; those before the first are left out.
    per_mark : int
        Frames that follow each mark; later hits are left out.
    step : float
        Ticks of a frame.
    width : int
        Pixels of a row.
    with_tot : int
        1 to add the time over threshold, 0 to count.
    numbers, places, columns, out
        Attributes of the target, with columns of 4 bytes, which stay in the cache.
    apart : int
        Column of the second pixel, if columns rise in equal steps from 0 on; then they are empty,
        as looking them up takes longer than the rest.
    """
    mark, start, end = np.int64(0), np.int64(0), np.int64(0)
    first = numbers[0] if numbers.size else np.int64(0)
    together = numbers.size > 0 and numbers[-1] - first == numbers.size - 1
    for k in range(hits.size):
        hit = hits[k]
        if hit.time < start or hit.time >= end:
            mark = _last_before(marks, hit.time)
            start = marks[mark] if mark >= 0 else -FARTHEST
            end = marks[mark + 1] if mark + 1 < marks.size else FARTHEST
        if mark < 0:
            continue
        since = np.int64((hit.time - start) / step)
        frame = mark * per_mark + since
        entry = frame - first if together else _last_before(numbers, frame)
        if since >= per_mark or entry < 0 or entry >= numbers.size or numbers[entry] != frame:
            continue
        pixel = np.uint64(hit.y) * np.uint64(width) + np.uint64(hit.x)
        column = np.int64(columns[pixel]) if columns.size else np.int64(pixel) * apart
        if column >= 0:
            at = np.uint64(places[entry] + column)
            out[at] = np.int64(out[at]) + 1 + with_tot * (np.int64(hit.tot) - 1)


class HitIndexer:
    """Indexes a file part by part.

    Attributes
    ----------
    at : int
        Bytes indexed so far.
    """

    def __init__(self) -> None:
        self._rows = np.zeros((2, 5), np.int64)
        self._state = np.zeros(STATE, np.int64)
        self._state[ROW] = -1
        self._edges: list[tuple[Index, Index]] = []
        self.at = 0

    def add(self, part: Bytes, *, whole: bool = False) -> int:
        """Index the next words; return the offset in them of a wrong header, else -1.

        Words from there on are left, and with ``whole`` those from :func:`whole_bytes` on.
        """
        part = part[: whole_kernel()(part)] if whole else part
        needed = self._state[ROW] + 3 + len(part) // INDEXED_BYTES
        if needed > len(self._rows):
            more = np.zeros((max(needed, len(self._rows)), 5), np.int64)
            self._rows = np.concatenate([self._rows, more])
        times, kinds = np.empty(len(part) // 8, np.int64), np.empty(len(part) // 8, np.uint8)
        wrong = index_kernel()(part, self.at, self._rows, times, kinds, self._state)
        shift, found = self._state[SHIFT], slice(0, self._state[EDGES])
        if shift:
            self._edges = [(before + shift, kind) for before, kind in self._edges]
        self._edges.append((times[found].copy(), kinds[found].astype(np.int64)))
        self.at += int(self._state[DONE])
        return int(wrong)

    def end_block(self) -> None:
        """End the block: those of the index so far will not change, but for shifted times."""
        self._state[ENDED] = 1

    def rows(self) -> Index:
        """Return the index of all parts."""
        return self._rows[: self._state[ROW] + 1]

    def edges(self) -> tuple[Index, Index]:
        """Return times and kinds of the edges of all parts."""
        some = self._edges or [(np.empty(0, np.int64), np.empty(0, np.int64))]
        times, kinds = (np.concatenate(column) for column in zip(*some, strict=True))
        self._edges = [(times, kinds)]
        return times, kinds

    def told(self) -> tuple[int, int, int]:
        """Return bits of the chips, hits without times, and words that the last chunk lacks."""
        chips, without_time, left = self._state[[SEEN, WITHOUT_TIME, LEFT]].tolist()
        return chips, without_time, left


@cache
def index_kernel() -> Any:
    """Compile :func:`index_words`, once per process."""
    rows, kinds = types.int64[:, ::1], types.uint8[::1]
    signature = types.int64(BYTES, NUMBER, rows, NUMBERS, kinds, NUMBERS)
    return compiled(f"{__name__}:index_words", signature)


@cache
def whole_kernel() -> Any:
    """Compile :func:`whole_bytes`, once per process."""
    return compiled(f"{__name__}:whole_bytes", types.int64(BYTES))


@cache
def decode_kernel(hit: np.dtype) -> Any:
    """Compile :func:`decode_hits` for one dtype of hits."""
    signature = types.int64(BYTES, NUMBER, types.boolean, types.Array(from_dtype(hit), 1, "C"))
    return compiled(f"{__name__}:decode_hits", signature)


@cache
def add_kernel(hit: np.dtype, dtype: np.dtype) -> Any:
    """Compile :func:`add_hits` for one dtype of hits and one of the output."""
    fixed = types.Array(types.int64, 1, "C", readonly=True)
    columns = types.Array(types.int32, 1, "C", readonly=True)
    hits, out = (types.Array(from_dtype(one), 1, "C") for one in (hit, dtype))
    numbers = NUMBER, types.float64, NUMBER, NUMBER
    signature = types.void(hits, fixed, *numbers, fixed, fixed, columns, NUMBER, out)
    return compiled(f"{__name__}:add_hits", signature)
