"""Piece tables from columns that users pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.pieces import Piece, PieceTable, piece_table

Path = str | os.PathLike[str]


def read_pieces(
    pieces: Any, files: list[Path], decoders: Sequence[Decoder | BlockDecoder], ndim: int
) -> tuple[PieceTable, list[Path]]:
    """Convert pieces to a table, and list the files."""
    keys = getattr(getattr(pieces, "dtype", None), "names", None) or getattr(pieces, "keys", None)
    if keys is None:
        listed = [Piece(*piece) for piece in pieces]
        if not listed:
            raise DatasetError("there are no pieces")
        rows = map(list, zip(*listed, strict=True))
        columns: dict[str, Any] = dict(zip(Piece._fields, rows, strict=True))
        if not any(columns["strides"]):
            del columns["strides"]
        elif not all(columns["strides"]):
            columns["strides"] = [
                piece.strides or _steps(np.array([piece.shape]), decoders, [piece.decoder])[0]
                for piece in listed
            ]
    else:
        names = keys() if callable(keys) else keys
        columns = {name: np.asarray(pieces[name]) for name in names}
    wrong = [name for name in columns if name not in Piece._fields]
    lacking = [name for name in ("start", "shape", "offset") if name not in columns]
    if wrong or lacking:
        raise DatasetError(
            "unknown or missing columns of pieces",
            expected=", ".join(Piece._fields),
            found=", ".join(columns),
        )
    try:
        file, paths = _files(columns.get("file", 0), files)
        start, lengths = (_axes(columns[name], ndim, name) for name in ("start", "shape"))
        decoder = _whole(columns.get("decoder", 0), "decoder")
        _check_numbers("decoder", decoder, len(decoders))
        strides = columns.get("strides")
        steps = _steps(lengths, decoders, decoder) if strides is None else strides
        table = piece_table(
            start,
            lengths,
            _whole(columns["offset"], "offset"),
            _axes(steps, ndim, "strides"),
            file=file,
            decoder=decoder,
            nbytes=_whole(columns.get("nbytes", 0), "nbytes"),
        )
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError("the columns of pieces do not form a table", found=str(error)) from error
    return table, paths


def _axes(column: Any, ndim: int, name: str) -> npt.NDArray[np.int64]:
    found = np.atleast_2d(_whole(column, name))
    if found.ndim != 2 or found.shape[1] != ndim:
        raise DatasetError(
            f"not a {name} for each axis", expected=f"{ndim} axes", found=found.shape
        )
    return found


def _whole(column: Any, name: str) -> npt.NDArray[np.int64]:
    """Return a column as integers; refuse fractions, which NumPy would truncate."""
    found = np.asarray(column)
    if found.dtype == object:  # a column of a data frame may hold tuples
        found = np.array(found.tolist())
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name} of dtype {found.dtype} instead of whole numbers")
    return found.astype(np.int64, copy=False)


def _check_numbers(what: str, numbers: npt.NDArray[np.int64], count: int) -> None:
    bad = numbers[(numbers < 0) | (numbers >= count)]
    if bad.size:
        expected = f"0 to {count - 1}"
        raise DatasetError(f"no such {what}", expected=expected, found=int(bad.flat[0]))


def _files(column: Any, files: list[Path]) -> tuple[Any, list[Path]]:
    """Return file numbers and paths, from a column of numbers, paths or both."""
    given = column if isinstance(column, list) else np.atleast_1d(column)
    if isinstance(given, np.ndarray) and given.dtype.kind not in "iu":
        given = given.tolist()
    whole = (file for file in given if isinstance(file, (int, np.integer)))
    numbers = given if isinstance(given, np.ndarray) else np.fromiter(whole, np.int64)
    _check_numbers("file", numbers, len(files))
    if len(numbers) == len(given):
        return numbers, files
    paths = [
        os.fspath(files[file] if isinstance(file, (int, np.integer)) else file) for file in given
    ]
    found = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    return np.array([found[path] for path in paths]), list(found)


def _steps(
    shape: npt.NDArray[np.int64], decoders: Sequence[Decoder | BlockDecoder], decoder: Any
) -> npt.NDArray[np.int64]:
    """Return the strides of pieces whose units are contiguous in C order."""
    sizes = [(d.pixels, d.nbytes) if isinstance(d, Decoder) else (1, 0) for d in decoders]
    pixels, nbytes = np.array(sizes, np.int64)[np.atleast_1d(decoder)].T
    shape = np.broadcast_to(shape, (max(len(shape), len(pixels)), shape.shape[1]))
    steps = np.empty(shape.shape, np.int64)
    steps[:, -1] = nbytes
    units = -(-shape[:, -1] // pixels)
    for axis in range(shape.shape[1] - 2, -1, -1):
        steps[:, axis] = steps[:, axis + 1] * units
        units = shape[:, axis]
    return steps
