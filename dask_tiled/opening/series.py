"""Scans of one shape as one array with an axis of scans, such as time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import Calibrations
from dask_tiled.model.description import VOLUMES, Description
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Layout, Selection
from dask_tiled.opening.arrays import tiled
from dask_tiled.opening.describing import Path, describe
from dask_tiled.opening.volumes import (
    boxes_of,
    check_alike,
    described_together,
    joined_pieces,
    with_number,
)
from dask_tiled.tiling.negotiation import TilingRequest

AXIS = "t"


def open_series(
    paths: Path | Sequence[Path],
    format: str | None = None,
    *,
    sync_offset: int | Sequence[int] = 0,
    tiling: str | TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
    axes: Calibrations | None = None,
    **options: Any,
) -> da.Array:
    """Open scans of one shape as one lazy array: 4D-STEM over time, tilt or temperature.

    Scans may begin at different frames, and have missing frames. For one frame out of each file,
    see :func:`open_volumes`.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        The files, in this order, or a pattern with ``*``: its matches in natural order, each scan
        once.
    format : str, optional
        Name of the format, one of :func:`formats`; by default it is detected, for every file.
    sync_offset : int or sequence of int
        As in :func:`open_dataset`; several are those of each scan.
    tiling, chunks, io : optional
        As in :func:`open_dataset`.
    axes : mapping of str, or sequence of Axis, optional
        As in :func:`open_dataset`, for all axes; the axis of the scans is called ``t``.
    **options
        Further options of :func:`open_dataset`, for every file, such as ``nav_shape``.

    Returns
    -------
    TiledArray
        A :class:`dask.array.Array` of shape ``(scans, ...)``: a new navigation axis, then the axes
        of the scans.

    Raises
    ------
    FileNotFoundError
        A path does not exist.
    DatasetError
        A scan differs in shape, dtype or conversion from the first one, or holds events; or it
        cannot be opened.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> for k in range(3):
    ...     np.save(f"heating{k}.npy", np.full((6, 4, 5), k, "u2"))
    >>> arr = dask_tiled.open_series("heating*.npy", nav_shape=(2, 3), axes={"t": "30 s"})
    >>> arr.shape, arr.dims
    ((3, 2, 3, 4, 5), ('t', 'scan_y', 'scan_x', 'y', 'x'))
    >>> arr.sum(axis=(1, 2, 3, 4)).compute()
    array([  0, 120, 240], dtype=uint64)
    """

    def described(names: Sequence[str]) -> list[Description]:
        offsets: list[Any] = [sync_offset] * len(names)
        if isinstance(sync_offset, Sequence):
            offsets = [*sync_offset]
        if len(offsets) != len(names):
            expected, found = f"one for each of {len(names)} scans", len(offsets)
            raise DatasetError("invalid sync_offset", expected=expected, found=found)
        return [
            describe(name, format, sync_offset=offset, **options)
            for name, offset in zip(names, offsets, strict=True)
        ]

    desc = described_together(paths, described, series, axes, **options)
    return tiled(desc, tiling, chunks, io)


def series(scans: Sequence[Description]) -> Description:
    """Describe scans of one shape as one array, in which they are the first navigation axis."""
    first = scans[0]
    for scan in scans:
        check_alike(scan, first)
        path = scan.files[0].path
        if scan.layout.is_sparse:
            raise DatasetError("event streams cannot be joined", path=path)
        tokens = [one.conversion.__dask_tokenize__() for one in (scan, first)]
        if tokens[0] != tokens[1]:
            expected = f"those of {first.files[0].path}"
            problem = "the scan has other corrections or fill values"
            raise DatasetError(problem, path=path, expected=expected)
    in_rows = all(len(scan.layout.grid) == 1 for scan in scans)
    layout = _joined_frames(scans) if in_rows else _stacked_grids(scans)
    base = () if in_rows else first.base_shape
    return replace(
        first,
        layout=layout,
        axes=(Axis(AXIS), *first.axes),
        nav_ndim=first.nav_ndim + 1,
        metadata={**first.metadata, VOLUMES: len(scans)},
        base_shape=(1, *base) if base else (),
    )


def _joined_frames(scans: Sequence[Description]) -> Layout:
    """Join scans whose files hold frame after frame; some may be missing or skipped."""
    layouts = [scan.layout for scan in scans]
    starts = np.cumsum([0, *(layout.n_frames for layout in layouts)]).tolist()
    boxes, numbers, lost = [], [], list[tuple[int, int]]()
    for layout, start in zip(layouts, starts, strict=False):
        first, *others = layout.pieces.rows()[4:]
        moved = first.copy()
        moved[:, 0] += start
        boxes.append((moved, *others))
        chosen = layout.selection.at(np.arange(np.prod(layout.nav_shape, dtype=int)))
        numbers.append(np.where(layout.selection.are_absent(chosen), -1, chosen + start))
        lost += [(a + start, b + start) for a, b in layout.selection.lost]
    files, pieces, decoders = joined_pieces(scans, boxes, starts[:-1])
    nav_shape, total, all_numbers = layouts[0].nav_shape, starts[-1], np.concatenate(numbers)
    in_order = len(all_numbers) == total and bool((all_numbers == np.arange(total)).all())
    chosen_frames = None if in_order else all_numbers
    return Layout(
        files,
        (total,),
        layouts[0].sig_shape,
        pieces,
        decoders,
        Selection((len(scans), *nav_shape), total, 0, chosen_frames, tuple(lost)),
        (Cut(0, 1, len(scans)), *layouts[0].cuts),
        repeats=layouts[0].repeats,
        overlapping=any(layout.overlapping for layout in layouts),
        partial=any(layout.partial for layout in layouts),
    )


def _stacked_grids(scans: Sequence[Description]) -> Layout:
    """Stack scans whose files hold grids of frames, all of them shown."""
    first, n = scans[0].layout, len(scans)
    boxes = [with_number(k, *boxes_of(scan)) for k, scan in enumerate(scans)]
    files, pieces, decoders = joined_pieces(scans, boxes)
    cuts = (Cut(0, 1, n), *first.cuts)
    grid = (n, *first.nav_shape)
    return Layout(files, grid, first.sig_shape, pieces, decoders, None, cuts, repeats=first.repeats)
