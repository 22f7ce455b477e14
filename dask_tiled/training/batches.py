"""Batches of samples for training, in a reproducible order, read ahead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.blocks.ahead import AHEAD_BYTES, read_ahead
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.model.indexing import Index
from dask_tiled.training.arrays import Make
from dask_tiled.training.order import PAGE_BYTES, Shuffle, Tail, part_of, shuffled
from dask_tiled.training.patches import Edges, Patches
from dask_tiled.training.scans import Batch, SampleSet


def iter_batches(
    source: Any,
    batch_size: int,
    *,
    samples: str | Sequence[str] = "frame",
    patch: Mapping[str, int] | None = None,
    overlap: Mapping[str, int] | None = None,
    edges: Edges = "shift",
    fields: Sequence[str] | None = None,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    part: tuple[int, int] | None = None,
    tail: Tail = "pad",
    start: int = 0,
    drop_last: bool = False,
    share: bool = True,
    prefetch: int = 2,
    max_bytes: int = AHEAD_BYTES,
    **options: Any,
) -> Generator[Batch]:
    """Iterate over samples in batches, while threads read the next ones.

    Parameters
    ----------
    source : array, path, list of them, catalogue, or mapping of str to these
        One or several scans, which may differ in length: arrays of dask or xarray, paths, or rows
        of a catalogue. Their field is called "frame", unless the source is a mapping, which names
        the fields. A sample file has fields of its own.

        In a mapping, arrays in memory stand beside scans: labels of the shape of a scan, or one for
        each sample; a list with an array for each scan, or one array for the samples of
        all scans. A function is called with each batch, and returns a value for each sample.
        Without a scan, the first axis of all arrays counts samples. Strings in a list are values
        there; paths in it are of pathlib.
    batch_size : int
        Samples of a batch; the last batch may have fewer.
    samples : {"frame", "row", "volume"} or names of axes
        The axes that count samples: those before the axes of a frame; the same without the last
        one, so that a sample is a row of a scan; none, so that each scan is a sample; or axes by
        name.
    patch : mapping of str to int, optional
        Sizes of patches along named axes, to take parts of frames, or neighbours in a scan, as
        samples: ``{"y": 64, "x": 64}``, ``{"scan_y": 3, "scan_x": 3}``. Labels of the shape of
        the scan, or of its frames, are cut alike. There is one more field, "start": the first
        position of a patch along each axis that counts samples.
    overlap : mapping of str to int, optional
        Common positions of neighbouring patches along named axes; by default none.
    edges : {"shift", "drop"}
        The last patch of an axis that would reach over its end: moved back to end there, so that
        all pixels belong to a patch, or left out.
    fields : sequence of str, optional
        Fields of a batch; by default those of the source. Every source also has "index", the
        number of the sample, "scan", the number of its scan, and "position", its coordinates
        in that scan, or those of the middle of a patch, in the units of the axes.
    shuffle : {"pages", "all", False}
        "all" shuffles the samples; "pages" shuffles pages of consecutive samples,
        some 8 MiB each, and then the samples of every eight pages,
        so that files are read in large pieces.
    seed, epoch : int
        Random seed and number of the epoch; the order depends on these two numbers
        and on the source, whichever fields are read.
    part : (int, int), optional
        The part of the epoch to iterate over, and the number of parts, such as the rank
        and the number of processes of a distributed training; by default the whole.
    tail : {"pad", "drop", "keep"}
        If the parts would differ in length: "pad" repeats the first samples of the epoch, "drop"
        leaves out the last ones, and "keep" gives some parts one sample more.
    start : int
        Number of the first batch, to resume an epoch.
    drop_last : bool
        Leave out a last batch of fewer samples.
    share : bool
        In a worker of a DataLoader of PyTorch, read the worker's share of the batches of the part;
        otherwise each worker reads all of them, for statistics.
    prefetch : int
        Number of parts of the epoch that are read ahead, and of threads; 0 for none.
    max_bytes : int
        Limit in bytes of the memory for samples, unless a batch is larger.
    **options
        Options of :func:`open_dataset`, for each path; refused if the source has none.

    Returns
    -------
    iterator of dict of str to array or list
        The samples of each field; for objects, such as bytes or images of
        several sizes, a list.

    Raises
    ------
    DatasetError, TilingError
        The arguments are invalid or inconsistent.

    Examples
    --------
    >>> import dask_tiled
    >>> batches = dask_tiled.iter_batches(dask_tiled.samples.shapes(), 16, shuffle="all", seed=1)
    >>> next(batches)["image"].shape
    (16, 32, 32, 3)
    >>> scan = dask_tiled.samples.gold()
    >>> batch = next(dask_tiled.iter_batches(scan, 8, fields=["frame", "position"]))
    >>> batch["frame"].shape, batch["position"][1]
    ((8, 128, 128), array([0., ...]))
    >>> cells = dask_tiled.samples.cells()
    >>> patches = dask_tiled.iter_batches(cells, 8, patch={"y": 64, "x": 64}, shuffle="all")
    >>> next(patches)["frame"].shape
    (8, 64, 64)
    """
    size = check_whole("batch_size", batch_size, least=1)
    first = check_whole("start", start, least=0)
    prefetch = check_whole("prefetch", prefetch, least=0)
    limit = check_whole("max_bytes", max_bytes, least=0)
    chance = [check_whole("seed", seed, least=0), check_whole("epoch", epoch, least=0)]
    patches = Patches.of(patch, overlap, edges)
    read = SampleSet.of(source, samples, fields, options, patches)
    order = shuffled(len(read), shuffle, read.stored_bytes, chance)
    batches = cut(part_of(order, part or (0, 1), tail), size, drop_last=drop_last)
    if first > len(batches):
        expected = f"at most {len(batches)}, the number of batches"
        raise DatasetError("start is behind the last batch", expected=expected, found=first)
    worker, workers = worker_of_torch() if share else (0, 1)
    return read_batches(read, batches[first + worker :: workers], prefetch, limit)


def worker_of_torch() -> tuple[int, int]:
    """Return the number of this worker of a DataLoader, and of all; (0, 1) elsewhere.

    The DataLoader takes a batch of each worker in turn.
    """
    data: Any = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (0, 1) if info is None else (info.id, info.num_workers)


def cut(order: Index, size: int, *, drop_last: bool) -> list[Index]:
    """Return the sample numbers of each batch.

    Raise a DatasetError if there are too few for a single one.
    """
    stop = len(order) - len(order) % size if drop_last else len(order)
    if not stop and len(order):
        expected = f"at most {len(order)}, or drop_last=False"
        raise DatasetError("batch_size exceeds the samples", expected=expected, found=size)
    return [order[at : at + size] for at in range(0, stop, size)]


def read_batches(
    samples: SampleSet,
    batches: Sequence[Index],
    prefetch: int,
    max_bytes: int,
    memory: Callable[[], Make] = lambda: np.empty,
) -> Generator[Batch]:
    """Read batches of sample numbers, several at a time, ahead in threads.

    ``memory`` returns a function that allocates the samples of a batch that is read alone.
    """
    # Memory holds the part in use, the waiting one, and those that are read.
    nbytes = min(max_bytes // (prefetch + 2), PAGE_BYTES)
    largest = samples.sample_bytes * max(map(len, batches), default=1)
    step = max(1, nbytes // largest)
    parts = (batches[at : at + step] for at in range(0, len(batches), step))
    jobs = (_Part(samples, part, memory) for part in parts)
    return _flat(read_ahead(jobs, prefetch, max_bytes))


def _flat(parts: Generator[Iterator[Batch]]) -> Generator[Batch]:
    with closing(parts):
        yield from chain.from_iterable(parts)


class _Part(NamedTuple):
    """Batches that are read together."""

    samples: SampleSet
    batches: Sequence[Index]
    memory: Callable[[], Make]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.batches)) * self.samples.sample_bytes

    def compute(self) -> Iterator[Batch]:
        make = self.memory() if len(self.batches) == 1 else np.empty
        return iter(self.samples.read(self.batches, make))
