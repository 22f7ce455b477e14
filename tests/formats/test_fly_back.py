"""Lines of scans are found by the times of frames, and only where that is beyond doubt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled.formats.mib.fly_back import find_line


def times_of(rows, line, *, dwell=1_000_000, back=200_000, jitter=0, seed=0):
    """Return the times of the frames of a scan, in ns."""
    steps = np.full((rows, line), dwell, np.int64)
    steps[:, -1] += back
    steps += np.random.default_rng(seed).integers(-jitter, jitter + 1, steps.shape)
    return 1_620_406_270_905_800_928 + np.cumsum(steps) - steps.ravel()


def found(times):
    """Look for lines, counting what is read."""
    read = []

    def give(first, distance, number):
        read.append(number)
        assert first + distance * (number - 1) < len(times)
        return times[first : first + distance * number : distance]

    line = find_line(give, len(times))
    assert sum(read) <= 64 + 512 + 4096 + 2 * len(times) // (line or 2)
    return line


@given(
    rows=st.integers(3, 40),
    line=st.integers(4, 300),
    back=st.integers(2_000, 10**9),
    seed=st.integers(0, 99),
)
def test_lines(rows, line, back, seed):
    """Also with fly-backs of a thousandth of the dwell time, where times differ by less."""
    times = times_of(rows, line, back=back, jitter=min(back // 40, 400_000), seed=seed)
    assert found(times) in {line, None}
    if line < 16:  # of longer ones, small errors add up
        assert found(times) == line
    assert found(times_of(rows, line, back=back)) == line


def test_lines_of_thousands_of_frames():
    assert found(times_of(300, 2000)) == 2000
    assert found(times_of(3, 3000)) is None  # too long to be sure, without reading all of it


@given(line=st.integers(3, 20), rows=st.integers(3, 20), at=st.integers(0, 10**6), ns=st.integers())
def test_any_other_break_leaves_doubt(line, rows, at, ns):
    """A frame that came later, anywhere but where a line ends anyway."""
    times = times_of(rows, line)
    at %= len(times) - 1
    times[at + 1 :] += 100_000 + abs(ns) % 10**9
    assert found(times) in ({line, None} if (at + 1) % line == 0 else {None})


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 5000])
def test_times_that_show_nothing(count):
    random = np.random.default_rng(0)
    assert found(np.zeros(count, np.int64)) is None
    assert found(np.arange(count) * 1000) is None
    assert found(np.cumsum(random.integers(1, 10**6, count))) is None
    assert found(np.arange(count)[::-1] * 1000) is None


@pytest.mark.parametrize("dwell", [1_250_000, 1_500_000, 300_000, 999_000, 10_010_000])
def test_times_in_milliseconds_do_not_beat_with_the_dwell_time(dwell):
    """Steps of 1, 1, 1 and 2 ms come of rounding."""
    assert found(np.arange(6000) * dwell // 10**6 * 10**6) is None


def test_a_scan_that_was_stopped_or_goes_on_leaves_doubt():
    times = times_of(10, 20)
    assert found(times[:-1]) is None
    assert found(np.append(times, times[-1] + 10**6)) is None
    assert found(times[: 2 * 20]) is None  # one fly-back may have come by chance
