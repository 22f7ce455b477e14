"""Many files of one shape as one array, in which each file is a frame."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import File
from dask_tiled.formats.describing import expanded
from dask_tiled.model.axes import Axis
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.calibration import Calibrations, calibrated
from dask_tiled.model.decoders import BlockDecoder, Decoder, function_at
from dask_tiled.model.description import BY_USER, VOLUMES, Description
from dask_tiled.model.indexing import Array, Cut, Index
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import PieceTable, joined, piece_table, strides_of
from dask_tiled.opening.arrays import tiled
from dask_tiled.opening.describing import Path, describe, warn_of
from dask_tiled.tiling.negotiation import TilingRequest

AXIS = "volume"


def open_volumes(
    paths: Path | Sequence[Path],
    format: str | None = None,
    *,
    tiling: TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
    axes: Calibrations | None = None,
    **options: Any,
) -> da.Array:
    """Open many files of one shape as one lazy array.

    Each file is a frame of the array, whatever axes it has: reductions over the first axis, such as
    ``arr.sum(0)``, read all files tile by tile, in memory that does not depend on their number.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        The files, in this order, or a pattern with ``*``: its matches in natural order, each
        volume once.
    format : str, optional
        Name of the format, one of :func:`formats`; by default it is detected, for every file.
    tiling : TilingRequest or sequence of them, optional
        Requests of the array's consumers; by default ``TilingRequest("pixel")``, chunks of all
        files and a part of the volume. Compressed volumes stay whole.
    chunks, io : optional
        As in :func:`open_dataset`.
    axes : mapping of str, or sequence of Axis, optional
        As in :func:`open_dataset`, for all axes; the axis of the files is called ``volume``.
    **options
        Further options of :func:`open_dataset`, for every file, except corrections.

    Returns
    -------
    TiledArray
        A :class:`dask.array.Array` of shape ``(files, ...)``: a new axis, then the files' axes.

    Raises
    ------
    FileNotFoundError
        A path does not exist.
    DatasetError
        A file differs in shape or dtype from the first one, or does not show all of its frames in
        stored order; or it cannot be opened.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> np.save("frames2.npy", frames + 1)
    >>> arr = dask_tiled.open_volumes("frames*.npy")
    >>> arr.shape, arr.dims[0]
    ((2, 3, 4, 5), 'volume')
    >>> int(arr.mean(axis=0)[0, 0, 0].compute() * 2)
    1
    """

    def described(names: Sequence[str]) -> list[Description]:
        return [describe(name, format, **options) for name in names]

    desc = described_together(paths, described, stacked, axes, **options)
    return tiled(desc, TilingRequest("pixel") if tiling is None else tiling, chunks, io)


def described_together(
    paths: Path | Sequence[Path],
    described: Callable[[Sequence[str]], list[Description]],
    join: Callable[[list[Description]], Description],
    axes: Calibrations | None,
    **options: Any,
) -> Description:
    """Describe files, each picture once, and join them; ``axes`` are those of the whole."""
    with expanded(paths, options.get("storage_options")) as (names, _):
        parts = described(names)
    if isinstance(paths, (str, os.PathLike)):  # a pattern may match several files of one picture
        parts = list({part.files: part for part in parts}.values())
    warn_of(*parts, **options)
    desc = join(parts)
    if axes is None:
        return desc
    return desc.with_axes(calibrated(desc.axes, axes, desc.shape, desc.files[0].path), BY_USER)


def stacked(volumes: Sequence[Description]) -> Description:
    """Describe volumes of one shape as frames of one array."""
    first = volumes[0]
    for volume in volumes:
        if volume.conversion.corrections is not None:
            path, hint = volume.files[0].path, "Open each file separately."
            raise DatasetError("volumes cannot be corrected", path=path, hint=hint)
        check_alike(volume, first)
    boxes = [with_number(k, *boxes_of(volume)) for k, volume in enumerate(volumes)]
    files, pieces, decoders = joined_pieces(volumes, boxes)
    n, nav = len(volumes), first.layout.nav_shape
    layout = Layout(
        files,
        (n,),
        nav + first.layout.sig_shape,
        pieces,
        decoders,
        cuts=(Cut(0, 1, n), *first.layout.cuts),
        repeats=(1,) * len(nav) + first.layout.repeats,
    )
    base = first.base_shape if first.layout.grid == nav else ()
    return replace(
        first,
        layout=layout,
        axes=(Axis(AXIS), *first.axes),
        nav_ndim=1,
        metadata={**first.metadata, VOLUMES: n},
        base_shape=(1, *base) if base else (),
    )


Boxes = tuple[npt.NDArray[np.int64], ...]
"""Start, shape and strides of pieces."""


def joined_pieces(
    volumes: Sequence[Description], boxes: Sequence[Boxes], moved: Sequence[int] | None = None
) -> tuple[list[File], PieceTable, tuple[Decoder | BlockDecoder, ...]]:
    """Join the pieces of volumes at other boxes; return files, pieces and decoders.

    ``moved`` are the numbers of frames by which boxes are moved along the first axis; by default
    they have one more axis, the first one.
    """
    files: list[File] = []
    decoders: dict[Decoder | BlockDecoder, int] = {}
    tables = []
    for number, (volume, (start, shape, strides)) in enumerate(zip(volumes, boxes, strict=True)):
        layout, columns = volume.layout, volume.layout.pieces.rows()
        several = (len(files), len(layout.files)) if len(layout.files) > 1 else None
        by = None if moved is None else moved[number]
        wrapped = [_decoder(decoder, several, by) for decoder in layout.decoders]
        ours = [decoders.setdefault(decoder, len(decoders)) for decoder in wrapped]
        tables.append(
            piece_table(
                start,
                shape,
                columns.offset,
                strides,
                file=columns.file + len(files),
                decoder=np.array(ours)[columns.decoder],
                nbytes=columns.nbytes,
            )
        )
        files += layout.files
    return files, joined(tables), tuple(decoders)


def with_number(number: int, start: Index, shape: Index, strides: Index) -> Boxes:
    """Add the axis of the volumes to boxes of one."""
    ones = np.ones(len(start), np.int64)
    firsts = number * ones, ones, 0 * ones
    tables = start, shape, strides
    return tuple(np.column_stack(pair) for pair in zip(firsts, tables, strict=True))


def check_alike(volume: Description, first: Description) -> None:
    """Check that the pixels of a volume match those of the first one."""
    path = volume.files[0].path
    facts = {
        "shape": (volume.shape, first.shape),
        "dtype": (volume.dtype, first.dtype),
        "type of stored pixels": (volume.layout.dtype, first.layout.dtype),
        "cut": (volume.layout.cuts, first.layout.cuts),
        "binning": (volume.layout.repeats, first.layout.repeats),
        "scaling": (volume.conversion.scaling, first.conversion.scaling),
    }
    for name, (found, expected) in facts.items():
        if found != expected:
            raise DatasetError(
                f"the volume differs from the first one: {name}",
                path=path,
                expected=f"{expected}, as in {first.files[0].path}",
                found=found,
            )


def boxes_of(volume: Description) -> Boxes:
    """Return start, shape and strides of all pieces, on the axes of the array."""
    layout, columns = volume.layout, volume.layout.pieces.rows()
    selection, boxes = layout.selection, columns[4:]
    in_order = selection.numbers is None and not selection.first and not selection.absent()
    if in_order and selection.nav_shape == layout.grid:
        return boxes
    whole = len(layout.grid) == 1 and not columns.start[:, 0].any()
    whole &= bool((columns.shape[:, 0] == layout.n_frames).all())
    if not in_order or not whole or layout.has_blocks:
        raise DatasetError(
            "frames are missing or not in stored order",
            path=volume.files[0].path,
            hint="Open each file separately, and combine them with dask.array.stack.",
        )
    # Frames at equal distances along one axis can be reshaped to several axes.
    start, _, strides = (table[:, 0] for table in boxes)
    nav = np.array(selection.nav_shape, np.int64)
    inner = np.array(strides_of(selection.nav_shape, 1), np.int64)
    unfolded = np.outer(start, inner), np.tile(nav, (len(start), 1)), np.outer(strides, inner)
    return tuple(
        np.concatenate([new, table[:, 1:]], axis=1)
        for new, table in zip(unfolded, boxes, strict=True)
    )


def _decoder(
    decoder: Decoder | BlockDecoder, files: tuple[int, int] | None, moved: int | None
) -> Decoder | BlockDecoder:
    """Wrap a block decoder for a stack."""
    if isinstance(decoder, Decoder) or (moved == 0 and files is None):
        return decoder
    options: tuple[tuple[str, Any], ...] = ("function", decoder.function), ("files", files)
    options += ("options", decoder.options), ("moved", moved)
    return BlockDecoder(f"{__name__}:decode", decoder.dtype, options)


def decode(
    block: Block,
    fetch: Fetch,
    *,
    function: str,
    options: tuple[tuple[str, Any], ...],
    files: tuple[int, int] | None,
    moved: int | None,
) -> Array:
    """Decode a block of a volume with its format's decoder, at its place in the volume."""
    first, count = files or (0, 0)
    alone = block._replace(files=block.files[first : first + count] if files else (block.file,))
    if moved is not None:
        start = block.start[0] - moved, *block.start[1:]
        return function_at(function)(alone._replace(start=start), fetch, **dict(options))
    alone = alone._replace(start=block.start[1:], shape=block.shape[1:])
    pixels = function_at(function)(alone, fetch, **dict(options))
    # The caller reports an unexpected shape.
    return pixels[None] if pixels.shape == alone.shape else pixels
