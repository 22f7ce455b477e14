"""Write raw files, with gaps around the frames where asked, and `.npy` files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dask_tiled.testing.frames import Frames, iter_frames

if TYPE_CHECKING:
    import os

    import numpy.typing as npt


def write_raw(
    path: str | os.PathLike[str],
    frames: Frames,
    *,
    file_header: int = 0,
    frame_header: int = 0,
    frame_footer: int = 0,
    sig_dims: int = 2,
) -> Path:
    """Write frames one after the other, in their own dtype and byte order.

    Frame ``i`` starts at byte ``file_header + (i + 1) * frame_header + i * (frame_bytes +
    frame_footer)``. Headers and footers are filled with text, so that a reader that takes them
    for pixels is noticed.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    frames
        Array of shape nav + sig, or iterable of frames of one shape and dtype; gone through once,
        one frame in memory at a time.
    file_header, frame_header, frame_footer
        Sizes in bytes: once at the start of the file, before each frame, after each frame.
    sig_dims
        Number of trailing axes of an array that make a frame.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the frames differ in shape or dtype, or a size is negative.
    """
    path = Path(path)
    start_of_file = _filler(b"FILE HEADER ", file_header)
    before = _filler(b"frame header ", frame_header)
    after = _filler(b"frame footer ", frame_footer)
    expected: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    with path.open("wb") as file:
        file.write(start_of_file)
        for number, frame in enumerate(iter_frames(frames, sig_dims)):
            found = (frame.shape, frame.dtype)
            expected = expected or found
            if found != expected:
                raise ValueError(
                    f"frame {number}: expected shape and dtype {expected}, found {found}"
                )
            file.write(before + frame.tobytes() + after)
    return path


def write_npy(
    path: str | os.PathLike[str],
    array: npt.ArrayLike,
    *,
    version: tuple[int, int] = (1, 0),
    order: Literal["C", "F"] = "C",
) -> Path:
    """Write an array as a `.npy` file.

    Parameters
    ----------
    path
        The file to write; unlike `numpy.save`, no extension is added.
    array
        Any array without Python objects; its byte order is kept.
    version
        Version of the `.npy` format: (1, 0), (2, 0) or (3, 0).
    order
        Order of the pixels in the file, and ``fortran_order`` in its header. Arrays of fewer
        than two axes of more than one pixel are the same in both orders, and written as "C".

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the array holds Python objects, or numpy does not know `version`.
    """
    path = Path(path)
    with path.open("wb") as file:
        np.lib.format.write_array(
            file, np.asarray(array, order=order), version=version, allow_pickle=False
        )
    return path


def _filler(pattern: bytes, size: int) -> bytes:
    if size < 0:
        raise ValueError(f"expected a size of 0 bytes or more, found {size}")
    return (pattern * (size // len(pattern) + 1))[:size]
