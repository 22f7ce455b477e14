"""Makes dense frames of rows of a sparse matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.formats.raw_csr.toml import refuse
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.files import File


def decode(block: Block, fetch: Fetch, *, indptr: str, indices: str, data: str) -> npt.NDArray[Any]:
    """Make the frames of a block, which is a run of row pointers. Values of one pixel add up.

    Raises
    ------
    CorruptFileError
        Pointers or column numbers point to nothing.
    """
    _, columns_file, values_file = block.files
    rows = _read(fetch, block.file, indptr, block.offset, block.nbytes).astype(np.int64)
    pixels = math.prod(block.shape[1:])
    first, last = int(rows[0]), int(rows[-1])
    column_type, value_type = np.dtype(indices), np.dtype(data)
    stop = min(columns_file.size // column_type.itemsize, values_file.size // value_type.itemsize)
    counts = np.diff(rows)
    if first < 0 or last > stop or (counts < 0).any():
        refuse(block.file.path, f"byte {block.offset}", f"pointers rising to {stop}", [first, last])
    out = np.zeros(block.shape, value_type.newbyteorder("="))
    if first == last:
        return out
    width = column_type.itemsize
    columns = _read(fetch, columns_file, indices, first * width, (last - first) * width)
    if (columns < 0).any() or (columns >= pixels).any():
        refuse(columns_file.path, f"byte {first * width}", f"0 to {pixels - 1}", columns.max())
    places = np.repeat(np.arange(len(counts)) * pixels, counts) + columns.astype(np.int64)
    width = value_type.itemsize
    values = _read(fetch, values_file, data, first * width, (last - first) * width)
    flat = out.reshape(-1)
    if (np.diff(places) > 0).all():  # in order, so no pixel has two
        flat[places] = values
    else:
        np.add.at(flat, places, values)
    return out


def _read(fetch: Fetch, file: File, dtype: str, start: int, nbytes: int) -> npt.NDArray[Any]:
    return np.frombuffer(fetch(file, start, start + nbytes), np.dtype(dtype))
