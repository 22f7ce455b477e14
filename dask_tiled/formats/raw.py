"""Raw binary frames without header; the user gives dtype and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import check_whole
from dask_tiled.formats import tools
from dask_tiled.formats.empad import RECORD
from dask_tiled.model.doubts import unknown_scan


def sniff(path: str, head: bytes) -> str | None:
    """Refuse: raw files have no recognisable content."""
    return "raw files cannot be recognised; pass format='raw', dtype= and sig_shape="


def describe(
    paths: Sequence[str],
    *,
    dtype: npt.DTypeLike | None = None,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    file_header: int = 0,
    frame_header: int = 0,
    frame_footer: int = 0,
) -> tools.Description:
    """Describe raw files.

    Parameters
    ----------
    paths : sequence of str
        One file, or several in the order of their frames.
    dtype : dtype
        Type of the pixels in the file, of either byte order.
    nav_shape, sig_shape : tuple of int
        Shape of the scan, by default all frames on one axis, and of a frame, (y, x).
    file_header : int
        Bytes at the start of each file.
    frame_header, frame_footer : int
        Bytes before and after each frame.
    """
    if dtype is None or not sig_shape:
        count, rest = divmod(tools.File.at(paths[0]).size, RECORD.nbytes)
        hint = f"The size is that of {count} EMPAD frames: pass format='empad' if it holds them."
        problem = "raw files need dtype= and sig_shape="
        raise tools.DatasetError(problem, path=paths[0], hint=None if rest else hint)
    try:
        stored = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise tools.DatasetError(
            "invalid dtype", path=paths[0], expected="a NumPy dtype", found=dtype
        ) from error
    if stored.hasobject or stored.itemsize == 0 or stored.shape:
        raise tools.DatasetError("not a dtype that files can store", path=paths[0], found=stored)
    sizes = {"file_header": file_header, "frame_header": frame_header, "frame_footer": frame_footer}
    gaps = {
        name: check_whole(f"{name}, in bytes,", size, least=0, path=paths[0])
        for name, size in sizes.items()
    }
    files, decoder = [tools.File.at(path) for path in paths], tools.plain(stored)
    record = tools.Record(sig_shape, decoder, gaps["frame_header"], gaps["frame_footer"])
    layout = tools.lay_out(files, record, gaps["file_header"], settled=nav_shape is not None)
    desc = tools.Description.of("raw", layout, {"raw": {"dtype": stored.str, **gaps}})
    return desc if nav_shape is not None else desc.with_doubts(*unknown_scan(layout.n_frames))


FORMAT = tools.Format(
    name="raw",
    extensions=(".bin", ".raw", ".dat"),
    summary="frames of any numpy dtype and byte order, with headers and gaps, in one file or many",
    nav_shape_from="the user, or one axis of all frames",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO"),
    aliases=("binary", "memmap"),
)
