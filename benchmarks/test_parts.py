"""Benchmarks of single parts: ``pytest benchmarks/test_parts.py``, or ``make bench``.

Decoders work on a cached buffer. Operations on chunks run on many chunks, where bad scaling shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tiled
import decoders
from dask_tiled.engine.folding import Kernel
from dask_tiled.kernels.fold_functions import fold_in_place
from dask_tiled.model.requests import IN_MEMORY
from dask_tiled.reading.planning import frame_ranges, region_of
from dask_tiled.testing import write_mib_series

Benchmark = Callable[..., Any]

FRAME = (4, 4)
NAV = {10**5: (250, 400), 10**6: (1000, 1000)}


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a scan in 64 files and return their pattern."""
    folder = tmp_path_factory.mktemp("series")
    frames = np.zeros((64, 64, 64, 64), "u2")
    write_mib_series(folder / "scan", frames, frames_per_file=64, digits=3)
    return folder / "scan001.mib"


@pytest.fixture(scope="session")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a sparse raw file of a million small frames."""
    path = tmp_path_factory.mktemp("sparse") / "frames.raw"
    with path.open("wb") as file:
        file.truncate(10**6 * 2 * FRAME[0] * FRAME[1])
    return path


def many_chunks(path: Path, count: int) -> Any:
    """Open a file with one chunk per frame."""
    return dask_tiled.open_dataset(
        path, "raw", dtype="u2", nav_shape=NAV[count], sig_shape=FRAME, chunks=(1, 1, -1, -1)
    )


@pytest.mark.benchmark(group="1 MiB of pixels in the cache")
@pytest.mark.parametrize("name", ["numpy copy", *decoders.CASES])
def test_decoder(benchmark: Benchmark, name: str) -> None:
    job = decoders.copy() if name == "numpy copy" else decoders.decoder(name)
    job()
    benchmark(job)


@pytest.mark.benchmark(group="products of 1 MiB of pixels in the cache")
@pytest.mark.parametrize("masks", [1, 16])
def test_product(benchmark: Benchmark, masks: int) -> None:
    tile = np.random.default_rng(0).integers(0, 999, (8, 1 << 16)).astype("u2")
    weights, results = np.ones((masks, 1 << 16), "f4"), np.zeros((8, masks))
    name, rows = "dot_frames" if masks == 1 else "dots_frames", np.arange(8)
    call = Kernel(name, rows, results, weights).call(tile.dtype)
    frames = tile.reshape(-1).view("u1"), rows * tile[0].nbytes, rows
    runs = np.zeros(1, np.int64), np.zeros(1, np.int64), tile[0].size, len(tile)
    benchmark(fold_in_place(), call, IN_MEMORY, *frames, *runs)
    assert results.all()


@pytest.mark.benchmark(group="headers")
def test_describe_series(benchmark: Benchmark, series: Path) -> None:
    assert len(benchmark(dask_tiled.describe, series).files) == 64


@pytest.mark.benchmark(group="headers")
def test_open_series(benchmark: Benchmark, series: Path) -> None:
    assert benchmark(dask_tiled.open_dataset, series).shape == (64, 64, 64, 64)


@pytest.mark.benchmark(group="read ranges")
@pytest.mark.parametrize("what", ["chunk", "crop", "pixel"])
def test_plan(benchmark: Benchmark, series: Path, what: str) -> None:
    layout = dask_tiled.describe(series).layout
    sig = {"chunk": ((0, 64), (0, 64)), "crop": ((8, 24), (8, 24)), "pixel": ((8, 9), (8, 9))}
    box = ((0, 64), (0, 64), *sig[what])

    def plan() -> int:
        region = region_of(layout, box)
        return len(list(frame_ranges(layout, region.frames, region.sig)))

    assert benchmark(plan)


@pytest.mark.benchmark(group="graph")
@pytest.mark.parametrize("count", NAV)
def test_open_many_chunks(benchmark: Benchmark, sparse: Path, count: int) -> None:
    assert benchmark(many_chunks, sparse, count).npartitions == count


@pytest.mark.benchmark(group="graph")
@pytest.mark.parametrize("count", NAV)
def test_build_graph(benchmark: Benchmark, sparse: Path, count: int) -> None:
    arr = many_chunks(sparse, count)
    assert benchmark(lambda: arr.copy().dask)


@pytest.mark.benchmark(group="graph")
@pytest.mark.parametrize("count", NAV)
def test_pickle_graph(benchmark: Benchmark, sparse: Path, count: int) -> None:
    graph = many_chunks(sparse, count).dask
    assert len(benchmark(pickle.dumps, graph)) < 100_000


@pytest.mark.benchmark(group="graph")
@pytest.mark.parametrize("count", NAV)
def test_pickle_array(benchmark: Benchmark, sparse: Path, count: int) -> None:
    arr = many_chunks(sparse, count)
    assert len(benchmark(pickle.dumps, arr)) < 100_000


@pytest.mark.benchmark(group="graph")
@pytest.mark.parametrize("count", NAV)
def test_slice_array(benchmark: Benchmark, sparse: Path, count: int) -> None:
    arr = many_chunks(sparse, count)
    assert benchmark(lambda: arr[..., 1, 2]).npartitions == count


@pytest.mark.benchmark(group="one chunk")
@pytest.mark.parametrize("what", ["load and decode", "frame sums", "sum over the scan"])
def test_chunk(benchmark: Benchmark, series: Path, what: str) -> None:
    arr = dask_tiled.open_dataset(series)
    axes = {"frame sums": (2, 3), "sum over the scan": (0, 1)}
    lazy = arr.sum(axis=axes[what]) if what in axes else arr
    lazy.compute(scheduler="synchronous")
    benchmark(lazy.compute, scheduler="synchronous")
