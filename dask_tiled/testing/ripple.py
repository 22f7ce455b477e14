"""Write Ripple files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy.typing as npt

_KINDS = {"i": "signed", "u": "unsigned", "f": "float"}
_AXES = {"image": ("depth", "height", "width"), "vector": ("height", "width", "depth")}
_ORDERS = {"<": "little-endian", ">": "big-endian", "|": "dont-care"}


def write_ripple(
    path: str | os.PathLike[str],
    array: npt.ArrayLike,
    *,
    record_by: Literal["image", "vector"] = "image",
    offset: int = 0,
    further: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write images or spectra: a ``.raw`` file, and a ``.rpl`` file beside it.

    Parameters
    ----------
    path
        Either of the files; existing ones are replaced.
    array
        Array of integers or floats with up to three axes: (depth, height, width) of images,
        (height, width, depth) of spectra. Those that it lacks at the start have length 1. It keeps
        its dtype and byte order.
    record_by
        Which of the two.
    offset
        Bytes before the pixels; text, so that a reader that takes them for pixels is noticed.
    further
        Keys that come on top, or instead: None leaves one out.

    Returns
    -------
    list of pathlib.Path
        The files: pixels, header.
    """
    stored = np.asarray(array)
    shape = (1,) * (3 - stored.ndim) + stored.shape
    order = stored.dtype.str[0]
    keys = {
        **dict(zip(_AXES[record_by], shape, strict=True)),
        "offset": offset,
        "data-type": _KINDS[stored.dtype.kind],
        "data-length": stored.dtype.itemsize,
        "byte-order": _ORDERS[order],
        "record-by": record_by,
        **(further or {}),
    }
    lines = [f"{key}\t{value}" for key, value in sorted(keys.items()) if value is not None]
    pixels, header = Path(path).with_suffix(".raw"), Path(path).with_suffix(".rpl")
    text = "\n".join(["; written to test", "key\tvalue", *lines, ""])
    header.write_text(text, "latin1")
    pixels.write_bytes((b"offset " * (offset // 7 + 1))[:offset] + stored.tobytes())
    return [pixels, header]
