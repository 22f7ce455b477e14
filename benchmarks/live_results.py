"""Delay of live results: from the last frame of a row, as it is sent, to its pixels in a picture.

Run ``python benchmarks/live_results.py [--rate 200] [--seconds 10] [--every 0.05]``: a process
plays a Merlin detector with frames of 256 x 256 pixels, at a rate in MB/s, to ``record``; with
``--detector tpx3``, hits of a Timepix3 in frames of 1 ms, whose time is that of the clock. The
picture is the sum under a disk, by ``progressive``, and as messages to the page of ``explore``, one
after the other. Both are compared with the finished file bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dask_tiled
from dask_tiled.exploring.messages import Message
from dask_tiled.exploring.pictures import pictures_shown
from dask_tiled.exploring.session import PageSession
from dask_tiled.testing import write_mib

SIDE, COLUMNS = 256, 64
FRAME_TIME = 1e-3
PLAYER = """
import json, sys, time
from pathlib import Path
import numpy as np
from dask_tiled.testing.playing import merlin_messages, sending
kind, path, interval, columns = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
ticks, most, sent = round(1e-3 / 1.5625e-9), 8000, []

def hits():
    yield b""  # as the header of a Merlin
    rows, count = map(int, path.read_text().split())
    rng = np.random.default_rng(0)
    words = (rng.integers(0, 1 << 16, count) << 44) | (rng.integers(1, 1 << 10, count) << 20)
    words = words.astype("u8") | np.uint64(0xB << 60)
    within = np.arange(count) * ticks // count
    for frame in range(rows * columns):
        time = within + frame * ticks
        coarse = -(-time // 16)
        times = ((coarse & 0x3FFF) << 30) | ((coarse * 16 - time) << 16) | (coarse >> 14 & 0xFFFF)
        made = words | times.astype("u8")
        parts = [made[k : k + most].tobytes() for k in range(0, count, most)]
        yield b"".join(b"TPX3\\0\\0" + len(x).to_bytes(2, "little") + x for x in parts)

def messages():
    for number, message in enumerate(hits() if kind == "tpx3" else merlin_messages(path)):
        yield message  # the next one is asked for when this one has been sent
        if number and number % columns == 0:
            sent.append(time.time())

with sending(messages, interval=interval, closes=kind == "tpx3") as port:
    print(port, flush=True)
    sys.stdin.readline()
print(json.dumps(sent))
"""


@contextmanager
def played(kind: str, path: Path, interval: float) -> Iterator[tuple[str, list[float]]]:
    """Play a file in another process; at the end, the list has the times of the ends of rows."""
    command = [sys.executable, "-c", PLAYER, kind, str(path), str(interval), str(COLUMNS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as player:
        assert player.stdout is not None
        times = list[float]()
        yield f"{kind}://127.0.0.1:{int(player.stdout.readline())}", times
        times += json.loads(player.communicate("\n")[0])


def by_progressive(arr: Any, mask: Any, seen: Callable[[Any], None], every: float) -> Any:
    """Compute the picture by ``progressive``."""
    for state in dask_tiled.progressive((arr * mask).sum((2, 3)), every=every):
        seen(np.ma.getmaskarray(state.values)[:, 0])
    return state.values


def by_page(arr: Any, mask: Any, seen: Callable[[Any], None], _: float) -> Any:
    """Compute the picture in the session of a page."""
    done = threading.Event()

    def send(message: Message) -> None:
        if message.kind == "image":
            image = np.frombuffer(message.data, message.head["dtype"]).reshape(arr.shape[:2])
            seen(np.isnan(image[:, 0]))
            if message.head["exact"]:
                done.set()

    pictures, _follow = pictures_shown(arr, {}, follow=True)
    session = PageSession(pictures, send, follow=True)
    session.begin()
    done.wait()
    image = session.image()
    mask[...] = session.mask
    session.close()
    return image


def measure(
    name: str,
    compute: Callable[..., Any],
    kind: str,
    path: Path,
    interval: float,
    every: float,
    **options: Any,
) -> None:
    """Record a stream, compute its picture meanwhile, and print the delays."""
    y, x = np.indices((SIDE, SIDE)) - SIDE / 2
    mask = np.hypot(y, x) < SIDE / 8
    first = dict[int, float]()

    def seen(absent: Any) -> None:
        now = time.time()
        for row in np.flatnonzero(~absent).tolist():
            first.setdefault(row, now)

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / ("scan.tpx3" if kind == "tpx3" else "scan.mib")
        with (
            played(kind, path, interval) as (url, sent),
            dask_tiled.record(url, target, **options) as recording,
        ):
            image = compute(recording.array, mask, seen, every)
            recording.wait()
            nbytes = recording.progress.nbytes
        finished = (dask_tiled.open_dataset(target, **options) * mask).sum((2, 3)).compute()
    assert image.dtype == finished.dtype
    assert (image == finished).all()
    begun = min(first.values())
    delays = np.array([first[row] - time for row, time in enumerate(sent) if time > begun])
    achieved = nbytes * (1 - 1 / len(sent)) / (sent[-1] - sent[0])
    half, most, worst = 1e3 * np.quantile(delays, [0.5, 0.95, 1])
    print(
        f"{name:12} {len(sent)} rows at {achieved / 1e6:4.0f} MB/s; first row after"
        f" {begun - sent[0]:.2f} s, then {half:4.0f} ms (median), {most:4.0f} ms (95 %),"
        f" {worst:4.0f} ms (most) for {len(delays)} rows; equal"
    )


def main() -> None:
    """Run the benchmark for ``progressive`` and for the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--detector", default="merlin", choices=["merlin", "tpx3"])
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two states")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    ways = ("progressive", by_progressive), ("page", by_page)
    with tempfile.TemporaryDirectory() as folder:
        if args.detector == "tpx3":
            rows = max(2, round(args.seconds / FRAME_TIME / COLUMNS))
            path, interval = Path(folder) / "played.txt", FRAME_TIME
            path.write_text(f"{rows} {round(args.rate * 1e6 * FRAME_TIME / 8)}")
            options: dict[str, Any] = {"frame_time": FRAME_TIME, "nav_shape": (rows, COLUMNS)}
        else:
            interval, options = 2 * SIDE**2 / (args.rate * 1e6), {}
            rows = max(2, round(args.seconds / interval / COLUMNS))
            row = np.random.default_rng(0).poisson(3, (1, COLUMNS, SIDE, SIDE)).astype("u2")
            scan = np.broadcast_to(row, (rows, COLUMNS, SIDE, SIDE))
            path = write_mib(Path(folder) / "played.mib", scan)
        for name, compute in ways:
            measure(name, compute, args.detector, path, interval, args.every, **options)


if __name__ == "__main__":
    main()
