"""Writer of Ripple files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.detached import lines_of
from dask_tiled.testing.frames import StrPath
from dask_tiled.testing.records import filler

_KINDS = {"i": "signed", "u": "unsigned", "f": "float"}
_AXES = {"image": ("depth", "height", "width"), "vector": ("height", "width", "depth")}
_ORDERS = {"<": "little-endian", ">": "big-endian", "|": "dont-care"}


def write_ripple(
    path: StrPath,
    array: npt.ArrayLike,
    *,
    record_by: Literal["image", "vector"] = "image",
    offset: int = 0,
    further: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write images or spectra as a Ripple ``.raw`` file with its ``.rpl`` header.

    Parameters
    ----------
    path
        Either of the files.
    array
        Integers or floats with up to three axes: (depth, height, width) for images, (height, width,
        depth) for spectra. Missing leading axes have length 1.
    record_by
        Whether `array` holds images or spectra.
    offset
        Number of text bytes before the pixels.
    further
        As `fields` of `write_nrrd`.
    """
    stored = np.asarray(array)
    shape = (1,) * (3 - stored.ndim) + stored.shape
    keys = {
        **dict(zip(_AXES[record_by], shape, strict=True)),
        "offset": offset,
        "data-type": _KINDS[stored.dtype.kind],
        "data-length": stored.dtype.itemsize,
        "byte-order": _ORDERS[stored.dtype.str[0]],
        "record-by": record_by,
        **(further or {}),
    }
    pixels, header = Path(path).with_suffix(".raw"), Path(path).with_suffix(".rpl")
    text = "; written to test\nkey\tvalue\n" + lines_of(dict(sorted(keys.items())), "\t")
    header.write_text(text, "latin1")
    pixels.write_bytes(filler(b"offset ", offset) + stored.tobytes())
    return [pixels, header]
