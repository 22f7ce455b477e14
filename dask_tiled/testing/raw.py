"""Writer of raw files, with optional gaps around frames, and of `.npy` files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import Frames, StrPath, iter_frames, same_kind
from dask_tiled.testing.records import filler, write_records


def write_raw(
    path: StrPath,
    frames: Frames,
    *,
    file_header: int = 0,
    frame_header: int = 0,
    frame_footer: int = 0,
    sig_dims: int = 2,
) -> Path:
    """Write frames one after another, in their own dtype and byte order.

    Frame ``i`` starts at byte ``file_header + (i + 1) * frame_header + i * (frame_bytes +
    frame_footer)``. Headers and footers are filled with text, so that a reader that decodes them as
    pixels fails the comparison.

    Parameters
    ----------
    file_header, frame_header, frame_footer
        Sizes in bytes of the text at the start of the file, before each frame and after each frame.
    """
    header = filler(b"FILE HEADER ", file_header)
    before = filler(b"frame header ", frame_header)
    after = filler(b"frame footer ", frame_footer)

    every = same_kind(iter_frames(frames, sig_dims))
    write_records(path, every, lambda _, frame: before + frame.tobytes() + after, header=header)
    return Path(path)


def write_npy(
    path: StrPath,
    array: npt.ArrayLike,
    *,
    version: tuple[int, int] = (1, 0),
    order: Literal["C", "F"] = "C",
) -> Path:
    """Write an array of any shape, without Python objects, as a `.npy` file.

    Parameters
    ----------
    path
        File to write; unlike in `numpy.save`, no extension is added.
    version
        Version of the `.npy` format: (1, 0), (2, 0) or (3, 0).
    order
        Order of the pixels in the file, which sets ``fortran_order`` in its header. Arrays with
        fewer than two axes longer than 1 are identical in both orders, and written as "C".
    """
    ordered = np.asarray(array, order=order)
    with Path(path).open("wb") as file:
        np.lib.format.write_array(file, ordered, version=version, allow_pickle=False)
    return Path(path)
