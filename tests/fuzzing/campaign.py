"""Trials in child processes, which may die, hang, and use 2 GiB of address space.

All libraries are imported once, before a child is forked, so that the next one starts at once.
A child keeps its state in shared memory and sends its finds through a pipe.
"""

import faulthandler
import gc
import json
import math
import mmap
import os
import pickle
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fuzzing import bounds, structures
from fuzzing.mutators import Mutation
from fuzzing.seeds import seeds_of
from fuzzing.trial import SUMMED, Trial, make, sum_axes, write

ADDRESSES = 2 << 30
LIBRARIES = (
    *("dask.array", "h5py", "hdf5plugin", "imagecodecs", "tifffile", "zarr"),
    *("dask_tiled.engine.run", "dask_tiled.engine.folding"),
)
FIELDS = ("number", "began", "phase", "opened", "refused", "slowest", "peak", "stderr")
STATE = np.dtype([(name, "f8") for name in FIELDS])
AGAIN = {"slow", "memory", "stderr"}
"""Kinds of finds that a busy machine or the first use of a library can cause as well."""


@dataclass
class Find:
    """Behaviour of a mutation that is not allowed."""

    format: str
    number: int
    kind: str
    text: str
    detail: str = ""


@dataclass
class Result:
    """Outcome of the mutations of a format."""

    format: str
    count: int = 0
    opened: int = 0
    refused: int = 0
    slowest: float = 0.0
    peak: int = 0
    finds: list[Find] = field(default_factory=list)
    doubtful: list[Find] = field(default_factory=list)
    """Finds that were not repeated."""


def prepare():
    """Import the libraries that children need, and check the kernels from now on."""
    for name in LIBRARIES:
        __import__(name)
    import dask_tiled
    from dask_tiled.kernels import decoding
    from dask_tiled.kernels.compiling import NOTICE

    dask_tiled.formats()
    NOTICE._is_said, NOTICE._spent = True, -math.inf  # the notice about compiling is no find
    bounds.watch()
    for decoder in bounds.DECODERS:
        decoding.compiled(decoder)
    with tempfile.TemporaryDirectory() as folder:
        load_kernels(Path(folder, "pixels.npy"))
    structures.batch("planted", -1, 0)  # hypothesis parses the sources once
    gc.collect()
    gc.freeze()  # pages stay shared with children


def load_kernels(path):
    """Load the kernels of sums and expressions for all children."""
    import dask_tiled

    for dtype in SUMMED:
        np.save(path, np.zeros((3, 4, 8), dtype))
        arr = dask_tiled.open_dataset(path)
        for axis in sum_axes(arr.ndim):
            arr.sum(axis=axis).compute(scheduler="synchronous")
        (arr // 3 > 7).any(axis=(0, 1)).compute(scheduler="synchronous")


def in_a_child(function):
    """Call a function in a child process, which takes its side effects along; return the result."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                pickle.dump(function(), file)
                file.flush()
                code = 0
            except BaseException:  # noqa: BLE001 - the child ends here
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError("a child that makes files failed")
        file.seek(0)
        return pickle.load(file)


class Campaign:
    """Runner of the mutations ``numbers`` of a format, in one child after the other."""

    def __init__(self, format, seed_number, numbers, others, *, patience, seeds=None):
        self.format, self.seed_number, self.others = format, seed_number, others
        self.numbers, self.patience = list(numbers), patience
        self.seeds = in_a_child(lambda: seeds_of(format)) if seeds is None else seeds
        self.result = Result(format, len(self.numbers))
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared_memory()))
        self._state = np.frombuffer(mmap.mmap(-1, STATE.itemsize), STATE)
        self._next = 0
        self._pid = self._pipe = None
        self._unread = b""

    def repeated(self, numbers):
        """Return a campaign that repeats some of the mutations."""
        return Campaign(
            self.format, self.seed_number, numbers, self.others,
            patience=self.patience, seeds=self.seeds,
        )  # fmt: skip

    def start(self):
        """Start a child for the remaining mutations; return whether there are any."""
        if self._next >= len(self.numbers):
            return False
        read, write_end = os.pipe()
        # A child that ends while it warms up counts as a find of the first mutation.
        first = self.numbers[self._next]
        self._state["number"], self._state["phase"] = first, 0
        self._state["began"] = time.monotonic()
        self._pid = os.fork()
        if not self._pid:
            os.close(read)
            code = 1
            try:
                self._work(write_end)
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        os.close(write_end)
        os.set_blocking(read, False)
        self._pipe, self._unread = read, b""
        return True

    def poll(self):
        """Receive the finds of the child; return whether it is still running."""
        self._take()
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        state = self._state[0]
        if not pid:
            if time.monotonic() - state["began"] < self.patience:
                return True
            os.kill(self._pid, signal.SIGKILL)
            pid, status = os.waitpid(self._pid, 0)
            self._lost("hang", f"no end after {self.patience} s")
        elif status:
            code = os.waitstatus_to_exitcode(status)
            self._lost("death", signal.Signals(-code).name if code < 0 else f"exit code {code}")
        else:
            self._next = len(self.numbers)
        self._take()
        os.close(self._pipe)
        return False

    def close(self):
        """Remove the files; return the result."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("opened", "refused"):
            setattr(self.result, name, int(self._state[name][0]))
        self.result.slowest = float(self._state["slowest"][0])
        self.result.peak = int(self._state["peak"][0])
        return self.result

    def _lost(self, kind, text):
        number, phase = int(self._state["number"][0]), int(self._state["phase"][0])
        during = ("before opening", "at opening", "after opening")[phase]
        detail = self.folder / "stderr"
        printed = detail.read_text(errors="replace")[-3000:] if detail.exists() else ""
        self.result.finds.append(Find(self.format, number, kind, f"{text}, {during}", printed))
        self._next = self.numbers.index(number) + 1

    def _take(self):
        while select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, 1 << 16)
            if not data:
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            self.result.finds += [Find(self.format, **json.loads(one)) for one in lines]

    # In the child

    def _work(self, pipe):
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        stderr = os.open(self.folder / "stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        faulthandler.enable(file=2)
        self._warm_up()
        for number in self.numbers[self._next :]:
            outcome = self.attempt(number)
            length = os.fstat(stderr).st_size
            if length:
                words = os.pread(stderr, 2000, 0).decode(errors="replace")
                outcome.finds.append(("stderr", words))
                os.ftruncate(stderr, 0)
                os.lseek(stderr, 0, os.SEEK_SET)
            for kind, text in outcome.finds:
                find = {"number": number, "kind": kind, "text": text, "detail": outcome.error}
                os.write(pipe, json.dumps(find).encode() + b"\n")
            state = self._state[0]
            state["opened" if outcome.opened else "refused"] += 1
            if all(kind not in AGAIN for kind, _ in outcome.finds):
                state["slowest"] = max(state["slowest"], outcome.seconds)
                state["peak"] = max(state["peak"], outcome.memory)

    def _warm_up(self):
        """Run whole files first: nothing that is loaded or printed for the first time is a find."""
        seed = self.seeds[0]
        for content in (None, *self.others):
            files = {name: content or whole for name, whole in seed.files.items()}
            self._try(seed, Mutation(files), random.Random(0))
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)

    def attempt(self, number):
        """Run one mutation in this process."""
        state = self._state[0]
        state["number"], state["phase"], state["began"] = number, 0, time.monotonic()
        return self._try(*make(self.format, self.seed_number, number, self.seeds, self.others))

    def _try(self, seed, mutation, rng):
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        write(folder, seed, mutation.files, self.folder / "whole")

        def phase(value):
            self._state[0]["phase"] = value

        outcome = Trial(seed, mutation, rng, folder, phase).run()
        shutil.rmtree(folder)
        return outcome


def shared_memory():
    """Return a folder in memory, or None."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - names are unique


def samples():
    """Return files of some formats, which mutations put in the place of other files."""
    made = [
        written_head(name) for name in ("npy C", "mrc i2", "tiff", "hdf5", "nrrd", "zarr", "gis")
    ]
    return [b"", b"words", b"<a/>", b"{}", bytes(4096), *made]


def written_head(name):
    from fuzzing.seeds import written

    return next(iter(written(name).files.values()))[: 1 << 16]


def run(formats, seed_number, numbers, *, patience=60, jobs=2, report=None):
    """Run the mutations of formats, ``jobs`` at a time; return the results."""
    others = in_a_child(samples)
    waiting, running, results = list(formats), [], []
    while waiting or running:
        while waiting and len(running) < jobs:
            campaign = Campaign(waiting.pop(0), seed_number, numbers, others, patience=patience)
            campaign.start()
            running.append(campaign)
        for campaign in list(running):
            if not campaign.poll() and not campaign.start():
                running.remove(campaign)
                result = confirmed(campaign)
                results.append(result)
                if report is not None:
                    report(result)
        time.sleep(0.01)
    return results


def confirmed(campaign):
    """Close a campaign; drop finds of the kinds in ``AGAIN`` unless three repetitions show them."""
    result = campaign.close()
    found = result.finds
    for _ in range(3):
        suspects = sorted({find.number for find in result.finds if find.kind in AGAIN})
        if not suspects:
            break
        again = campaign.repeated(suspects)
        while again.start():
            while again.poll():
                time.sleep(0.01)
        repeated = {(find.number, find.kind) for find in again.close().finds}
        result.finds = [
            find
            for find in result.finds
            if find.kind not in AGAIN or (find.number, find.kind) in repeated
        ]
        result.slowest = max(result.slowest, again.result.slowest)
        result.peak = max(result.peak, again.result.peak)
    result.doubtful = [find for find in found if find not in result.finds]
    return result


def kinds(result):
    """Count the finds of each kind."""
    return Counter(find.kind for find in result.finds)
