"""Delay of live results: from the last frame of a row, as it is sent, to its pixels in a picture.

Run ``python benchmarks/live_results.py [--rate 200] [--seconds 10] [--every 0.05]``: a process
plays a Merlin detector with frames of 256 x 256 pixels, at a rate in MB/s, to ``record``. The
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
PLAYER = """
import json, sys, time
from pathlib import Path
from dask_tiled.testing.playing import merlin_messages, sending
path, interval, columns = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
sent = []

def messages():
    for number, message in enumerate(merlin_messages(path)):
        yield message  # the next one is asked for when this one has been sent
        if number and number % columns == 0:
            sent.append(time.time())

with sending(messages, interval=interval) as port:
    print(port, flush=True)
    sys.stdin.readline()
print(json.dumps(sent))
"""


@contextmanager
def played(path: Path, rate: float) -> Iterator[tuple[str, list[float]]]:
    """Play a file in another process; at the end, the list has the times of the ends of rows."""
    interval = 2 * SIDE**2 / rate
    command = [sys.executable, "-c", PLAYER, str(path), str(interval), str(COLUMNS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as player:
        assert player.stdout is not None
        times = list[float]()
        yield f"merlin://127.0.0.1:{int(player.stdout.readline())}", times
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


def measure(name: str, compute: Callable[..., Any], path: Path, rate: float, every: float) -> None:
    """Record a stream, compute its picture meanwhile, and print the delays."""
    y, x = np.indices((SIDE, SIDE)) - SIDE / 2
    mask = np.hypot(y, x) < SIDE / 8
    first = dict[int, float]()

    def seen(absent: Any) -> None:
        now = time.time()
        for row in np.flatnonzero(~absent).tolist():
            first.setdefault(row, now)

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "scan.mib"
        with played(path, rate) as (url, sent), dask_tiled.record(url, target) as recording:
            image = compute(recording.array, mask, seen, every)
            recording.wait()
        finished = (dask_tiled.open_dataset(target) * mask).sum((2, 3)).compute()
    assert image.dtype == finished.dtype
    assert (image == finished).all()
    begun = min(first.values())
    delays = np.array([first[row] - time for row, time in enumerate(sent) if time > begun])
    achieved = (len(sent) - 1) * COLUMNS * 2 * SIDE**2 / (sent[-1] - sent[0])
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
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two states")
    args = parser.parse_args()
    rows = max(2, round(args.rate * 1e6 * args.seconds / (2 * SIDE**2) / COLUMNS))
    rng = np.random.default_rng(0)
    row = rng.poisson(3, (1, COLUMNS, SIDE, SIDE)).astype("u2")
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        scan = np.broadcast_to(row, (rows, COLUMNS, SIDE, SIDE))
        path = write_mib(Path(folder) / "played.mib", scan)
        for name, compute in (("progressive", by_progressive), ("page", by_page)):
            measure(name, compute, path, args.rate * 1e6, args.every)


if __name__ == "__main__":
    main()
