"""Throughput of decoders: GB/s of output from a cached buffer, compared with a copy of this size.

Run ``python benchmarks/decoders.py``. It uses one core; compare only numbers of the same table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dask_tiled.kernels.decoding import compiled

OUTPUT = 1 << 20
REPEATS = 300

# Kernel, bytes of a unit, bytes of its pixels, and whether it reads two units. Rows of a rotated
# chip are read backwards.
CASES = {
    "copy 16 bit": ("copy", 2, 2, False),
    "byte swap 16 bit": ("swap2", 2, 2, False),
    "byte swap 32 bit": ("swap4", 4, 4, False),
    "raw 6 and 12 bit": ("swap8", 8, 8, False),
    "raw 1 bit": ("bits", 8, 64, False),
    "raw 1 bit, turned chip": ("bits_reversed", 8, 64, False),
    "raw 6 bit, turned chip": ("copy", 8, 8, False),
    "raw 12 bit, turned chip": ("swap2", 8, 8, False),
    "raw 24 bit": ("join24", 8, 16, True),
    "raw 24 bit, turned chip": ("join24_reversed", 8, 16, True),
}


def median_seconds(job: Callable[[], object]) -> float:
    """Return the median time of a job."""
    job()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def decoder(name: str) -> Callable[[], object]:
    """Return a function that decodes one output."""
    kernel_name, nbytes, out_bytes, two = CASES[name]
    kernel = compiled(f"{kernel_name}")
    units = OUTPUT // out_bytes
    lag = units * nbytes if two else 0
    rng = np.random.default_rng(0)
    # The header of a Merlin frame shifts pixels off numpy's alignment.
    src = np.frombuffer(rng.bytes(384 + units * nbytes + lag), dtype=np.uint8)
    out = np.empty(OUTPUT, np.uint8)
    turned = "turned" in name
    step = -nbytes if turned else nbytes
    starts, dests = np.array([384 + (units - 1) * nbytes * turned]), np.array([0])
    return lambda: kernel(src, starts, step, out, dests, out_bytes, units, nbytes, lag)


def copy() -> Callable[[], object]:
    """Return a function that copies as many bytes."""
    out, other = np.empty(OUTPUT, np.uint8), np.zeros(OUTPUT, np.uint8)
    return lambda: np.copyto(out, other)


def main() -> None:
    """Run the benchmark and print the table."""
    print(f"{'decoder':<26}{'GB/s':>8}{'copy':>8}{'ratio':>8}")
    for name in CASES:
        speed, limit = (OUTPUT / median_seconds(job) / 1e9 for job in (decoder(name), copy()))
        print(f"{name:<26}{speed:>8.1f}{limit:>8.1f}{speed / limit:>8.2f}")


if __name__ == "__main__":
    main()
