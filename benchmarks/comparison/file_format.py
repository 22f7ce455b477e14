"""What is to be known of a format, so that every reader can open it."""

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
    """A kind of file: how it is written, and how each reader is told to open it.

    Attributes
    ----------
    name : str
        Name in tables.
    sig : tuple of int
        Shape of a frame.
    dtype : str
        Type of the frames that are written.
    level, limit : float
        Counts in the bright part of a frame, and a bound that none reaches.
    write : callable
        Writes frames to a folder, given their scan shape.
    files : str
        Pattern of the names of the files with the frames.
    record : dtype
        A frame as it is stored, with all that lies around it. Its field "pixels" is what numpy
        maps, in a file that ends with its last frame; without, no strided array shows the frames.
    decode : callable, optional
        Makes frames of what numpy finds.
    opened : str
        Name of the file that is opened, where it is none of those.
    binning : int
        Rows of the detector in each stored row, which is shown as often.
    period : int
        Frames repeat after this number. It is prime, so that no row of a scan and no tile looks
        like the one before.
    options : mapping
        Of ``dask_tiled.open_dataset``.
    libertem : str
        LiberTEM's name of the format, and
    libertem_options : mapping
        what it wants to know beside path and scan shape.
    rosettasciio : str
        RosettaSciIO's name of the format; empty where it has none, and
    rosettasciio_options : callable
        what it wants to know, given the scan shape, and
    upside_down : bool
        whether it shows frames like that.
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
    """Describe pixels with so many bytes in front of them and after them."""
    return np.dtype([("header", f"V{header}"), ("pixels", dtype, shape), ("footer", f"V{footer}")])
