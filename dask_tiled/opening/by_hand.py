"""Arrays with a layout given by hand, piece by piece."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.chunks import codec, of_shape
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.files.file import File
from dask_tiled.files.paths import is_url
from dask_tiled.model.calibration import Calibrations, calibrated
from dask_tiled.model.coverage import check_inside, first_hole, first_overlap, overlap_error
from dask_tiled.model.decoders import BlockDecoder, Conversion, Decoder, plain
from dask_tiled.model.description import Description
from dask_tiled.model.layout import Layout
from dask_tiled.model.piece_columns import read_pieces
from dask_tiled.model.pieces import Piece, PieceTable
from dask_tiled.opening.arrays import tiled
from dask_tiled.opening.describing import Path
from dask_tiled.remote.session import Session, opened_together
from dask_tiled.remote.stores import Options, place_of
from dask_tiled.tiling.negotiation import TilingRequest

MOST_PIXELS = 1 << 62
MOST_KINDS = 4096
"""Maximum number of parts into which pieces may cut the signal axes; each costs time in every
chunk."""


def from_pieces(
    pieces: Iterable[Piece] | Mapping[str, Any],
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    files: Sequence[Path] = (),
    decoders: Sequence[Any] = (),
    sig_ndim: int | None = None,
    overlap: str = "raise",
    uncovered: str = "raise",
    fill_value: Any = 0,
    axes: Calibrations = (),
    tiling: TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
    storage_options: Options = None,
) -> da.Array:
    """Return a lazy array of boxes that lie anywhere in any files.

    Chunks need not follow the pieces; adjacent bytes of a file are read together.

    Parameters
    ----------
    pieces : iterable of Piece, or mapping of columns
        The boxes. ``Piece.file`` is a path or a number in ``files``; without strides the units
        of a piece follow one another in C order. Many pieces are given as a mapping (a dict, a
        data frame, a record array) of arrays: ``start`` and ``shape`` of shape (pieces, axes),
        ``offset`` of shape (pieces,), and ``file``, ``strides``, ``decoder`` and ``nbytes`` where
        needed. A value that is the same for all pieces may be given once.
    shape : tuple of int
        Shape of the array.
    dtype : dtype
        Type of the array.
    files : sequence of path-like, optional
        The files, if pieces give file numbers. Like the paths of pieces, they may be URLs.
    decoders : sequence, optional
        Storage of the pieces, by the numbers in ``Piece.decoder``: a dtype of either byte
        order; a pair of a dtype and codecs, for pieces of ``nbytes`` bytes that are compressed one
        by one; or a decoder for packed pixels. By default one, ``dtype``. Codecs are documents of
        zarr 3 in the order in which a piece is written, such as ``("<u2", [{"name": "bytes"},
        {"name": "zstd"}])``, or a configuration for numcodecs: ``("<u2", {"id": "zlib"})``.
    sig_ndim : int, optional
        Number of signal axes; by default two, or one if pieces cut the last two axes into too many
        parts.
    overlap : {"raise", "first", "last"}
        Which piece supplies the pixels where pieces overlap; by default overlaps are an error.
    uncovered : {"raise", "fill"}
        Whether uncovered pixels are filled with ``fill_value``; by default they are an
        error.
    fill_value : scalar
        Value of uncovered pixels.
    axes : sequence of Axis, or mapping of str, optional
        Names, units and scales of all axes, or of some by their usual names: see
        :meth:`TiledArray.with_axes`.
    tiling, chunks, io, storage_options : optional
        As in :func:`open_dataset`.

    Returns
    -------
    TiledArray
        The array; pixels are read when it is computed.

    Raises
    ------
    FileNotFoundError
        A path does not exist.
    TruncatedFileError
        A piece reaches beyond its file.
    DatasetError
        A piece is outside of the array; pieces overlap or leave pixels uncovered without
        ``overlap`` or ``uncovered``; codecs are unknown or do not fit the pieces; or arguments are
        invalid.
    PermissionError, RemoteError
        A server refuses a file, or does not deliver its bytes.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> np.arange(24, dtype="u2").tofile("pixels.bin")
    >>> pieces = [
    ...     dask_tiled.Piece(file="pixels.bin", start=(0, 0, 0), shape=(1, 3, 4), offset=24),
    ...     dask_tiled.Piece(file="pixels.bin", start=(1, 0, 0), shape=(1, 3, 4), offset=0),
    ... ]
    >>> arr = dask_tiled.from_pieces(pieces, shape=(2, 3, 4), dtype="u2")
    >>> arr[:, 0, 0].compute()
    array([12,  0], dtype=uint16)
    """
    for name, value, known in (
        ("overlap", overlap, ("raise", "first", "last")),
        ("uncovered", uncovered, ("raise", "fill")),
    ):
        if value not in known:
            raise DatasetError(f"no such {name}", expected=" or ".join(known), found=repr(value))
    shape = tuple(check_whole("every size in shape", n, least=1) for n in shape)
    if not shape or math.prod(shape) > MOST_PIXELS:
        raise DatasetError("invalid shape", found=shape)
    known_decoders = [_decoder(given) for given in decoders or [dtype]]
    _check_types(known_decoders, np.dtype(dtype))
    table, paths = read_pieces(pieces, list(files), known_decoders, len(shape))
    check_inside(table, shape)
    known_decoders = _for_shapes(known_decoders, table)
    if overlap == "first":
        table = table.reversed()
    pair = first_overlap(*table.bounds, len(table))
    if pair and overlap == "raise":
        raise overlap_error(table, pair)
    hole = first_hole(table, shape, overlapping=pair is not None)
    if hole and uncovered == "raise":
        raise DatasetError(
            "pixels are not covered by any piece",
            where=f"pixel {hole}",
            hint='Pass uncovered="fill" to fill them.',
        )
    n = _sig_ndim(table, len(shape)) if sig_ndim is None else sig_ndim
    check_whole("sig_ndim", n, least=1)
    if n > len(shape):
        raise DatasetError("too many signal axes", expected=f"at most {len(shape)}", found=n)
    nav = len(shape) - n
    layout = Layout(
        _looked_at(paths, storage_options),
        shape[:nav],
        shape[nav:],
        table,
        known_decoders,
        overlapping=pair is not None,
        partial=hole is not None,
    )
    facts = {"pieces": len(table), "overlapping": pair is not None, "partial": hole is not None}
    base = _base_shape(table, known_decoders)
    desc = Description.of("pieces", layout, {"pieces": facts}, base_shape=base)
    if axes:
        found = calibrated(desc.axes, axes, shape, layout.files[0].path)
        desc = replace(desc, axes=found)
    conversion = Conversion.of(layout.dtype, layout.files[0].path, dtype, fill_value)
    return tiled(replace(desc, conversion=conversion), tiling, chunks, io)


def _looked_at(paths: Sequence[Path], storage_options: Options) -> list[File]:
    """Return the versions of local and remote files."""
    urls = [os.fspath(path) for path in paths if is_url(path)]
    if storage_options is not None and not urls:
        problem = "storage options are for URLs only"
        raise DatasetError(problem, path=paths[0], expected="a URL", found="a path")
    known = Session(urls, storage_options)
    # The query may be a secret, which only the session keeps.
    plain_urls = {url: place_of(url, storage_options).url for url in urls}
    with opened_together(known):
        return [File.at(plain_urls.get(os.fspath(path), path)) for path in paths]


def _decoder(given: Any) -> Decoder | BlockDecoder:
    if isinstance(given, (Decoder, BlockDecoder)):
        return given
    packed = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (Mapping, list))
    try:
        stored = np.dtype(given[0] if packed else given)
        if stored.hasobject or not stored.itemsize:
            raise TypeError("not a dtype that files can store")  # noqa: TRY301
    except (TypeError, ValueError) as error:
        raise DatasetError(
            "not a decoder",
            expected="a dtype, a dtype and codecs, or a Decoder",
            found=f"{given!r}: {error}",
        ) from error
    return codec(stored, given[1]) if packed else plain(stored)


def _for_shapes(decoders: list[Any], table: PieceTable) -> list[Any]:
    """Specialise decoders for the shape of their pieces, if all pieces have the same."""
    pieces = table.rows()
    known = list(decoders)
    for k, decoder in enumerate(decoders):
        shapes = np.unique(pieces.shape[pieces.decoder == k], axis=0)
        if "codecs" in dict(getattr(decoder, "options", ())) and len(shapes):
            shown = [of_shape(decoder, tuple(shape)) for shape in shapes.tolist()]
            known[k] = shown[0] if len(shown) == 1 else decoder
    return known


def _check_types(decoders: Sequence[Decoder | BlockDecoder], wanted: np.dtype) -> None:
    """Check that promoting the dtypes of the pieces does not change integers."""
    stored = [decoder.dtype for decoder in decoders]
    long = any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in stored)
    if long and wanted.kind in "iu" and np.result_type(*stored).kind not in "iu":
        raise DatasetError(
            "no integer dtype can hold the values of all pieces",
            found=", ".join(map(str, stored)),
            hint="Use a float dtype, or one array for each dtype.",
        )


def _sig_ndim(pieces: PieceTable, ndim: int) -> int:
    starts = [len(np.unique(pieces.column("start", axis))) for axis in range(ndim)[-2:]]
    return 1 if math.prod(starts) > MOST_KINDS else len(starts)


def _base_shape(pieces: PieceTable, decoders: Sequence[Decoder | BlockDecoder]) -> tuple[int, ...]:
    """Return the shape of pieces that decode as a whole, if they form a grid."""
    if not any(isinstance(decoder, BlockDecoder) for decoder in decoders):
        return ()
    axes = range(pieces.ndim)
    sizes = [int(pieces.column("shape", axis).max()) for axis in axes]
    on_grid = all(not (pieces.column("start", k) % sizes[k]).any() for k in axes)
    return tuple(sizes) if on_grid else ()
