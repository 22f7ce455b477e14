"""One trial: open damaged files, check the description, and compute some pixels."""

import math
import os
import pickle
import random
import re
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dask_tiled import DatasetError, frame_facts, open_dataset
from dask_tiled.errors import DoubtWarning, MissingFramesWarning
from dask_tiled.reading.reader import pixels_in
from fuzzing import bounds, structures
from fuzzing.mutators import mutate

SLOW = 1.0
"""Seconds that opening may take, without waiting for a core."""
MOST_MEMORY = 200 << 20
"""Bytes that may be used in addition to results."""
WHOLE_BYTES, MOST_CHUNKS = 1 << 20, 64
"""Limits of arrays that are computed as a whole."""
LONGEST_MESSAGE = 4000
SUMMED = (np.dtype("u1"), np.dtype("u2"))
"""Types that are summed: sums of other types would be compiled first."""


@dataclass
class Outcome:
    """Outcome of a trial; ``finds`` are (kind, text) of all that is not allowed."""

    opened: bool = False
    seconds: float = 0.0
    memory: int = 0
    finds: list[tuple[str, str]] = field(default_factory=list)
    error: str = ""


def make(format, seed_number, number, seeds, others):
    """Return the mutation of a number, the same in every run: seeds take turns."""
    rng = random.Random(f"{format} {seed_number} {number}")
    turn, place = divmod(number, structures.SHARE)
    if format in structures.STRUCTURES and place == structures.SHARE - 1:
        return *structures.drawn(format, seed_number, turn, seeds), rng
    seed = seeds[number % len(seeds)]
    return seed, mutate(rng, seed, seeds, others), rng


def write(folder, seed, files, large):
    """Write the files of a seed; large unchanged ones become links."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = large / name
        if content is seed.files.get(name) and len(content) > 1 << 18:
            if not whole.exists():
                whole.parent.mkdir(parents=True, exist_ok=True)
                whole.write_bytes(content)
            os.link(whole, path)
        else:
            path.write_bytes(content)


def reset_peak():
    """Reset the peak of memory; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory()[0]


def memory():
    """Return the resident bytes, now and at the peak since :func:`reset_peak`."""
    with open("/proc/self/status", "rb") as file:
        status = file.read()
    return [int(re.search(rb"%s:\s+(\d+)" % key, status)[1]) << 10 for key in (b"VmRSS", b"VmHWM")]


def waited(pid="self"):
    """Return the seconds that this process and its descendants waited for a core."""
    try:
        nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
        tasks = Path(f"/proc/{pid}/task").iterdir()
        below = [child for task in tasks for child in (task / "children").read_text().split()]
    except (OSError, IndexError, ValueError):  # the process has ended, or /proc is absent
        return 0
    return nanoseconds / 1e9 + sum(map(waited, below))


class Trial:
    """Runner of one mutation; ``phase`` is called with the number of each phase."""

    def __init__(self, seed, mutation, rng, folder, phase):
        self.seed, self.mutation, self.rng, self.folder = seed, mutation, rng, folder
        self.phase = phase
        self.outcome = Outcome()
        self._needed = 0

    def run(self):
        outcome = self.outcome
        bounds.violations.clear()
        before = reset_peak()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._run()
            except DatasetError as error:
                self._judge(error)
            except (FileNotFoundError, PermissionError) as error:
                outcome.error = repr(error)
                if outcome.opened or not error.filename:
                    self._find("error", error)
            except Exception as error:  # noqa: BLE001 - untyped errors are finds
                self._find("error", error)
        outcome.memory = max(0, memory()[1] - before - self._needed)
        if outcome.memory > MOST_MEMORY:
            self._wrong(f"{outcome.memory >> 20} MiB", "memory")
        outcome.finds += [("bounds", text) for text in bounds.violations]
        for warning in caught:
            if not issubclass(warning.category, DoubtWarning | MissingFramesWarning):
                place = f"{os.path.basename(warning.filename)}:{warning.lineno}"
                self._wrong(f"{warning.category.__name__}: {warning.message} [{place}]", "warning")
        return outcome

    def _run(self):
        arr = self._open(self._options())
        self.outcome.opened = True
        self._look(arr)
        if arr.size:
            self._compute(arr)
        if self.rng.random() < 0.15:
            self._compute_facts(arr)

    def _options(self):
        rng, options = self.rng, self.seed.opening(self.folder)
        options["io"] = rng.choice(("auto", "mmap", "buffered"))
        if self.mutation.pixels is not None:
            return options
        if rng.random() < 0.4:
            options["format"] = self.seed.format
        if rng.random() < 0.1:
            options["corrections"] = "dataset"
        elif rng.random() < 0.1:
            options["nav_shape"] = rng.choice(((2, 3), (40,), (1000, 1000)))
        return options

    def _open(self, options):
        self.phase(1)
        start, before = time.perf_counter(), waited()
        try:
            return open_dataset(**options)
        finally:
            queued = max(0, waited() - before)
            self.outcome.seconds = max(0, time.perf_counter() - start - queued)
            self.phase(2)
            if self.outcome.seconds > SLOW:
                self._wrong(f"{self.outcome.seconds:.1f} s to open", "slow")

    def _look(self, arr):
        """Check that a description is valid, printable and picklable."""
        desc = arr.description
        if not all(type(n) is int and n >= 0 for n in arr.shape):
            self._wrong(f"shape {arr.shape}")
        if not all(math.isfinite(axis.scale) and math.isfinite(axis.offset) for axis in desc.axes):
            self._wrong(f"axes {desc.axes}")
        if self.rng.random() < 0.3:
            str(desc)
            desc._repr_html_()
            if pickle.loads(pickle.dumps(desc)) != desc:
                self._wrong("a description that differs from its pickle")

    def _compute(self, arr):
        rng, pixels = self.rng, self.mutation.pixels
        if pixels is None and (arr.nbytes > WHOLE_BYTES or arr.npartitions > MOST_CHUNKS):
            for place in (tuple(slice(n - 1, n) for n in arr.shape), cuts(rng, arr.shape)):
                self._computed(arr[place])
            return
        whole = self._computed(arr)
        if pixels is not None and not same(whole, pixels):
            self._wrong("pixels differ from the changed ones")
        part = cuts(rng, arr.shape)
        if rng.random() < 0.5 and not same(self._computed(arr[part]), whole[part]):
            self._wrong(f"part {part} differs from the whole")
        if arr.dtype in SUMMED and rng.random() < 0.3:
            axis = rng.choice(sum_axes(arr.ndim))
            if not same(self._computed(arr.sum(axis=axis)), whole.sum(axis=axis)):
                self._wrong(f"sum along {axis} differs from NumPy's")
        if arr.dtype in SUMMED and rng.random() < 0.2:
            made = [(some // 3 > 7).any(axis=tuple(range(arr.ndim - 1))) for some in (arr, whole)]
            if not same(self._computed(made[0]), made[1]):
                self._wrong("expression differs from NumPy's")

    def _compute_facts(self, arr):
        try:
            facts = frame_facts(arr)
        except DatasetError:  # the format has none
            return
        if facts.nbytes < WHOLE_BYTES and facts.npartitions <= MOST_CHUNKS:
            self._computed(facts)

    def _computed(self, arr):
        """Compute with dask, or call the function of a task directly, which is faster."""
        self._needed += 2 * arr.nbytes
        source = getattr(arr, "_source", None)
        if source is not None and self.rng.random() < 0.7:
            return pixels_in(source, tuple((0, n) for n in arr.shape))
        return np.asarray(arr.compute(scheduler="synchronous"))

    def _wrong(self, text, kind="wrong"):
        self.outcome.finds.append((kind, text))

    def _judge(self, error):
        """Check that an error names a file in a message of bounded length, and is no converted one.

        Of a format of this package, an error of another type is a defect, although users see it as
        a DatasetError.
        """
        self.outcome.error = f"{type(error).__name__}: {error}"
        if len(str(error)) > LONGEST_MESSAGE:
            text = f"{len(str(error))} characters: {str(error)[:200]}"
            self._wrong(text, "message")
        if error.path is None:
            self._find("no file", error)
        while error is not None and "the format '" not in str(error):
            error = error.__cause__
        if error is not None and not isinstance(error.__cause__, DatasetError | OSError | None):
            self._find("error", error.__cause__)

    def _find(self, kind, error):
        frames = list(traceback.extract_tb(error.__traceback__))
        own = [frame for frame in frames if "dask_tiled" in frame.filename] or frames
        last = own[-1]
        where = f"{Path(last.filename).name}:{last.lineno} {last.name}"
        text = f"{type(error).__name__}: {str(error)[:200]} [{where}]"
        self.outcome.error = "".join(traceback.format_exception(error))
        self._wrong(text, kind)


def sum_axes(ndim):
    """Return axes to sum over: all, the last, all but the last, the first."""
    return None, (-1,), tuple(range(ndim - 1)), (0,)


def cuts(rng, shape):
    """Choose a small box."""
    box = []
    for n in shape:
        start = rng.randrange(n)
        box.append(slice(start, min(n, start + rng.randrange(1, 5)), rng.choice((1, 1, 2))))
    return tuple(box)


def same(a, b):
    """Compare shape, dtype and values; NaN equal NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.hasobject:
        return bool((a == b).all())
    return a.tobytes() == b.tobytes() or (
        a.dtype.kind in "fc" and np.array_equal(a, b, equal_nan=True)
    )
