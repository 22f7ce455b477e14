"""Lines of a scan are found by the times of frames, but only beyond doubt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled.formats.mib.fly_back import find_lines


def times_of(rows, line, *, dwell=1_000_000, back=200_000, jitter=0, seed=0):
    """Return the times of the frames of a scan, in ns."""
    steps = np.full((rows, line), dwell, np.int64)
    steps[:, -1] += back
    steps += np.random.default_rng(seed).integers(-jitter, jitter + 1, steps.shape)
    return 1_620_406_270_905_800_928 + np.cumsum(steps) - steps.ravel()


def line_of(times):
    """Find the length of lines, with a bound on the number of times read."""
    read = []

    def times_at(first, distance, number):
        read.append(number)
        assert first + distance * (number - 1) < len(times)
        return times[first : first + distance * number : distance]

    lines = find_lines(times_at, len(times))
    line = lines.length if lines and lines.takes(len(times)) else None
    assert sum(read) <= 64 + 512 + 4096 + 2 * len(times) // (lines.length if lines else 2)
    return line


@given(
    rows=st.integers(3, 40),
    line=st.integers(4, 300),
    back=st.integers(2_000, 10**9),
    seed=st.integers(0, 99),
)
def test_lines(rows, line, back, seed):
    """Lines are found if the fly-back exceeds the jitter, down to 1/500 of the dwell time."""
    times = times_of(rows, line, back=back, jitter=min(back // 40, 400_000), seed=seed)
    assert line_of(times) in {line, None}
    if line < 16:  # in longer lines, jitter adds up
        assert line_of(times) == line
    assert line_of(times_of(rows, line, back=back)) == line


def test_lines_of_thousands_of_frames():
    assert line_of(times_of(300, 2000)) == 2000
    assert line_of(times_of(3, 3000)) is None  # too long to be sure without reading all times


@given(line=st.integers(3, 20), rows=st.integers(3, 20), at=st.integers(0, 10**6), ns=st.integers())
def test_delayed_frame_leaves_doubt(line, rows, at, ns):
    """No line is found if a frame is delayed, except at the end of a line."""
    times = times_of(rows, line)
    at %= len(times) - 1
    times[at + 1 :] += 100_000 + abs(ns) % 10**9
    assert line_of(times) in ({line, None} if (at + 1) % line == 0 else {None})


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 5000])
def test_times_without_lines(count):
    random = np.random.default_rng(0)
    assert line_of(np.zeros(count, np.int64)) is None
    assert line_of(np.arange(count) * 1000) is None
    assert line_of(np.cumsum(random.integers(1, 10**6, count))) is None
    assert line_of(np.arange(count)[::-1] * 1000) is None


@pytest.mark.parametrize("dwell", [1_250_000, 1_500_000, 300_000, 999_000, 10_010_000])
def test_times_rounded_to_milliseconds_are_no_lines(dwell):
    """Rounding makes periodic steps of 1, 1, 1 and 2 ms."""
    assert line_of(np.arange(6000) * dwell // 10**6 * 10**6) is None


def test_incomplete_last_line_leaves_doubt():
    times = times_of(10, 20)
    assert line_of(times[:-1]) is None
    assert line_of(np.append(times, times[-1] + 10**6)) is None
    assert line_of(times[: 2 * 20]) is None  # a single fly-back may be chance
