"""Where the samples of a sample file come from: arrays, data sets that are indexed, tar files."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import compute, get_scheduler

from dask_tiled.array.tiled_array import read_once
from dask_tiled.errors import CorruptFileError, DatasetError, TilingError
from dask_tiled.model.files import read_exactly, read_head
from dask_tiled.model.indexing import Index
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.training.fields import Column, Field

Path = str | os.PathLike[str]


class Batch(NamedTuple):
    """Some samples that are still to be made.

    Attributes
    ----------
    places : int64 array
        Where they go; their numbers in the file that is written.
    nbytes : int
        What they take, if that is known.
    load : callable
        Makes their columns, in any thread or process.
    """

    places: Index
    nbytes: int
    load: Callable[[], list[Column]]


def array_batches(
    arrays: Mapping[str, Any], fields: Sequence[Field], order: Index, most: int
) -> Iterator[Batch]:
    """Go through arrays chunk by chunk, as they lie; samples go where the order has them.

    Chunks are those of the dask array with the most bytes; if all are in memory, of so many bytes.
    """
    options = _scheduler()
    ranked = np.argsort(order, kind="stable")
    ascending = order[ranked]
    whole = [_whole_samples(arrays[field.name]) for field in fields]
    lazy = [arr for arr in whole if isinstance(arr, da.Array)]
    count = len(whole[0])
    sample = sum(arr.nbytes for arr in whole) // max(1, count)
    if lazy:
        edges = np.cumsum((0, *max(lazy, key=lambda arr: arr.nbytes).chunks[0]))
    else:
        unknown = any(arr.dtype.hasobject for arr in whole)
        step = MOST_SAMPLES if unknown else max(1, most // max(1, sample))
        edges = np.append(np.arange(0, count, step), count)
    cuts = np.searchsorted(ascending, edges)
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low < high:
            numbers, places = ascending[low:high], ranked[low:high]
            first, stop = int(numbers[0]), int(numbers[-1]) + 1
            parts = [arr[first:stop] for arr in whole]
            load = partial(_load_arrays, parts, fields, numbers, places, options)
            yield Batch(places, (stop - first) * sample, load)


def _whole_samples(arr: Any) -> Any:
    """Have no chunk end inside a sample."""
    if not isinstance(arr, da.Array):
        return arr
    if np.isnan(arr.shape).any():
        raise TilingError("chunks of unknown size", hint="Call compute_chunk_sizes() first.")
    return read_once(arr.rechunk(dict.fromkeys(range(1, arr.ndim), -1)))


def _scheduler() -> dict[str, Any]:
    """Say what computes: a cluster what is asked of it; else the threads that are there already.

    A worker of a cluster that asked the cluster would wait for itself.
    """
    cluster = getattr(get_scheduler(), "__self__", None) is not None
    return {} if cluster and not on_a_cluster() else {"scheduler": "synchronous"}


def _load_arrays(
    parts: Sequence[Any],
    fields: Sequence[Field],
    numbers: Index,
    places: Index,
    options: Mapping[str, Any],
) -> list[Column]:
    try:
        (found,) = compute([_chunk_of(arr) for arr in parts], **options)
    except DatasetError:
        raise
    except Exception as error:
        where = f"samples {numbers[0]} to {numbers[-1]}"
        raise DatasetError("they cannot be computed", where=where, found=repr(error)) from error
    some = numbers - numbers[0]
    if (np.diff(some) != 1).any():
        found = [values[some] for values in found]
    return _encoded(fields, found, numbers.tolist(), places.tolist())


def _chunk_of(arr: Any) -> Any:
    """Return the only chunk of an array as it is: dask copies what it hands over as an array."""
    one = isinstance(arr, da.Array) and arr.npartitions == 1
    return arr.to_delayed().item() if one else arr


def dataset_batches(
    dataset: Any, fields: Sequence[Field], order: Index, mean: Callable[[], int], most: int
) -> Iterator[Batch]:
    """Go through a data set in the order, a few samples at a time.

    Parameters
    ----------
    mean : callable
        Tells the bytes of a sample, from those that are written already; 0 as long as there are
        none.
    most : int
        Bytes of a batch.
    """
    first = 0
    while first < len(order):
        size = mean()
        count = max(1, min(MOST_SAMPLES, most // size)) if size else 1
        places = np.arange(first, min(first + count, len(order)))
        numbers = order[places].tolist()
        yield Batch(places, 0, partial(_load_samples, dataset, fields, numbers, places.tolist()))
        first += count


MOST_SAMPLES = 64
"""So many samples are made in one go."""


def _load_samples(
    dataset: Any, fields: Sequence[Field], numbers: Sequence[int], places: Sequence[int]
) -> list[Column]:
    rows = []
    for number in numbers:
        try:
            rows.append(_in_order(dataset[number], fields))
        except Exception as error:
            raise _failed(number, error) from error
    columns = list(zip(*rows, strict=True))
    return _encoded(fields, columns, numbers, places)


def _in_order(sample: Any, fields: Sequence[Field]) -> list[Any]:
    """Return the values of a sample, which has them by name or in the order of the fields."""
    if isinstance(sample, Mapping):
        return [sample[field.name] for field in fields]
    values = list(sample) if isinstance(sample, (tuple, list)) else [sample]
    if len(values) != len(fields):
        raise ValueError(f"{len(values)} values, not {len(fields)}")
    return values


def _encoded(
    fields: Sequence[Field], values: Sequence[Any], numbers: Sequence[int], places: Sequence[int]
) -> list[Column]:
    """Encode samples; of those that cannot be, the error names the first."""
    try:
        return [field.encode(some, places) for field, some in zip(fields, values, strict=True)]
    except Exception:
        for k, number in enumerate(numbers):
            for field, some in zip(fields, values, strict=True):
                try:
                    field.encode(some[k : k + 1], places[k : k + 1])
                except Exception as error:
                    raise _failed(number, error, field.name) from error
        raise


def _failed(number: int, error: Exception, name: str | None = None) -> DatasetError:
    where = f"sample {number}" + (f", field {name!r}" if name is not None else "")
    return DatasetError("a sample cannot be written", where=where, found=repr(error))


class TarSamples:
    """Samples in tar files, as WebDataset keeps them: members that share all before the first dot.

    It is a data set: ``samples[i]`` is a dict of bytes by ending, such as ``"jpg"`` and ``"cls"``,
    with the common name as ``"__key__"``.

    Parameters
    ----------
    paths : path or sequence of paths
        Tar files, not compressed.

    Raises
    ------
    DatasetError
        A file is no tar file, is compressed, is damaged, or has a member twice.
    """

    def __init__(self, paths: Path | Sequence[Path]) -> None:
        listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._samples: list[tuple[str, str, dict[str, tuple[int, int]]]] = []
        for one in listed:
            self._index(os.fspath(one))

    def _index(self, path: str) -> None:
        """Find the members of a file, without reading what they hold."""
        last = None
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    folder, name = os.path.split(member.name)
                    stem, dot, ending = name.partition(".")
                    if not member.isreg() or not dot or not stem:
                        continue
                    key = os.path.join(folder, stem)
                    if key != last:
                        self._samples.append((path, key, {}))
                        last = key
                    members, ending = self._samples[-1][2], ending.lower()
                    if ending in members or member.issparse():
                        problem = (
                            "twice the same member" if ending in members else "a sparse member"
                        )
                        raise DatasetError(problem, path=path, where=member.name)
                    members[ending] = member.offset_data, member.size
                # What is no header after the first one ends the file, as the module has it.
                if any(read_head(path, tarfile.BLOCKSIZE, tar.offset)):
                    expected = "a header, or zeros"
                    where = f"byte {tar.offset}"
                    raise CorruptFileError("damaged", path=path, where=where, expected=expected)
        except tarfile.TarError as error:
            hint = "Unpack it if it is compressed."
            raise DatasetError("no tar file", path=path, found=str(error), hint=hint) from error

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        path, key, members = self._samples[number]
        found = {
            ending: read_exactly(path, size, at, f"the member {key}.{ending}") if size else b""
            for ending, (at, size) in members.items()
        }
        return {"__key__": key, **found}
