"""Batches of samples for training, in a reproducible order, read ahead."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import dask.array as da
import numpy as np

from dask_tiled.blocks.ahead import AHEAD_BYTES, read_ahead
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.inputs import is_array
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.describing import describe
from dask_tiled.training.arrays import arrays_of, take

Batch = dict[str, Any]

Shuffle = Literal["pages", "all", False]
PAGE_BYTES = 8 << 20
"""Bytes of a page: consecutive samples that are read together."""
PAGES = 8
"""Number of pages whose samples are shuffled together."""
OBJECT_BYTES = 1 << 16
"""Assumed bytes of an object that is not computed yet."""


def iter_batches(
    fields: Mapping[str, Any] | str | os.PathLike[str],
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    drop_last: bool = False,
    prefetch: int = 2,
    max_bytes: int = AHEAD_BYTES,
) -> Generator[Batch]:
    """Iterate over samples in batches, while threads read the next ones.

    Parameters
    ----------
    fields : mapping of str to array, Dataset of xarray, or path
        Arrays of one length, of dask, of xarray or in memory, with samples along the first
        axis; or a sample file, of which all fields are read.
    batch_size : int
        Samples of a batch; the last batch may have fewer.
    shuffle : {"pages", "all", False}
        "all" shuffles the samples; "pages" shuffles pages of consecutive samples,
        some 8 MiB each, and then the samples of every eight pages,
        so that files are read in large pieces.
    seed, epoch : int
        Random seed and number of the epoch; the order depends on these two numbers only.
    start : int
        Number of the first batch, to resume an epoch.
    drop_last : bool
        Leave out a last batch of fewer samples.
    prefetch : int
        Number of parts of the epoch that are read ahead, and of threads; 0 for none.
    max_bytes : int
        Limit in bytes of the memory for samples, unless a batch is larger.

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
    """
    arrays = _arrays(fields)
    size = check_whole("batch_size", batch_size, least=1)
    first = size * check_whole("start", start, least=0)
    prefetch = check_whole("prefetch", prefetch, least=0)
    limit = check_whole("max_bytes", max_bytes, least=0)
    sample = max(1, sum(map(_sample_bytes, arrays.values())))
    chance = [check_whole("seed", seed, least=0), check_whole("epoch", epoch, least=0)]
    count = len(next(iter(arrays.values())))
    order = _order(count, shuffle, sample, chance)
    order = order[: count - count % size if drop_last else count][first:]
    # Memory holds the part in use, the waiting one, and those that are read.
    part = max(1, min(limit, PAGES * PAGE_BYTES) // (prefetch + 2) // (sample * size)) * size
    jobs = (_Part(arrays, order[at : at + part], size, sample) for at in range(0, len(order), part))
    return _flat(read_ahead(jobs, prefetch, limit))


def _flat(parts: Generator[Iterator[Batch]]) -> Generator[Batch]:
    with closing(parts):
        yield from chain.from_iterable(parts)


def _arrays(fields: Any) -> dict[str, Any]:
    if isinstance(fields, (str, os.PathLike)):
        names = describe(fields, "beton").metadata["beton"]["fields"]
        return {name: open_dataset(fields, "beton", field=name) for name in names}
    if not isinstance(fields, Mapping) or not fields:
        expected = "arrays by name, or the path of a sample file"
        raise DatasetError("no samples", expected=expected, found=type(fields).__name__)
    return arrays_of(
        {name: arr if is_array(arr) else np.asarray(arr) for name, arr in fields.items()}
    )


def _sample_bytes(arr: Any) -> int:
    """Return the bytes of a sample; for objects their mean, or a guess."""
    pixel = arr.dtype.itemsize
    if isinstance(arr, da.Array) and arr.dtype.hasobject:
        desc = description_of(arr)
        pixel = OBJECT_BYTES if desc is None else desc.layout.object_bytes
    return math.prod(arr.shape[1:]) * pixel


def _order(count: int, shuffle: Any, sample: int, chance: list[int]) -> Index:
    """Return the sample numbers in the order of an epoch."""
    if shuffle is not False and not (isinstance(shuffle, str) and shuffle in get_args(Shuffle)):
        raise DatasetError("invalid shuffle", expected=get_args(Shuffle), found=repr(shuffle))
    if not shuffle:
        return np.arange(count)
    rng = np.random.default_rng(chance)
    if shuffle == "all":
        return rng.permutation(count)
    page = max(1, PAGE_BYTES // sample)
    starts = rng.permutation(np.arange(0, count, page))
    groups = [starts[at : at + PAGES] for at in range(0, len(starts), PAGES)]
    parts = [
        rng.permutation(np.concatenate([np.arange(a, min(a + page, count)) for a in group]))
        for group in groups
    ]
    return np.concatenate(parts) if parts else np.arange(0)


class _Part(NamedTuple):
    """Batches that are read together."""

    arrays: Mapping[str, Any]
    numbers: Index
    size: int
    sample: int

    @property
    def nbytes(self) -> int:
        return len(self.numbers) * self.sample

    def compute(self) -> Iterator[Batch]:
        values = take([*self.arrays.values()], self.numbers, "synchronous")
        cut = [slice(at, at + self.size) for at in range(0, len(self.numbers), self.size)]
        named = [*zip(self.arrays, values, strict=True)]
        return iter([{name: _batch(column[some]) for name, column in named} for some in cut])


def _batch(values: Array) -> Any:
    if values.dtype.hasobject:
        return values.tolist()
    return values if values.flags.writeable else values.copy()
