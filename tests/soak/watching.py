"""Resources of processes over time: descriptors, memory, threads and temporary files."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

LIMITS = {"descriptors": 16, "threads": 16, "RSS MiB": 48, "PSS MiB": 48}
"""Allowed growth of each, along the trend after the warm-up."""
CODE, LOADED = 144, 8000
"""Further MiB allowed while code is still loaded: if the warm-up ends before LOADED operations."""
USUAL = 0.004
"""Further MiB allowed per operation: freed small blocks are not all returned to the system."""
LEAST_SAMPLES = 12


def taken_by(pid):
    """Return the resources of a process; empty if it has ended."""
    with suppress(OSError):
        process = Path(f"/proc/{pid}")
        memory = dict(line.split(":") for line in _lines(process / "smaps_rollup")[1:])
        status = dict(line.split(":", 1) for line in _lines(process / "status"))
        return {
            "descriptors": len([*(process / "fd").iterdir()]),
            "threads": int(status["Threads"]),
            "RSS MiB": int(memory["Rss"].split()[0]) / 1024,
            "PSS MiB": int(memory["Pss"].split()[0]) / 1024,
        }
    return {}


def _lines(path):
    return path.read_text().splitlines()


def files_in(*folders):
    """Return number and size of the files in folders."""
    sizes = []
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                sizes.append(path.lstat().st_size)
    return {"temporary files": len(sizes), "temporary MiB": sum(sizes) / (1 << 20)}


def drift(counts, values):
    """Return the growth of a series: the median of all slopes, times the length (Theil-Sen)."""
    some = np.unique(np.linspace(0, len(counts) - 1, 400).astype(int))
    counts, values = (np.asarray(seen, float)[some] for seen in (counts, values))
    i, j = np.triu_indices(len(counts), 1)
    ahead = counts[j] > counts[i]
    slopes = (values[j] - values[i])[ahead] / (counts[j] - counts[i])[ahead]
    return float(np.median(slopes)) * (counts[-1] - counts[0]) if len(slopes) else 0.0


class Course(threading.Thread):
    """Thread that samples processes at intervals; without one, only others call `sample`."""

    def __init__(self, seconds, look):
        super().__init__(daemon=True)
        self.seconds, self.look = seconds, look
        self.samples, self.ended = [], threading.Event()
        self.lock = threading.Lock()

    def sample(self):
        """Take a sample."""
        with self.lock:
            self.samples.append((time.monotonic(), *self.look()))

    def run(self):
        """Sample until stopped."""
        while not self.ended.wait(self.seconds):
            self.sample()

    def stop(self):
        """Stop sampling."""
        self.ended.set()
        self.join()

    def series(self, warm, who, what):
        """Return operation counts after the warm-up, and the values of one resource."""
        found = [(n, seen[who][what]) for _, n, seen in self.samples if n >= warm and seen.get(who)]
        return ([n for n, _ in found], [value for _, value in found]) if found else ([], [])

    def judge(self, warm, judged):
        """Return the resources that grew more than allowed."""
        grown = {}
        for who in judged:
            for what, least in LIMITS.items():
                counts, values = self.series(warm, who, what)
                limit = least
                if what.endswith("MiB") and counts:
                    limit += USUAL * (counts[-1] - counts[0]) + CODE * (warm < LOADED)
                if len(counts) < LEAST_SAMPLES:
                    grown[f"{what} of the {who}"] = f"has too few samples: {len(counts)}"
                elif drift(counts, values) > limit:
                    grown[f"{what} of the {who}"] = f"{drift(counts, values):+.1f}"
        return grown

    def table(self, warm, rows=12):
        """Return the samples as a table."""
        if not self.samples:
            return "no samples"
        began = self.samples[0][0]
        keys = [(who, what) for who, seen in self.samples[-1][2].items() for what in seen]
        places = np.unique(np.linspace(0, len(self.samples) - 1, rows).astype(int))
        lines = []
        for who, what in keys:
            shown = [self.samples[k][2].get(who, {}).get(what) for k in places]
            numbers = " ".join("     -" if x is None else f"{x:6.0f}" for x in shown)
            counts, values = self.series(warm, who, what)
            grew = f"{drift(counts, values):+8.1f}" if counts else "       -"
            lines.append(f"{f'{who}: {what}':32} {numbers} {grew}")
        head = f"{'seconds':32} " + " ".join(f"{self.samples[k][0] - began:6.0f}" for k in places)
        done = f"{'operations':32} " + " ".join(f"{self.samples[k][1]:6}" for k in places)
        return "\n".join([head + "    grown", done, *lines])
