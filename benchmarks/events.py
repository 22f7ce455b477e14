"""Compare sums of Velox event streams on one core with RosettaSciIO, which fills a dense array.

Run ``python benchmarks/events.py [folder] [events in millions]``. RosettaSciIO is left out from
100 million events on.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_tiled
from dask_tiled.testing.velox import END, write_streams

SIDE, CHANNELS, FRAMES = 512, 4096, 8
SUMS: dict[str, Callable[[Any], Any]] = {
    "spectrum": lambda arr: arr.sum(axis=(0, 1)),
    "image": lambda arr: arr.sum(axis=2),
    "map of an element": lambda arr: arr[..., 300:340].sum(axis=2),
}


def write(path: Path, events: float) -> int:
    """Write about `events` events to the stream of one detector."""
    rng = np.random.default_rng(0)
    parts, starts, at = [], [], 0
    for _ in range(FRAMES):
        counts = rng.poisson(events / FRAMES / SIDE**2, SIDE**2) + 1
        words = rng.integers(20, 1500, int(counts.sum()), "<u2")
        words[np.cumsum(counts) - 1] = END
        parts.append(words)
        starts.append(at)
        at += len(words)
    stream = np.concatenate(parts)
    write_streams(path, [(stream, starts)], (SIDE, SIDE, CHANNELS), whole=SIDE)
    return stream.nbytes


def timed(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Return the median time, and the result."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        found.append(time.perf_counter() - start)
    return sorted(found)[times // 2], result


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    events = float(sys.argv[2]) * 1e6 if len(sys.argv) > 2 else 2e7
    path = folder / "events.emd"
    with get_context("spawn").Pool(1) as pool:  # whose memory is not counted
        nbytes = pool.apply(write, (path, events))
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arr = dask_tiled.open_dataset(path)
    with dask.config.set(scheduler="synchronous"):
        sums = {name: make(arr).compute() for name, make in SUMS.items()}
        print(f"opening {timed(lambda: dask_tiled.open_dataset(path))[0] * 1e3:.0f} ms")
        ours = {name: timed(make(arr).compute)[0] for name, make in SUMS.items()}
    for name, seconds in ours.items():
        print(f"{name}: {seconds:.3f} s, {nbytes / seconds / 1e9:.2f} GB/s of the stream on a core")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began
    print(f"memory of opening and sums: {memory >> 10} MiB")
    if events > 1e8:
        return
    from rsciio.emd import file_reader

    def theirs(make: Callable[[Any], Any]) -> Any:
        return make(next(one["data"] for one in file_reader(str(path)) if one["data"].ndim == 3))

    for name, make in SUMS.items():
        seconds, found = timed(partial(theirs, make), 1)
        np.testing.assert_array_equal(found, sums[name])
        print(f"{name}: RosettaSciIO {seconds:.2f} s, {seconds / ours[name]:.0f} times as long")


if __name__ == "__main__":
    main()
