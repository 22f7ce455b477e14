"""What runs with a checkpoint show while they compute: bytes, rate, time left."""

import re
import sys
from functools import partial
from io import StringIO

import numpy as np
import pytest

from dask_tiled import open_dataset, run
from dask_tiled.blocks import bars
from dask_tiled.checkpoints import run as module
from dask_tiled.plans import plan

FRAMES = np.random.default_rng(5).normal(size=(20, 2, 50, 500)).astype("f4")  # 4 MB
CHUNKS = (1, 2, 50, 500)  # 200 kB
SHOWN = re.compile(r"run: +(\d+)%\|.*\| ([\d.]+)([kM]?)/4.00M \[[\d:]+<([\d:]+|\?), +(\S+)B/s\]")
"""Share, bytes, their prefix, time left, rate."""

pytestmark = pytest.mark.usefixtures("synchronous")


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def scan(tmp_path, monkeypatch):
    """Open a scan of 20 chunks; every task updates the bar."""
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(bars, "LOG_SECONDS", 0.0)
    bar = partial(module.progress_bar, mininterval=0, miniters=1, ncols=100)
    monkeypatch.setattr(module, "progress_bar", bar)
    np.save(tmp_path / "scan.npy", FRAMES)
    return open_dataset(tmp_path / "scan.npy", chunks=CHUNKS)


def shown(texts):
    """Return the shares, the bytes, and whether rate and time left are known."""
    found = [SHOWN.match(text).groups() for text in texts if text.strip()]
    factor = {"": 1, "k": 1000, "M": 1_000_000}
    return [
        (int(share), float(n) * factor[prefix], rate != "?" and left != "?")
        for share, n, prefix, left, rate in found
    ]


def check(told, first=0):
    """Check that bytes grow chunk by chunk to their sum, and that rates are known from then on."""
    assert told[0][1] == first
    done = [nbytes for _, nbytes, _ in told]
    assert done == sorted(done)
    assert {*range(first + 200_000, 4_000_001, 200_000)} <= {round(n, -4) for n in done}
    assert [share for share, *_ in told] == [round(n / 40_000) for n in done]
    assert all(known for _, nbytes, known in told if nbytes > first)
    assert told[-1][:2] == (100, 4_000_000)


def test_a_terminal_shows_bytes_rate_and_time_left(scan, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(scan.sum((2, 3)), tmp_path / "kept")
    check(shown(terminal.getvalue().split("\r")))


def test_a_log_gets_lines(scan, tmp_path, monkeypatch):
    log = StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    run(scan.sum((2, 3)), tmp_path / "kept", progress=True)
    assert "\r" not in log.getvalue()
    check(shown(log.getvalue().splitlines()))


def test_a_log_is_silent_by_default(scan, tmp_path, capsys):
    run(scan.sum((2, 3)), tmp_path / "kept")
    assert capsys.readouterr() == ("", "")


@pytest.mark.thorough
def test_a_resumed_run_begins_with_what_is_kept(scan, tmp_path, monkeypatch):
    """Rates and times are those of this run: what is kept counts as bytes, not as speed."""
    told = []

    def stop(progress):
        told.append(progress)
        if len(told) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(scan.sum((2, 3)), tmp_path / "kept", every=0, on_progress=stop)
    kept = told[-1].bytes_done
    log, again = StringIO(), []
    monkeypatch.setattr(sys, "stderr", log)
    run(scan.sum((2, 3)), tmp_path / "kept", every=0, progress=True, on_progress=again.append)
    check(shown(log.getvalue().splitlines()), first=kept)
    for progress in again:
        assert progress.bytes_total == FRAMES.nbytes
        here = progress.bytes_done - kept
        assert progress.bytes_per_second == pytest.approx(here / progress.seconds)
        left = (FRAMES.nbytes - progress.bytes_done) / progress.bytes_per_second
        assert progress.seconds_left == pytest.approx(left)
    assert again[-1].seconds_left == 0


def test_progress_is_told_at_most_every_so_many_seconds(scan, tmp_path):
    """And at the end."""
    told = []
    run(scan.sum((2, 3)), tmp_path / "kept", every=1000, on_progress=told.append)
    assert [one.bytes_done for one in told] == [FRAMES.nbytes]
