"""The readers: each opens a scan and gives the jobs that it can do, as its users would do them.

A job takes the number of its repeat, which chooses the frame or the pixel to pick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

import dask_tiled
from comparison.cores import core_count
from comparison.formats import Array, FileFormat, Shape
from comparison.scans import Scan, segments

Jobs = dict[str, Callable[[int], Array]]
Open = Callable[[Scan], Jobs]

OURS = "dask-tiled"


def tiled(scan: Scan) -> Jobs:
    """Use this package."""
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
    """Do the jobs with dask alone: it knows no tiles, and takes masks as a product of matrices.

    The scan may be one axis of ``arr`` or two; its frames may be upside down.
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
    """Map the file in one delayed call for each chunk, of the size that dask chooses."""
    n = scan.nav[0] * scan.nav[1]
    shape = (n, *scan.format.sig)
    dtype = np.dtype(scan.format.dtype)
    (chunks, *_) = da.core.normalize_chunks(("auto", -1, -1), shape=shape, dtype=dtype)
    edges = np.cumsum((0, *chunks)).tolist()
    load = delayed(load_frames, pure=True)
    blocks = [
        da.from_delayed(
            load(str(scan.path), scan.format, start, stop), (stop - start, *shape[1:]), dtype
        )
        for start, stop in pairwise(edges)
    ]
    return plain_jobs(da.concatenate(blocks), scan)


def load_frames(path: str, fmt: FileFormat, start: int, stop: int) -> Array:
    """Map some frames of a file: a view where numpy can show them as they are."""
    record = fmt.record
    stored = np.memmap(path, record, mode="r", offset=start * record.itemsize, shape=stop - start)
    pixels = stored["pixels"]
    return pixels if fmt.decode is None else fmt.decode(pixels)


def rosettasciio(scan: Scan) -> Jobs:
    """Use the lazy arrays of RosettaSciIO, in the chunks that it gives."""
    name = scan.format.rosettasciio
    if name == "ripple":
        from rsciio.ripple import file_reader as read_ripple

        arr = read_ripple(str(scan.path), lazy=True, rpl_info=ripple_header(scan))[0]["data"]
        return plain_jobs(arr, scan)
    if name == "quantumdetector":
        from rsciio.quantumdetector import file_reader as read_merlin

        arr = read_merlin(str(scan.path), lazy=True)[0]["data"]
        return plain_jobs(arr, scan, flipped=True)
    raise NotImplementedError("no reader for this format")


def ripple_header(scan: Scan) -> dict[str, Any]:
    """Say what RosettaSciIO wants to know of raw frames."""
    dtype = np.dtype(scan.format.dtype)
    return {
        "width": scan.format.sig[1],
        "height": scan.format.sig[0],
        "depth": scan.nav[0] * scan.nav[1],
        "offset": 0,
        "data-length": dtype.itemsize,
        "data-type": {"u": "unsigned", "i": "signed", "f": "float"}[dtype.kind],
        "byte-order": "big-endian" if dtype.str[0] == ">" else "little-endian",
        "record-by": "image",
    }


def libertem(scan: Scan, context: Any) -> Jobs:
    """Use LiberTEM's own reductions, with one of its executors."""
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
        # A small factory, as LiberTEM asks for, and masks that are made once in each process.
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
    """Make the first masks of a scan."""
    return segments(sig)[:count]


def be_quiet() -> None:
    """Do not print the errors of tasks: they come back, and stand in the table."""
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def readers(stack: ExitStack, *, cluster: bool) -> dict[str, Open]:
    """Make the readers. LiberTEM's executors live as long as ``stack``.

    Parameters
    ----------
    stack : ExitStack
        Closes them.
    cluster : bool
        Whether LiberTEM is also run with its default executor: worker processes on all cores.
    """
    from libertem.api import Context
    from libertem.executor.inline import InlineJobExecutor

    # As Context.make_with("inline"), which would use as many threads as the machine has cores.
    executor = InlineJobExecutor(inline_threads=core_count())
    inline = stack.enter_context(Context(executor=executor))
    found: dict[str, Open] = {
        OURS: tiled,
        "LiberTEM inline": lambda scan: libertem(scan, inline),
    }
    if cluster:
        workers = stack.enter_context(Context.make_with("dask"))
        workers.executor.run_each_worker(be_quiet)
        found["LiberTEM workers"] = lambda scan: libertem(scan, workers)
    return found | {"RosettaSciIO": rosettasciio, "numpy.memmap": memmap}
