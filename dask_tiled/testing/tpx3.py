"""Write Timepix3 streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_TICK = 1.5625e-9
_RISING = 0xF


def write_tpx3(
    path: StrPath,
    frames: npt.ArrayLike,
    *,
    frame_time: float = 1e-3,
    line: int = 0,
    fly_back: float = 0.0,
    start: float = 0.0,
    per_chunk: int = 100,
    heartbeats: bool = True,
    seed: int = 0,
) -> Path:
    """Write a Timepix3 stream of the hits that make frames.

    Hits of a chunk are not in the order of time, and have a time over threshold of 1 + x % 1000
    steps. The first hit is at the beginning of the first frame.

    Parameters
    ----------
    frames
        Numbers of hits, (frames, 256, 256) of one chip or (frames, 512, 512) of four.
    frame_time
        Seconds of a frame.
    line
        Frames of a line of a scan; each begins with a rising edge of TDC 1. 0 for none.
    fly_back
        Seconds between two lines, with a hit in the first pixel in each.
    start
        Seconds from the start of the clock to the first frame.
    per_chunk
        Hits written before a chip takes turns, and after which a heartbeat is written.
    heartbeats
        Whether there are any; without them, the clock begins anew after 26.8 seconds.
    seed
        Seed of the times in a frame.
    """
    path, counts = Path(path), np.asarray(frames)
    wide, rng = counts.shape[-1] == 512, np.random.default_rng(seed)
    if counts.shape[1:] not in {(256, 256), (512, 512)} or not counts[0].any():
        raise ValueError("frames of 256 or 512 pixels, with a hit in the first")
    step, begin = frame_time / _TICK, round(start / _TICK)
    per_line = line or len(counts)
    before = np.arange(len(counts)) // per_line * (fly_back / _TICK)
    starts = begin + np.ceil(np.arange(len(counts)) * step + before).astype(np.int64)
    frame, y, x = np.nonzero(counts)
    number = counts[frame, y, x].astype(np.int64)
    frame, y, x = (np.repeat(one, number) for one in (frame, y, x))
    time = starts[frame] + rng.integers(0, max(1, int(step) - 1), len(frame))
    time[0] = starts[0]
    edges = starts[::per_line] if line else np.empty(0, np.int64)
    if fly_back:
        late = edges + int(per_line * step + fly_back / _TICK / 2)
        time = np.concatenate([time, late])
        y, x = (np.concatenate([one, np.zeros_like(late)]) for one in (y, x))
    order = np.argsort(time, kind="stable")
    time, y, x = time[order], y[order], x[order]
    chip, column, row = _on_chips(y, x) if wide else (np.zeros_like(x), x, y)
    words = _hits(time, column, row, 1 + x % 1000)
    done = 0
    with path.open("wb") as file:
        for first in range(0, len(words), per_chunk):
            group = slice(first, first + per_chunk)
            now, until = time[group][0], time[group][-1]
            if first + per_chunk >= len(words):
                until = max(until, edges.max(initial=0))
            if heartbeats:
                file.write(_chunk(0, _heartbeat(now)))
            due = edges[done : np.searchsorted(edges, until, side="right")]
            if len(due):
                file.write(_chunk(0, _edges(due, done)))
                done += len(due)
            for one in range(4 if wide else 1):
                some = words[group][chip[group] == one]
                file.write(_chunk(one, some[rng.permutation(len(some))]))
    return path


def _on_chips(y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return chip, column and row of pixels: chips 0 and 3 above, 2 and 1 turned below."""
    right, below = x >= 256, y >= 256
    chip = np.where(below, np.where(right, 1, 2), np.where(right, 0, 3))
    column = np.where(below, 255 - x % 256, x % 256)
    return chip, column, np.where(below, 511 - y, y)


def _hits(
    time: np.ndarray, column: np.ndarray, row: np.ndarray, tot: np.ndarray
) -> npt.NDArray[np.uint64]:
    coarse = -(-time // 16)
    address = column >> 1 << 9 | row >> 2 << 3 | (column & 1) << 2 | (row & 3)
    fields = (0xB, 60), (address, 44), (coarse & 0x3FFF, 30), (tot, 20)
    return _word(*fields, (coarse * 16 - time, 16), (coarse >> 14 & 0xFFFF, 0))


def _edges(time: np.ndarray, counter: int) -> npt.NDArray[np.uint64]:
    coarse, fine = time >> 1 & ((1 << 35) - 1), 1 + 6 * (time & 1)
    number = (counter + np.arange(len(time))) & 0xFFF
    return _word((0x60 | _RISING, 56), (number, 44), (coarse, 9), (fine, 5))


def _heartbeat(time: int) -> npt.NDArray[np.uint64]:
    timer = int(time) >> 4
    halves = (0x44, timer & 0xFFFFFFFF), (0x45, timer >> 32)
    return np.concatenate([_word((kind, 56), (np.array([part]), 16)) for kind, part in halves])


def _word(*fields: tuple[npt.ArrayLike, int]) -> npt.NDArray[np.uint64]:
    word = np.zeros(1, np.uint64)
    for values, first in fields:
        word = word | np.asarray(values).astype(np.uint64) << np.uint64(first)
    return word


def _chunk(chip: int, words: npt.NDArray[np.uint64]) -> bytes:
    header = b"TPX3" + bytes([chip, 0]) + (8 * len(words)).to_bytes(2, "little")
    return header + words.astype("<u8").tobytes()
