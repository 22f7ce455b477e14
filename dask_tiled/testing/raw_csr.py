"""Writer of LiberTEM's sparse frames: compressed sparse rows (CSR) in three raw files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import Frames, StrPath, alike, nav_shape_of


def write_raw_csr(
    path: StrPath,
    frames: Frames,
    *,
    nav_shape: Sequence[int] | None = None,
    indptr_dtype: npt.DTypeLike = "<i8",
    indices_dtype: npt.DTypeLike = "<i4",
    shuffle: bool = False,
) -> Path:
    """Write the nonzero pixels of frames, in their dtype and byte order.

    Parameters
    ----------
    path
        The TOML file. The files it names have the same stem and the suffixes `.indptr`, `.indices`
        and `.data`.
    indptr_dtype, indices_dtype
        Dtypes of the row pointers and of the column indices, in either byte order.
    shuffle
        Whether the pixels of a frame are stored unsorted, and each value as two entries to be
        summed; both are valid CSR.
    """
    path = Path(path)
    nav_shape = nav_shape_of(frames, nav_shape)
    first, every = alike(frames)
    types = {"indptr": indptr_dtype, "indices": indices_dtype, "data": first.dtype}
    names = {part: path.with_suffix(f".{part}") for part in types}
    end = 0
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        indptr, indices, data = (stack.enter_context(file.open("wb")) for file in names.values())
        indptr.write(np.array(0, indptr_dtype).tobytes())
        for frame in every:
            columns = np.flatnonzero(frame)
            values = frame.reshape(-1)[columns]
            if shuffle:
                order = rng.permutation(len(columns))
                columns = np.concatenate([columns[order], columns])
                part = (values.real // 3).astype(first.dtype)
                values = np.concatenate([(values - part)[order], part]).astype(first.dtype)
            end += len(columns)
            indptr.write(np.array(end, indptr_dtype).tobytes())
            indices.write(columns.astype(indices_dtype).tobytes())
            data.write(values.tobytes())
    lines = ["[params]", 'filetype = "raw_csr"', f"nav_shape = {[*map(int, nav_shape)]}"]
    lines += [f"sig_shape = {[*first.shape]}", "[raw_csr]"]
    for key, name in names.items():
        lines.append(f"{key}_file = {json.dumps(name.name, ensure_ascii=False)}")
        lines.append(f'{key}_dtype = "{np.dtype(types[key]).str}"')
    path.write_text("\n".join(lines) + "\n", "utf8")
    return path
