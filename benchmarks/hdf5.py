"""Compare HDF5 files with raw files and h5py: ratios of times, on the same pixels.

Run ``python benchmarks/hdf5.py``. Below 1, this package is faster. The jobs use detector counts on
two threads, from the page cache:

- opening: the first time, which starts the process that inspects the file, and again; compared with
  h5py, which opens the file and lists the datasets and one chunk index;
- contiguous: the dataset, compared with a raw file of the same bytes;
- deflate, in chunks of a frame and in chunks along all axes, and bitshuffle with LZ4 as detectors
  write it: the dataset, compared with dask over h5py, in the same dask chunks, with or without
  dask's lock, whichever is faster;
- one chunk per frame, sparse counts of several means: sums, one mask and one frame, compared with a
  loop over h5py in one thread, LiberTEM in one process, and fabio if installed. Here ratios are
  speedups of this package on one thread and on two: above 1 it is faster. The times of h5py and
  fabio include opening; this package and LiberTEM have opened the file before.

All are timed in turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import hdf5plugin
import numpy as np

import dask_tiled

SUMS = {"frame sums": (2, 3), "sum over the scan": (0, 1)}
DEFLATED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
FRAME = (1, 1, 256, 256)
CHUNKED = {
    "frame": {"chunks": FRAME} | DEFLATED,
    "all axes": {"chunks": (32, 32, 32, 32)} | DEFLATED,
    "bitshuffle": {"chunks": FRAME} | dict(hdf5plugin.Bitshuffle()),
}

BITSHUFFLE = dict(hdf5plugin.Bitshuffle())
SPARSE = {
    **{f"bitshuffle + LZ4, mean {mean}": (mean, BITSHUFFLE) for mean in (0.01, 0.05, 1, 10)},
    "gzip, mean 1": (1, DEFLATED),
    "Blosc, mean 1": (1, dict(hdf5plugin.Blosc(cname="lz4", shuffle=1))),
    "Zstandard, mean 1": (1, dict(hdf5plugin.Zstd())),
    "bitshuffle + Zstandard, mean 1": (1, dict(hdf5plugin.Bitshuffle(cname="zstd"))),
    "plain chunks, mean 1": (1, {}),
}
"""Mean of the counts, and storage of the chunks, by name."""
PICKED = 17

Run = Callable[[], Any]


def write(folder: Path, mib: int) -> tuple[int, ...]:
    """Write the same counts in every layout."""
    rows = max(32, mib // 4)
    shape = (rows, 32, 256, 256)
    rng = np.random.default_rng(0)
    block = rng.poisson(2, (32, 32, 256, 256)).astype("u2")
    with (
        h5py.File(folder / "counts.h5", "w") as file,
        open(folder / "counts.raw", "wb") as raw,
    ):
        plain = file.create_dataset("contiguous", shape, "u2")
        sets = [file.create_dataset(name, shape, "u2", **how) for name, how in CHUNKED.items()]
        for first in range(0, rows, 32):
            part = np.roll(block, first, axis=-1)[: rows - first]
            raw.write(part.tobytes())
            for dataset in (plain, *sets):
                dataset[first : first + len(part)] = part
    return shape


def turns(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Time functions in turns and return the median of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if k:  # the first round warms up caches
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(folder: Path, shape: tuple[int, ...], repeats: int) -> None:
    """Run the comparison and print a line for each job."""
    path = folder / "counts.h5"
    raw = dask_tiled.open_dataset(
        folder / "counts.raw", "raw", dtype="u2", nav_shape=shape[:2], sig_shape=shape[2:]
    )
    with h5py.File(path, "r", locking=False) as file:
        for name in ("contiguous", *CHUNKED):
            arr = dask_tiled.open_dataset(path, dataset=name)
            others = {"raw": raw}
            if name != "contiguous":
                others = {
                    f"h5py, lock={lock}": da.from_array(file[name], chunks=arr.chunks, lock=lock)
                    for lock in (False, True)
                }
            for job, axes in SUMS.items():
                runs = {k: a.sum(axis=axes).compute for k, a in ({"own": arr} | others).items()}
                found = turns(runs, repeats)
                own = found.pop("own")
                other = min(found, key=found.__getitem__)
                ratio = own / found[other]
                print(f"{name:<12}{job:<20}{ratio:>6.2f} of {other:<18}{1e3 * own:>8.0f} ms")


def loops(path: Path, mask: Any) -> dict[str, dict[str, Run]]:
    """Return frame-by-frame loops of other readers, by reader and job."""

    def h5py_loop(use: Callable[[Any], Any]) -> list[Any]:
        with h5py.File(path, "r", locking=False) as file:
            frames = file["d"]
            return [use(frames[k]) for k in range(len(frames))]

    def h5py_frame() -> Any:
        with h5py.File(path, "r", locking=False) as file:
            return file["d"][PICKED]

    weights = mask.reshape(-1)
    jobs: dict[str, Callable[[Any], Any]] = {
        "sums": np.sum,
        "mask": lambda frame: frame.reshape(-1).astype("f4") @ weights,
    }
    found: dict[str, dict[str, Run]] = {
        "h5py": {k: partial(h5py_loop, use) for k, use in jobs.items()} | {"frame": h5py_frame}
    }
    with suppress(ImportError):
        import fabio

        def fabio_loop(use: Callable[[Any], Any]) -> list[Any]:
            with fabio.open(f"{path}::/d") as image:
                return [use(image.get_frame(k).data) for k in range(image.nframes)]

        def fabio_frame() -> Any:
            with fabio.open(f"{path}::/d") as image:
                return image.get_frame(PICKED).data

        found["fabio"] = {k: partial(fabio_loop, use) for k, use in jobs.items()}
        found["fabio"]["frame"] = fabio_frame
    with suppress(ImportError):
        from libertem.api import Context
        from libertem.executor.inline import InlineJobExecutor
        from libertem.udf.masks import ApplyMasksUDF
        from libertem.udf.raw import PickUDF
        from libertem.udf.sumsigudf import SumSigUDF

        context = Context(executor=InlineJobExecutor(inline_threads=1))
        dataset = context.load("hdf5", path=str(path), ds_path="d")
        roi = np.arange(dataset.shape.nav.size) == PICKED

        def run(udf: Any, name: str = "intensity", where: Any = None) -> Any:
            return np.asarray(context.run_udf(dataset, udf, roi=where)[name].data)

        found["LiberTEM"] = {
            "sums": lambda: run(SumSigUDF()),
            "mask": lambda: run(ApplyMasksUDF(mask_factories=lambda: mask[None], mask_count=1)),
            "frame": lambda: run(PickUDF(), where=roi)[0],
        }
    return found


def compare_loops(folder: Path, frames: int, repeats: int) -> None:
    """Print a line for each storage of sparse counts and each job."""
    rng = np.random.default_rng(0)
    mask = (rng.random((256, 256)) < 0.3).astype("f4")
    for name, (mean, how) in SPARSE.items():
        path = folder / "sparse.h5"
        with h5py.File(path, "w") as file:
            made = file.create_dataset("d", (frames, 256, 256), "u2", chunks=(1, 256, 256), **how)
            for k in range(frames):
                made[k] = rng.poisson(mean, (256, 256))
        arr = dask_tiled.open_dataset(path)
        own: dict[str, Run] = {
            "sums": arr.sum((1, 2)).compute,
            "mask": dask_tiled.tiles.apply_masks(arr, mask).compute,
            "frame": arr[PICKED].compute,
        }
        others = loops(path, mask)
        for job, run in own.items():
            runs = {other: some[job] for other, some in others.items()}
            expected = np.asarray(runs["h5py"]()).reshape(-1)
            np.testing.assert_allclose(np.asarray(run()).reshape(-1), expected, rtol=1e-4)
            for threads in (1, 2):
                runs[f"own {threads}"] = with_threads(run, threads)
            times = turns(runs, repeats)
            one, two = times.pop("own 1"), times.pop("own 2")
            best = min(times, key=times.__getitem__)
            speed = f"{frames * 131072 / one / 1e9:>6.2f} GB/s" if job != "frame" else " " * 11
            ratios = ", ".join(f"{other} {t / one:.2f}" for other, t in times.items())
            print(
                f"{name:<32}{job:<7}{times[best] / one:>6.2f} x on one thread, "
                f"{times[best] / two:>5.2f} on two; {speed}; {ratios}"
            )


def with_threads(run: Run, threads: int) -> Run:
    """Return a job that runs on a number of dask threads."""

    def job() -> Any:
        scheduler = "synchronous" if threads == 1 else "threads"
        with dask.config.set(scheduler=scheduler, num_workers=threads):
            return run()

    return job


def compare_opening(folder: Path, shape: tuple[int, ...], repeats: int) -> None:
    """Print a line for the first opening and one for the next ones."""
    path = folder / "counts.h5"

    def listed() -> None:
        with h5py.File(path, "r", locking=False) as file:
            file.visititems(lambda _, item: (dict(item.attrs), item.shape, item.dtype))
            chunks: list[Any] = []
            file["frame"].id.chunk_iter(chunks.append)

    # Imports all modules beforehand.
    dask_tiled.describe(folder / "counts.raw", "raw", dtype="u2", sig_shape=shape[2:])
    start = time.perf_counter()
    dask_tiled.describe(path, dataset="frame")
    print(
        f"{'opening':<12}{'for the first time':<38}{1e3 * (time.perf_counter() - start):>8.0f} ms"
    )
    runs = {"own": lambda: dask_tiled.describe(path, dataset="frame"), "h5py, listing": listed}
    found = turns(runs, 20 * repeats)
    ratio, own = found["own"] / found["h5py, listing"], 1e3 * found["own"]
    print(f"{'opening':<12}{'again':<20}{ratio:>6.2f} of {'h5py, listing':<18}{own:>8.1f} ms")


def main() -> None:
    """Write the files and run the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="size of the pixels")
    parser.add_argument("--dir", type=Path, help="folder for the temporary files")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hdf5-", dir=args.dir) as folder:
        shape = write(Path(folder), args.mib)
        compare_opening(Path(folder), shape, args.repeats)
        with dask.config.set({"dask-tiled.rest-seconds": 0}):
            compare_loops(Path(folder), 4 * args.mib, args.repeats)
        with dask.config.set(scheduler="threads", num_workers=2):
            compare(Path(folder), shape, args.repeats)


if __name__ == "__main__":
    main()
