"""The readers: each opens a scan and returns the jobs it supports, written as its users would.

The argument of a job is the number of the repeat, which selects the frame or the pixel to read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

import dask_tiled
from comparison.cores import core_count
from comparison.file_format import Array, FileFormat, Shape
from comparison.scans import Scan, segments

Jobs = dict[str, Callable[[int], Array]]
Open = Callable[[Scan], Jobs]

OURS = "dask-tiled"


def tiled(scan: Scan) -> Jobs:
    """Return the jobs of dask-tiled."""
    from dask_tiled.tiles import apply_masks, center_of_mass

    arr = dask_tiled.open_dataset(scan.path, nav_shape=scan.nav, **scan.format.options)
    return {
        "scan": lambda _: arr.sum(axis=(0, 1)).compute(),
        "frames": lambda _: arr.sum(axis=(2, 3)).compute(),
        "mask": lambda _: apply_masks(arr, scan.masks[:1]).compute(),
        "masks": lambda _: apply_masks(arr, scan.masks).compute(),
        "com": lambda _: center_of_mass(arr).compute(),
        "pixel": lambda repeat: arr[(..., *scan.pixel(repeat))].compute(),
        "frame": lambda repeat: arr[scan.position(repeat)].compute(),
    }


def plain_jobs(arr: da.Array, scan: Scan, *, flipped: bool = False) -> Jobs:
    """Return the jobs in plain dask, without tiles; masks are applied as a matrix product.

    The scan may be one or two axes of ``arr``; its frames may be upside down.
    """
    nav_axes = tuple(range(arr.ndim - 2))
    sig_axes = (arr.ndim - 2, arr.ndim - 1)
    height = scan.format.sig[0]
    rows = slice(None, None, -1 if flipped else 1)
    y, x = np.indices(scan.format.sig, dtype="f4")
    moments = np.stack([np.ones_like(y), y, x])

    def apply(masks: Array) -> Array:
        product = da.tensordot(arr, masks[:, rows], axes=(sig_axes, (1, 2)))
        return product.compute().reshape(*scan.nav, len(masks))

    def centres(_repeat: int) -> Array:
        result = apply(moments)
        return result[..., 1:] / result[..., :1]

    def pixel(repeat: int) -> Array:
        y, x = scan.pixel(repeat)
        return arr[..., height - 1 - y if flipped else y, x].compute().reshape(scan.nav)

    def frame(repeat: int) -> Array:
        y, x = scan.position(repeat)
        chosen = arr[y, x] if arr.ndim == 4 else arr[y * scan.nav[1] + x]
        return chosen.compute()[rows]

    return {
        "scan": lambda _: arr.sum(axis=nav_axes).compute()[rows],
        "frames": lambda _: arr.sum(axis=sig_axes).compute().reshape(scan.nav),
        "mask": lambda _: apply(scan.masks[:1]),
        "masks": lambda _: apply(scan.masks),
        "com": centres,
        "pixel": pixel,
        "frame": frame,
    }


def memmap(scan: Scan) -> Jobs:
    """Map the file in one delayed call per chunk, of dask's automatic chunk size."""
    if scan.format.record.names is None:
        raise NotImplementedError("the frames do not form a strided array")
    n = scan.nav[0] * scan.nav[1]
    shape = (n, *scan.format.sig)
    dtype = np.dtype(scan.format.dtype)
    (chunks, *_) = da.core.normalize_chunks(("auto", -1, -1), shape=shape, dtype=dtype)
    edges = np.cumsum((0, *chunks)).tolist()
    load = delayed(load_frames, pure=True)
    (path,) = scan.files
    first = path.stat().st_size - scan.nbytes
    blocks = [
        da.from_delayed(
            load(str(path), scan.format, first, start, stop), (stop - start, *shape[1:]), dtype
        )
        for start, stop in pairwise(edges)
    ]
    return plain_jobs(da.concatenate(blocks), scan)


def load_frames(path: str, fmt: FileFormat, first: int, start: int, stop: int) -> Array:
    """Map some frames of a file, as a view if numpy can represent them."""
    offset = first + start * fmt.record.itemsize
    stored = np.memmap(path, fmt.record, mode="r", offset=offset, shape=stop - start)
    pixels = stored["pixels"]
    return pixels if fmt.decode is None else fmt.decode(pixels)


def rosettasciio(scan: Scan) -> Jobs:
    """Return the jobs on RosettaSciIO's lazy arrays, in its own chunks."""
    return plain_jobs(rosettasciio_array(scan), scan, flipped=scan.format.upside_down)


def rosettasciio_array(scan: Scan) -> da.Array:
    """Open a scan with RosettaSciIO; the scan may be one or two axes of the array."""
    fmt = scan.format
    if not fmt.rosettasciio:
        raise NotImplementedError("no reader for this format")
    module = import_module(f"rsciio.{fmt.rosettasciio}")
    options = fmt.rosettasciio_options(scan.nav)
    (signal, *_) = module.file_reader(str(scan.path), lazy=True, **options)
    return signal["data"]


def libertem(scan: Scan, context: Any) -> Jobs:
    """Return the jobs as LiberTEM's own reductions, on one of its executors."""
    from libertem.udf.com import CoMUDF
    from libertem.udf.masks import ApplyMasksUDF
    from libertem.udf.raw import PickUDF
    from libertem.udf.sum import SumUDF
    from libertem.udf.sumsigudf import SumSigUDF

    dataset = context.load(
        scan.format.libertem,
        path=str(scan.path),
        nav_shape=scan.nav,
        **scan.format.libertem_options,
    )

    def run(udf: Any, channel: str = "intensity", roi: Array | None = None) -> Array:
        return np.asarray(context.run_udf(dataset, udf, roi=roi)[channel].data)

    def masks(count: int) -> Array:
        # LiberTEM asks for a small factory, and creates the masks once per process.
        factory = partial(some_segments, scan.format.sig, count)
        return run(ApplyMasksUDF(mask_factories=factory, mask_count=count))

    def pixel(repeat: int) -> Array:
        y, x = scan.pixel(repeat)
        analysis = context.create_point_analysis(dataset, y=y, x=x)
        return np.asarray(context.run(analysis).intensity.raw_data)

    def frame(repeat: int) -> Array:
        roi = np.zeros(scan.nav, dtype=bool)
        roi[scan.position(repeat)] = True
        return run(PickUDF(), roi=roi)[0]

    return {
        "scan": lambda _: run(SumUDF()),
        "frames": lambda _: run(SumSigUDF()),
        "mask": lambda _: masks(1),
        "masks": lambda _: masks(len(scan.masks)),
        "com": lambda _: run(CoMUDF(), "raw_com"),
        "pixel": pixel,
        "frame": frame,
    }


@cache
def some_segments(sig: Shape, count: int) -> Array:
    """Return the first masks of a scan."""
    return segments(sig)[:count]


def prepare_libertem() -> None:
    """Configure LiberTEM in this process for short scans, and silence its messages."""
    from libertem.io.dataset.k2is import Sector

    # LiberTEM searches for the shutter in steps of 400 frames, and fails at the end of the files.
    search = Sector.first_block_with_search
    search.__defaults__ = (search.__defaults__[0], 32)
    # Errors of tasks are raised again and shown in the table.
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def readers(stack: ExitStack, *, cluster: bool) -> dict[str, Open]:
    """Return all readers. LiberTEM's executors are closed with ``stack``.

    Parameters
    ----------
    stack : ExitStack
        Stack that closes the executors.
    cluster : bool
        Whether LiberTEM is also run with its default executor: worker processes on all cores.
    """
    from libertem.api import Context
    from libertem.executor.inline import InlineJobExecutor

    # Like Context.make_with("inline"), which would use all cores of the machine.
    executor = InlineJobExecutor(inline_threads=core_count())
    inline = stack.enter_context(Context(executor=executor))
    inline.executor.run_each_worker(prepare_libertem)
    found: dict[str, Open] = {
        OURS: tiled,
        "LiberTEM inline": lambda scan: libertem(scan, inline),
    }
    if cluster:
        workers = stack.enter_context(Context.make_with("dask"))
        workers.executor.run_each_worker(prepare_libertem)
        found["LiberTEM workers"] = lambda scan: libertem(scan, workers)
    return found | {"RosettaSciIO": rosettasciio, "numpy.memmap": memmap}
