"""A program that changes files at random moments while other processes read them.

``changing_files.py FOLDER RUNS SEED`` prints counts of outcomes. Its two readers, one with threads
and one with a cluster, are child processes that open files and compute repeatedly: a signal ends a
reader, never the program.
"""

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress

import dask
import h5py
import numpy as np
import tifffile
from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from dask_tiled import DatasetError, map_tiles, open_dataset
from dask_tiled.testing import write_mib, write_mrc, write_npy, write_raw

SHAPE, BITS = (48, 256, 256), 7  # sums are exact in float32
SECONDS = 0.25
"""Duration of a reader's computations, unless an error ends them."""
RAW = {"format": "raw", "sig_shape": SHAPE[1:], "chunks": (8, -1, -1)}
RESTS = {"dask-tiled.rest-seconds": 0}


def write_hdf5(path, frames, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("frames", data=frames, chunks=(4, *SHAPE[1:]), **options)


FORMATS = {
    "raw": (write_raw, {"dtype": "u2", **RAW}),
    "raw, big-endian": (lambda path, x: write_raw(path, x.astype(">u2")), {"dtype": ">u2", **RAW}),
    "mib": (lambda path, x: write_mib(path, x, hdr=False), {}),
    "mib, 12 bit": (lambda path, x: write_mib(path, x, kind="R64", depth=12, hdr=False), {}),
    "npy": (write_npy, {}),
    "mrc": (lambda path, x: write_mrc(path, x.astype("f4")), {}),
    "tiff": (lambda path, x: tifffile.imwrite(path, x, metadata=None), {}),
    "tiff, deflate": (lambda path, x: tifffile.imwrite(path, x, compression="zlib"), {}),
    "hdf5": (write_hdf5, {}),
    "hdf5, gzip": (lambda path, x: write_hdf5(path, x, compression="gzip"), {}),
}
SUFFIXES = {"raw": "raw", "mib": "mib", "npy": "npy", "mrc": "mrc", "tiff": "tif", "hdf5": "h5"}
FOLLOWED = {"raw", "raw, big-endian", "mib", "mib, 12 bit"}

JOBS = {
    "compute": lambda x: x,
    "frame": lambda x: x[31],
    "crop": lambda x: x[3:40:2, 5:99, 130:],
    "sums": lambda x: x.sum(axis=(-2, -1)),
    "sum": lambda x: x.sum(axis=0),
    "expression": lambda x: x * 2 + x[::-1],
    "two steps": lambda x: x - x.mean(axis=0),
    "blocks": lambda x: x.map_blocks(turned, dtype=x.dtype) if hasattr(x, "dask") else turned(x),
    "tiles": lambda x: map_tiles(one_more, x) if hasattr(x, "dask") else x + 1,
}


def turned(block):
    return block[:, ::-1]


def one_more(tile, _):
    return tile + 1


# Changes of files


def truncate(path, _, draw):
    os.truncate(path, draw.randrange(os.path.getsize(path)))


def empty(path, *_):
    os.truncate(path, 0)


def write(path, content, mode):
    with open(path, mode, buffering=0) as file:
        file.writelines(content[at : at + (1 << 17)] for at in range(0, len(content), 1 << 17))
        file.truncate()


def rewrite(path, content, _):
    write(path, content, "r+b")


def rewrite_and_put_back(path, content, _):
    """Rewrite a file, then restore its size and time of modification."""
    before = os.stat(path)
    write(path, content[: before.st_size].ljust(before.st_size, b"\0"), "r+b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def write_anew(path, content, _):
    write(path, content, "wb")


def store(path, content, draw):
    """Change part of a file through a memory map."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        at = draw.randrange(max(1, min(len(view), len(content)) - (1 << 20)))
        part = content[at : at + (1 << 20)]
        view[at : at + len(part)] = part


def replace(path, content, _):
    write(path + ".new", content, "wb")
    os.replace(path + ".new", path)


def remove(path, *_):
    os.unlink(path)


def append(path, content, draw):
    with open(path, "ab") as file:
        file.write(content[-draw.randrange(1, 1 << 18) :])


CHANGES = [
    truncate, empty, rewrite, rewrite_and_put_back, write_anew, store, replace, remove, append
]  # fmt: skip


# Readers


def answer(**told):
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def outcome(made, expected):
    """Compute, and return "right", "WRONG" or the error."""
    try:
        found = made.compute()
    except DatasetError as error:
        return type(error).__name__
    except KilledWorker:
        return "a signal"
    except Exception as error:  # noqa: BLE001 - every error is counted
        return f"other: {error!r}"
    same = found.shape == expected.shape and np.allclose(found, expected, rtol=0, atol=0.01)
    return "right" if same else "WRONG"  # a wrong pixel differs by 1 at least, its mean by 1/48


def read(options, job, first):
    """Compute a job until an error, and once more after the change."""
    frames = np.load(first)
    expected = JOBS[job](frames)
    arr = open_dataset(**options)
    made, kept = JOBS[job](arr), arr[5:7].persist()
    answer(opened=True)
    sys.stdin.readline()
    found, stop = [], time.monotonic() + SECONDS
    while time.monotonic() < stop and set(found) <= {"right"}:
        found.append(outcome(made, expected))
    sys.stdin.readline()
    after = outcome(made, expected)
    kept = outcome(kept, frames[5:7])
    answer(found=sorted(set(found)), after=after, kept=kept)


@contextmanager
def workers(kind):
    if kind == "threads":
        yield None
        return
    options = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": ":0"}}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def serve(kind):
    with workers(kind) as client:
        answer(ready=True)
        for line in sys.stdin:
            rests, *told = json.loads(line)
            setting = RESTS if rests else {}
            if client is not None:
                client.run(dask.config.set, {"dask-tiled.rest-seconds": 0 if rests else 60})
            with dask.config.set(setting):
                read(*told)


# The program


class Reader:
    """A reader process, restarted after it died."""

    def __init__(self, kind):
        self.kind = kind
        self.process = None

    def tell(self, line=""):
        with suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def ask(self):
        """Return the next answer, or the signal that ended the process."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        with suppress(BrokenPipeError), self.process as process:
            pass
        code, self.process = process.returncode, None
        return {"found": [signal.Signals(-code).name if code < 0 else f"other: exit {code}"]}

    def start(self):
        if self.process is None:
            command = [sys.executable, "-W", "ignore", __file__, self.kind]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            quiet = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
            self.process = subprocess.Popen(command, env={**os.environ, **quiet}, **pipes)
            assert self.ask() == {"ready": True}

    def begin(self, *told):
        self.tell(json.dumps(told))
        return self.ask()

    def end(self):
        if self.process is not None:
            self.process.communicate(timeout=60)


class Files:
    """Two versions of a file of each format, which differ in every pixel."""

    def __init__(self, folder, draw):
        self.folder, self.draw, self.count = folder, draw, 0
        frames = np.random.default_rng(draw.getrandbits(32)).integers(0, 1 << BITS, SHAPE, "u2")
        self.first = f"{folder}/first.npy"
        np.save(self.first, frames)
        self.contents = {}
        for name, (written, _) in FORMATS.items():
            path, contents = f"{folder}/content.{SUFFIXES[name.partition(',')[0]]}", []
            for version in (frames, frames ^ (1 << BITS) - 1):
                written(path, version)
                with open(path, "rb") as file:
                    contents.append(file.read())
                os.unlink(path)
            self.contents[name] = contents

    def write(self, name):
        self.count += 1
        path = f"{self.folder}/{self.count}.{SUFFIXES[name.partition(',')[0]]}"
        write(path, self.contents[name][0], "wb")
        return path


COUNTS = [
    "runs", "signals", "wrong", "not noticed", "other errors", "typed errors",
    "read while it changed",
]  # fmt: skip


def run(reader, files, *, during, rests):
    """Change a file while a reader computes, and return counts of the outcomes."""
    draw = files.draw
    name, job = draw.choice([*FORMATS]), draw.choice([*JOBS])
    cuts = during and (rests or draw.random() < 0.5)  # would end readers of mapped files by SIGBUS
    change = draw.choice([truncate, empty] if cuts else CHANGES)
    reader.start()
    path = files.write(name)
    options = {"path": path, **FORMATS[name][1]}
    follows = change is append and name in FOLLOWED
    found = reader.begin(rests, options | {"follow": follows}, job, files.first)
    if "opened" in found:
        if during:
            reader.tell()
            time.sleep(draw.uniform(0, SECONDS / 2))
        change(path, files.contents[name][1], draw)
        if not during:
            reader.tell()
        reader.tell()
        found = reader.ask()
    for left in (path, path + ".new"):
        if os.path.exists(left):
            os.unlink(left)
    result = Counter(runs=1)
    told = set(found["found"]) | {found[key] for key in ("after", "kept") if key in found}
    result["signals"] = int(any(x.startswith(("SIG", "a signal")) for x in told))
    result["wrong"] = int("WRONG" in told)
    others = [x for x in told if x.startswith("other")]
    result["other errors"] = len(others)
    result["typed errors"] = int(any(x.endswith("Error") for x in told))
    result["read while it changed"] = int(during and "right" in told)
    result["not noticed"] = int(found.get("after") == "right" and not follows)
    if result["wrong"] or others or result["not noticed"] or (result["signals"] and not rests):
        told = [reader.kind, name, job, change.__name__, f"{during=} {rests=}", found]
        sys.stderr.write(f"{told}\n")
    return result


KINDS = {
    "recent files, changed during tasks": {"during": True, "rests": False},
    "recent files, changed between tasks": {"during": False, "rests": False},
    "files at rest, changed between tasks": {"during": False, "rests": True},
    "files at rest, cut during tasks": {"during": True, "rests": True},
}
SHARES = [5, 2, 1, 2]
"""Runs of each kind per eight runs; the last, which may end in a signal, are additional."""


def main(folder, runs, seed):
    draw = random.Random(seed)  # noqa: S311 - no cryptography
    files, readers = Files(folder, draw), [Reader("threads"), Reader("distributed")]
    for (kind, options), share in zip(KINDS.items(), SHARES, strict=True):
        total = Counter()
        for k in range(runs * share // 8):
            # Workers of a cluster map no files.
            reader = readers[0 if options["during"] and options["rests"] else k % 3 == 2]
            total += run(reader, files, **options)
        answer(**{kind: {key: total[key] for key in COUNTS}})
    for reader in readers:
        reader.end()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
