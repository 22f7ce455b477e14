"""Jobs that compute and encode samples, from arrays or data sets, in any thread or process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import annotate, get_annotations
from dask.local import get_sync

from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.completing import complete
from dask_tiled.errors import DatasetError
from dask_tiled.model.indexing import Index
from dask_tiled.plans.tasks import Key
from dask_tiled.training.arrays import take
from dask_tiled.training.fields import Column, Encoders, Values

MOST_SAMPLES = 64
"""Maximum number of samples of unknown size that are encoded at a time."""


class EncodingJob(NamedTuple):
    """Samples to compute and encode."""

    encoders: Encoders
    numbers: Index
    """Their numbers in the source."""
    places: Index
    """Their numbers in the written file."""
    nbytes: int
    """Their size in bytes; 0 if unknown."""
    load: Callable[[], Sequence[Values]]
    """Return the values, field by field."""

    def compute(self) -> tuple[Index, list[Column]]:
        """Return the places and encoded columns."""
        with _computing(self.numbers):
            values = self.load()
        places = self.places.tolist()
        encoded = [*zip(self.encoders.items(), values, strict=True)]
        try:
            return self.places, [encode(column, places) for (_, encode), column in encoded]
        except Exception:
            for k, number in enumerate(self.numbers):
                for (field, encode), column in encoded:
                    try:
                        encode(column[k : k + 1], places[k : k + 1])
                    except Exception as error:
                        raise _failed(number, error, field.name) from error
            raise


class ClusterJob(NamedTuple):
    """Samples that a worker of a cluster computes and encodes."""

    encoders: Encoders
    numbers: Index
    places: Index
    nbytes: int
    parts: Sequence[Any]
    """Arrays of the samples from the first number to the last one."""
    annotations: Mapping[str, Any]

    def compute(self) -> tuple[Index, list[Column]]:
        """Return the places and encoded columns; if a worker fails, others try again."""
        encode = partial(_encode, self.encoders, self.numbers, self.places)
        axes, arguments = count(1), list[Any]()
        for part in self.parts:
            arr = part if isinstance(part, da.Array) else da.from_array(part, part.shape)
            arguments += [arr, [next(axes) for _ in range(arr.ndim)]]
        name = f"to-beton-{uuid.uuid4().hex}"  # unique, so that no cache reuses the result
        options = {"concatenate": True, "new_axes": {0: 1}, "meta": np.empty(0, object)}
        encoded = da.blockwise(encode, [0], *arguments, name=name, **options)
        found: list[tuple[Index, list[Column]]] = []

        def take_result(_: Key, result: Any) -> None:
            found.append(result)

        with annotate(**self.annotations), _computing(self.numbers):
            complete(encoded, [(name, 0)], done=lambda _: None, take=take_result)
        return found[0]


def _encode(
    encoders: Encoders, numbers: Index, places: Index, *parts: Any
) -> tuple[Index, list[Column]]:
    load = partial(take, parts, numbers - numbers[0], get_sync, views=True)
    return EncodingJob(encoders, numbers, places, 0, load).compute()


@contextmanager
def _computing(numbers: Index) -> Iterator[None]:
    """Name the samples in errors of their computation."""
    try:
        yield
    except (DatasetError, CancelledError):
        raise
    except Exception as error:
        where = f"samples {numbers[0]} to {numbers[-1]}"
        failed = DatasetError("the samples cannot be computed", where=where, found=repr(error))
        for note in getattr(error, "__notes__", ()):  # names of workers
            failed.add_note(note)
        raise failed from error


def _failed(number: int, error: Exception, name: str | None = None) -> DatasetError:
    where = f"sample {number}" + (f", field {name!r}" if name is not None else "")
    return DatasetError("a sample cannot be written", where=where, found=repr(error))


def array_jobs(
    arrays: Mapping[str, Any], encoders: Encoders, order: Index, most: int, *, on_workers: bool
) -> Iterator[EncodingJob | ClusterJob]:
    """Yield jobs for arrays, chunk by chunk; samples are written at their places in the order.

    Chunks are those of the dask array with the most bytes, divided where that reads nothing twice;
    if all are in memory, of `most` bytes.
    ``on_workers``: whether workers of a cluster compute and encode.
    """
    annotations = get_annotations()  # threads that compute jobs have none
    ranked = np.argsort(order, kind="stable")
    ascending = order[ranked]
    some = [arrays[field.name] for field in encoders]
    # No chunk ends inside a sample.
    whole = [
        aligned(arr, (1, *arr.shape[1:])) if isinstance(arr, da.Array) else arr for arr in some
    ]
    lazy = [arr for arr in whole if isinstance(arr, da.Array)]
    total = len(whole[0])
    sample = sum(int(arr.nbytes) for arr in whole) // max(1, total)
    if lazy:
        edges = np.cumsum((0, *max(lazy, key=lambda arr: arr.nbytes).chunks[0]))
    else:
        unknown = any(arr.dtype.hasobject for arr in whole)
        step = MOST_SAMPLES if unknown else max(1, most // max(1, sample))
        edges = np.append(np.arange(0, total, step), total)
    cuts = np.searchsorted(ascending, edges)
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low < high:
            numbers = ascending[low:high]
            first, stop = int(numbers[0]), int(numbers[-1]) + 1
            parts = [arr[first:stop] for arr in whole]
            given = encoders, numbers, ranked[low:high], (stop - first) * sample
            if on_workers and lazy:
                yield ClusterJob(*given, parts, annotations)
            else:
                load = partial(take, parts, numbers - first, get_sync, views=True)
                yield EncodingJob(*given, load)


def dataset_jobs(
    dataset: Any, encoders: Encoders, order: Index, mean: Callable[[], int], most: int
) -> Iterator[EncodingJob]:
    """Yield jobs for a data set in the given order, of about `most` bytes each.

    ``mean()`` returns the mean bytes of the samples written so far; 0 before the first.
    """
    names = [field.name for field in encoders]
    first = 0
    while first < len(order):
        size = mean()
        length = max(1, min(MOST_SAMPLES, most // size)) if size else 1
        places = np.arange(first, min(first + length, len(order)))
        numbers = order[places]
        load = partial(_items, dataset, names, numbers.tolist())
        yield EncodingJob(encoders, numbers, places, 0, load)
        first += length


def _items(dataset: Any, names: Sequence[str], numbers: Sequence[int]) -> list[Values]:
    rows = []
    for number in numbers:
        try:
            rows.append(_values(dataset[number], names))
        except Exception as error:
            raise _failed(number, error) from error
    return list(zip(*rows, strict=True))


def _values(sample: Any, names: Sequence[str]) -> list[Any]:
    """Return the values of a sample, by name or in the order of the fields."""
    if isinstance(sample, Mapping):
        return [sample[name] for name in names]
    values = list(sample) if isinstance(sample, (tuple, list)) else [sample]
    if len(values) != len(names):
        raise ValueError(f"{len(values)} values, not {len(names)}")
    return values
