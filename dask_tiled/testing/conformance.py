"""Checks that every format must pass, including formats of other packages."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import numpy as np

from dask_tiled.model.indexing import Array


def check_format(
    path: Any,
    expected: Array,
    *,
    format: str | None = None,
    cuts: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Open a file in many ways and compare what is read with the expected array.

    Parameters
    ----------
    path : path-like or sequence of path-like
        Path, as for :func:`dask_tiled.open_dataset`.
    expected : array
        Expected pixels, with the shape and the native dtype of the dataset.
    format : str, optional
        Name of the format; by default it is detected.
    cuts : int
        Number of random combinations of chunks and slices to read.
    seed : int
        Seed of the random choices.
    **options
        Options of the format.

    Raises
    ------
    AssertionError
        If a result differs; the message names the check.
    """
    from dask_tiled import describe, open_dataset

    desc = describe(path, format, **options)
    _check(desc.shape == expected.shape, f"shape {desc.shape}, not {expected.shape}")
    _check(desc.dtype == expected.dtype, f"dtype {desc.dtype}, not {expected.dtype}")
    _check(len(desc.dims) == len(set(desc.dims)) == expected.ndim, f"dims {desc.dims}")
    _check(pickle.loads(pickle.dumps(desc)) == desc, "the description differs after pickling")
    arr = open_dataset(path, format, **options)
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            result = arr.compute()
        _same(result, expected, f"scheduler {scheduler}")
    _check(result.flags.writeable and result.flags.c_contiguous, "not writeable and C-contiguous")
    again = pickle.loads(pickle.dumps(arr))
    _check(again.name == arr.name, "a different key after pickling")
    _same(again.compute(), expected, "after pickling")
    rng = np.random.default_rng(seed)
    for _ in range(cuts):
        chunks = tuple(int(rng.integers(1, n + 1)) for n in expected.shape)
        index = tuple(_random_index(rng, n) for n in expected.shape)
        cut = open_dataset(path, format, chunks=chunks, **options)[index]
        _same(cut.compute(), expected[index], f"chunks {chunks}, index {index}")


def _random_index(rng: np.random.Generator, size: int) -> int | slice:
    if rng.random() < 0.3:
        return int(rng.integers(-size, size))
    start, stop = sorted(int(n) for n in rng.integers(0, size + 1, 2))
    return slice(start, stop, int(rng.integers(1, 4)))


def _same(result: Array, expected: Array, how: str) -> None:
    _check(result.dtype == expected.dtype, f"{how}: dtype {result.dtype}, not {expected.dtype}")
    np.testing.assert_array_equal(result, expected, err_msg=how)


def _check(holds: bool, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(problem)
