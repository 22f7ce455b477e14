"""Description of a format, with everything that the readers need to open it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Frames = Iterable[Array]
Shape = tuple[int, int]
Write = Callable[[Path, Frames, Shape], object]


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """Type of file: how it is written, and how each reader opens it.

    Attributes
    ----------
    name : str
        Name in tables.
    sig : tuple of int
        Shape of a frame.
    dtype : str
        Dtype of the written frames.
    level, limit : float
        Mean counts in the bright part of a frame, and an upper limit of all counts.
    write : callable
        Function that writes frames to a folder, with their scan shape as an argument.
    files : str
        Glob pattern of the files with the frames.
    record : dtype
        Stored frame, with everything around it. numpy maps its field "pixels", in a file that ends
        with its last frame; without that field, the frames do not form a strided array.
    decode : callable, optional
        Function that decodes the mapped pixels to frames.
    opened : str
        Name of the file to open, if it does not match `files`.
    binning : int
        Number of detector rows summed in each stored row; readers repeat the row as often.
    period : int
        Frames repeat after this number. It is prime, so that consecutive scan rows and tiles
        differ.
    options : mapping
        Options of ``dask_tiled.open_dataset``.
    libertem : str
        LiberTEM's name of the format.
    libertem_options : mapping
        Parameters of LiberTEM besides path and scan shape.
    rosettasciio : str
        RosettaSciIO's name of the format; empty if it does not support the format.
    rosettasciio_options : callable
        Function that returns parameters of RosettaSciIO for a scan shape.
    upside_down : bool
        Whether RosettaSciIO returns frames upside down.
    """

    name: str
    sig: Shape
    dtype: str
    level: float
    limit: float
    write: Write
    files: str
    record: np.dtype[Any]
    decode: Callable[[Array], Array] | None = None
    opened: str = ""
    binning: int = 1
    period: int = 61
    options: Mapping[str, Any] = field(default_factory=dict)
    libertem: str
    libertem_options: Mapping[str, Any] = field(default_factory=dict)
    rosettasciio: str = ""
    rosettasciio_options: Callable[[Shape], Mapping[str, Any]] = lambda _nav: {}
    upside_down: bool = False


def stored(dtype: str, shape: tuple[int, ...], header: int = 0, footer: int = 0) -> np.dtype[Any]:
    """Return the dtype of a stored frame with a header and a footer of given sizes in bytes."""
    return np.dtype([("header", f"V{header}"), ("pixels", dtype, shape), ("footer", f"V{footer}")])
