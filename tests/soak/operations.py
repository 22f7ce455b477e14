"""Operations of a soak: work on an array, a fault at the same time, and the allowed outcomes."""

import shutil
import threading
import time
import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import faults
import numpy as np
import zarr
from acquisitions import APPENDED, growing
from judging import FoundError, compare, compare_rested
from samples import TABLE, Versions

from dask_tiled import (
    DatasetError,
    DoubtWarning,
    MissingFramesWarning,
    as_zarr,
    iter_blocks,
    map_tiles,
    open_dataset,
    reduce_tiles,
    to_zarr,
    verify_zarr,
)

# Each function runs on the opened array and on the written pixels, with equal random numbers.


def everything(x, _):
    return x[...]


def part(x, draw):
    cuts = []
    for n in x.shape:
        start, stop = sorted(draw.integers(n + 1, size=2))
        cuts.append(slice(start, max(stop, start + 1), int(draw.integers(1, 4))))
    return x[tuple(cuts)]


def pixel(x, draw):
    return x[(..., *(int(draw.integers(n)) for n in x.shape[-1:]))]


def chosen(x, draw):
    return x[draw.integers(len(x), size=3)]


def backwards(x, draw):
    return np.moveaxis(x[::-1], 0, int(draw.integers(x.ndim)))


def total(x, draw):
    axes = [k for k in range(x.ndim) if draw.random() < 0.6]
    return x.sum(axis=tuple(axes or range(x.ndim)), dtype="c16" if x.dtype.kind == "c" else "f8")


def largest(x, draw):
    x = x.real if x.dtype.kind == "c" else x
    return x.max(axis=int(draw.integers(x.ndim)))


def differences(x, _):
    return (x[1:].astype("f8") - x[:-1]).mean(axis=-1) if x.dtype.kind != "c" else x[1:]


LAZY = (everything, part, pixel, chosen, backwards, total, largest, differences)


def computed(arr, truths, draw, way):
    seed = int(draw.integers(1 << 30))
    scheduler = ["threads", None, None][draw.integers(3)]
    lazy = way(arr, np.random.default_rng(seed))
    found = (
        lazy.persist()[...].compute() if draw.random() < 0.2 else lazy.compute(scheduler=scheduler)
    )
    compare(found, [way(truth, np.random.default_rng(seed)) for truth in truths])


def _doubled(tile, _):
    return tile + tile


def _counted(state, tile, _):
    return state + np.count_nonzero(tile)


def on_tiles(arr, truths, _):
    doubled = map_tiles(_doubled, arr, dtype=arr.dtype)
    compare(doubled.compute(), [truth + truth for truth in truths])
    count = reduce_tiles(arr, init=0, step=_counted, combine=np.add)
    compare(count.compute(), [np.count_nonzero(truth) for truth in truths])


def in_blocks(arr, truths, _):
    found = np.zeros(arr.shape, arr.dtype)
    for block in iter_blocks(arr):
        found[block.where] = block.pixels
    compare(found, truths)


def shown_as_zarr(arr, truths, _):
    compare(as_zarr(arr)[...], truths)


READING = {
    **{way.__name__: partial(computed, way=way) for way in LAZY},
    "on tiles": on_tiles,
    "in blocks": in_blocks,
    "as zarr": shown_as_zarr,
}


class Told:
    """Warnings by thread; ``warnings.catch_warnings`` would mix those of all threads."""

    def __init__(self):
        self.here, self.show = threading.local(), warnings.showwarning
        warnings.showwarning = self._tell
        for category in (DoubtWarning, MissingFramesWarning):
            warnings.simplefilter("ignore", category)

    def _tell(self, message, *args, **kwargs):
        self.here.__dict__.setdefault("messages", []).append(str(message))
        self.show(message, *args, **kwargs)

    def taken(self):
        """Return this thread's warnings since the last call."""
        return self.here.__dict__.pop("messages", [])


TOLD = Told()


@dataclass
class Operation:
    """An operation, drawn from the seed and its number."""

    number: int
    name: str
    work: str
    io: str
    chunks: bool
    fault: str
    phase: str
    delay: float
    draw: np.random.Generator
    fate: np.random.Generator
    """Random numbers of the fault, which runs at the same time as the work."""

    @classmethod
    def of(cls, seed, number, ios, *, full_disks):
        """Draw an operation; the first operations cover all formats, without faults."""
        draw = np.random.default_rng((seed, number))
        names = list(TABLE)
        turn, place = divmod(number, len(names))
        if turn:
            np.random.default_rng((seed, turn, 0)).shuffle(names)
        name = names[place]
        kinds = [*READING] * 2 + ["export"] * 6 + ["follow"] * (8 if name in APPENDED else 0)
        work = kinds[draw.integers(len(kinds))]
        io = ios[draw.integers(len(ios))]
        fault = "none"
        if turn and draw.random() < 0.6:
            some = [*(faults.NOTICED if work == "follow" else faults.CHANGED), *faults.OF_WORKERS]
            if work == "export" and full_disks:
                some += ["disk full"] * 4
            fault = some[draw.integers(len(some))]
        if io == "mmap" and fault in faults.SHORTENED:
            io = "buffered"  # truncating a mapped file ends the process, as documented
        phases = ["between", "computing", "computing"]
        if fault in faults.RENAMED:
            phases.append("opening")
        phase = phases[draw.integers(len(phases))]
        chunks, delay = bool(draw.random() < 0.5), float(draw.exponential(0.05))
        return cls(number, name, work, io, chunks, fault, phase, delay, *draw.spawn(2))

    def __str__(self):
        when = {"opening": "while it is opened", "between": "before it is computed"}
        when = when.get(self.phase, f"{self.delay:.3f} s later")
        happens = "" if self.fault == "none" else f", {self.fault} {when}"
        return f"operation {self.number}: {self.work} of {self.name}, io={self.io}{happens}"


class Run:
    """A running operation, in a folder of its own."""

    def __init__(self, operation, root, disk, cluster):
        self.operation, self.cluster = operation, cluster
        self.versions = Versions.of(root / "samples", operation.name)
        self.folder = root / "operations" / str(operation.number)
        self.disk = disk or self.folder
        self.out = self.disk / f"{operation.number}.zarr"
        alone = len(self.versions.pixels) == 1
        opening = operation.phase == "opening" and not alone
        self.phase = "between" if opening else operation.phase
        self.alone, self.faults = alone, 0
        self.errors = []
        self.lock = threading.Lock()

    def __call__(self):
        """Run the operation.

        Raises
        ------
        FoundError, Exception
            A result or an error that the operation does not allow.
        """
        try:
            self._follow() if self.operation.work == "follow" else self._read()
        finally:
            self.cluster.end(self.operation.number)
            faults.empty(self.disk)
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.rmtree(self.out, ignore_errors=True)

    @contextmanager
    def _allowed(self):
        """Suppress and record errors that the fault explains."""
        fault = self.operation.fault
        try:
            yield
        except FileNotFoundError as error:
            if fault in faults.FAILING:
                self._check_failed_worker(error)
                return
            if fault != "removed" or not self.faults:
                raise
            self.errors.append("FileNotFoundError")
        except (DatasetError, OSError) as error:
            if fault in faults.FAILING:
                self._check_failed_worker(error)
                return
            if not isinstance(error, DatasetError):
                raise
            place = self.disk if fault == "disk full" else self.folder
            named = error.path is not None and error.path.startswith(str(place))
            known = self.faults and fault in {*faults.CHANGED, "disk full"}
            if not known or not named or len(str(error)) > 5000:
                raise
            self.errors.append(type(error).__name__)

    def _check_failed_worker(self, error):
        """Raise an error unless it is of the failing worker, and names the file and the worker."""
        path = getattr(error, "path", None) or getattr(error, "filename", None) or ""
        named = str(path).startswith((str(self.folder), str(self.disk)))
        told = " ".join((str(error), *getattr(error, "__notes__", ())))
        if not self.faults or not named or f"process {self.cluster.failing.pid}" not in told:
            raise error
        self.errors.append(type(error).__name__)

    def _happens(self):
        """Cause the fault."""
        fault, draw = self.operation.fault, self.operation.fate
        if fault == "none" or self.faults:
            return
        if fault in faults.OF_WORKERS:
            self.faults = self.cluster.happen(fault, self.operation.number)
            return
        with self.lock:
            self.faults = 1
            if fault == "disk full":
                faults.fill(self.disk, int(draw.integers(self.versions.truths[0].nbytes + 4096)))
            else:
                self.faults = faults.change(fault, self.folder, self.versions, draw)

    @contextmanager
    def _meanwhile(self, phase):
        """Cause the fault during the block, if this is the operation's phase."""
        if self.phase != phase or self.operation.fault == "none":
            yield
            return
        failed = []

        def later():
            time.sleep(self.operation.delay if phase == "computing" else self.operation.delay / 10)
            try:
                self._happens()
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=later)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if failed:
            raise failed[0]

    def _read(self):
        operation, versions = self.operation, self.versions
        sample = versions.put(self.folder)
        truths = versions.truths if self.phase == "opening" else versions.truths[:1]
        arr = None
        with self._allowed(), self._meanwhile("opening"):
            arr = self._open(sample)
        if self.phase == "between":
            self._happens()
        before = len(self.errors)
        if arr is not None:
            with self._allowed(), self._meanwhile("computing"):
                self._work(arr, truths)
            changed = operation.fault in faults.CHANGED and self.phase == "between"
            if changed and self.alone and operation.work != "part" and len(self.errors) == before:
                raise FoundError("unnoticed", "the file has changed before")
        if self.faults:
            self._afterwards(sample)

    def _open(self, sample):
        chunks = self._chunks(sample) if self.operation.chunks else None
        return open_dataset(**sample.options, io=self.operation.io, chunks=chunks)

    def _chunks(self, sample):
        """Draw chunks of few frames."""
        shape = sample.expected.shape
        nav = shape[: len(shape) - sample.sig_dims]
        most = [int(self.operation.draw.integers(1, min(n, 3) + 1)) for n in nav]
        return (*most, *shape[len(nav) :])

    def _work(self, arr, truths):
        draw = deepcopy(self.operation.draw)  # the same again after a fault, to resume exports
        if self.operation.work == "export":
            self._export(arr, truths, draw)
        else:
            READING[self.operation.work](arr, truths, draw)

    def _export(self, arr, truths, draw):
        layout, options = ["array", "group"][draw.integers(2)], {}
        if draw.random() < 0.8:
            options["chunks"] = self._chunks(self.versions.samples[0])
            if draw.random() < 0.5:
                options["shards"] = tuple(n * int(draw.integers(1, 3)) for n in options["chunks"])
        try:
            to_zarr(arr, self.out, layout=layout, progress=False, **options)
        except BaseException:
            self._look_for_leftovers(f"{self.out.name}.part")  # to be resumed
            raise
        self._look_for_leftovers()
        stored = zarr.open_array(self.out, path=None if layout == "array" else "data", mode="r")
        compare(stored[...], truths)
        if self.operation.fault == "none":
            verify_zarr(self.out, arr, progress=False)

    def _look_for_leftovers(self, *kept):
        beside = [path.name for path in self.disk.iterdir() if path.name.startswith(self.out.name)]
        inside = [path.name for path in self.out.rglob("*partial*")]
        if {*beside} - {self.out.name, *kept} or inside:
            raise FoundError("leftovers", f"an export has left {beside} {inside[:3]}")

    def _afterwards(self, sample):
        """Open the files again, and check what they hold after the fault."""
        fault, versions = self.operation.fault, self.versions
        shutil.rmtree(self.out, ignore_errors=True)
        self.cluster.end(self.operation.number)
        self.cluster.forget_errors()
        faults.empty(self.disk)
        truths = {"replaced": versions.truths[1:], "rewritten": versions.truths[1:]}
        truths["put back"] = truths["rewritten shorter"] = truths["rewritten"]
        truths = truths.get(fault, versions.truths[:1])
        if fault in {"none", "disk full", *faults.OF_WORKERS}:
            self._work(self._open(sample), truths)
            return
        if fault == "removed" and len(versions.pixels) > 1:
            return  # zarr takes a removed chunk for one never written
        with self._allowed():
            arr = open_dataset(**sample.options)
            if fault in {"truncated", "grown"}:
                assert_prefix(arr, truths, sample.sig_dims)
            else:
                compare(arr.compute(), truths)

    def _follow(self):
        """Read or export a file while it grows."""
        operation, versions = self.operation, self.versions
        sample = versions.put(self.folder)
        options, acquisition = growing(sample)
        draw, shape, truths = operation.draw, sample.expected.shape, versions.truths[:1]
        stops = np.sort(draw.integers(acquisition.size // 3, acquisition.size, size=6)).tolist()
        stops.append(acquisition.size)
        pauses = draw.exponential(0.05, len(stops))
        acquisition.write_to(stops[0])
        ended = threading.Event()

        def write():
            for stop, pause in zip(stops, pauses, strict=True):
                time.sleep(pause)
                with self.lock:
                    if self.faults and operation.fault in faults.CHANGED:
                        break
                    acquisition.write_to(stop)
            ended.set()

        exported = draw.random() < 0.4
        writer = threading.Thread(target=write)
        writer.start()
        try:
            arr = self._open_growing(options, shape[: len(shape) - sample.sig_dims], ended)
            with self._allowed(), self._meanwhile("computing"):
                if exported:
                    self._export_growing(arr, options, sample)
                    return
                while not ended.is_set():
                    assert_prefix(arr, truths, sample.sig_dims)
                    arr = arr.refresh()
                arr = arr.refresh()
                assert_prefix(arr, truths, sample.sig_dims)
                if operation.fault not in faults.CHANGED or not self.faults:
                    compare(arr.compute(), truths)
        finally:
            writer.join()

    def _export_growing(self, arr, options, sample):
        """Export growing files, and check the frames that the export reports as missing."""
        nav_shape, most = arr.description.nav_shape, len(arr.description.missing)
        TOLD.taken()
        to_zarr(arr, self.out, follow=True, rest=30, layout="array", progress=False)
        told, absent = TOLD.taken(), 0
        if told:
            if not self.faults:
                raise FoundError("checksums", f"nothing has happened to the files; {told}")
            absent = len(open_dataset(**options, nav_shape=nav_shape).description.missing)
        found = zarr.open_array(self.out, mode="r")[...]
        compare_rested(found, sample.expected, sample.sig_dims, told, most, absent)

    @staticmethod
    def _open_growing(options, nav_shape, ended):
        """Open a file as soon as it has a complete frame."""
        while True:
            last = ended.is_set()
            try:
                return open_dataset(**options, nav_shape=nav_shape)
            except DatasetError:
                if last:
                    raise
                time.sleep(0.01)


def assert_prefix(arr, truths, sig_dims):
    """Compare the present frames of an array with the truths."""
    found, missing = arr.compute(), arr.description.missing
    found = found.reshape(-1, *found.shape[found.ndim - sig_dims :])
    truths = [truth.reshape(-1, *truth.shape[truth.ndim - sig_dims :]) for truth in truths]
    there = np.setdiff1d(np.arange(min(len(found), len(truths[0]))), missing)
    compare(found[there], [truth[there] for truth in truths])
