"""Writer of DM3 and DM4 files as saved by Digital Micrograph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.dm_tags import Gap, write_tags
from dask_tiled.testing.frames import Frames, StrPath, alike

# For each data type: the dtype of the pixels, and the dtype of the elements of the stored array.
DATA_TYPES = {1: ("i2", "h"), 2: ("f4", "f"), 3: ("c8", "ff"), 6: ("u1", "B"), 7: ("i4", "i")}
DATA_TYPES |= {9: ("i1", "b"), 10: ("u2", "H"), 11: ("u4", "I"), 12: ("f8", "d"), 13: ("c16", "dd")}
DATA_TYPES |= {14: ("?", "?"), 39: ("i8", "q"), 40: ("u8", "Q")}
# Colours are (blue, green, red, alpha), in frames of shape (..., 4). Of a Fourier transform
# one half is stored.
DATA_TYPES |= {8: ("V4", "i"), 23: ("V4", "i"), 5: ("c8", "f"), 27: ("c8", "f"), 28: ("c16", "d")}
OF_DTYPE = {np.dtype(dtype): number for number, (dtype, _) in reversed(DATA_TYPES.items())}
Calibration = tuple[float, float, str]


def write_dm(
    path: StrPath,
    frames: Frames,
    *,
    version: int = 4,
    nav_shape: tuple[int, ...] | None = None,
    sig_dims: int = 2,
    transposed: bool = False,
    data_type: int | None = None,
    calibrations: Sequence[Calibration] = (),
    name: str = "frames",
    tags: Mapping[str, Any] | None = None,
    thumbnail: bool = True,
    more: Mapping[str, Array] | None = None,
    pixels_last: bool = False,
) -> Path:
    """Write a DM3 or DM4 image of one to four dimensions, optionally with further images.

    Colours are records of four u1, in the order of the file.

    Parameters
    ----------
    version
        3 or 4.
    sig_dims
        2, or 1 for spectra.
    transposed
        Whether the signal axes are stored as the slowest axes, as is usual for spectrum images and
        4D-STEM data. Otherwise such data are tagged as swapped.
    data_type
        Number of the data type, where the dtype leaves a choice: 8 or 23 for colours; 5, 27 or 28
        for the stored half of a Fourier transform, whose origin is at (height // 2, width // 2).
    calibrations
        Origin in pixels, scale and units of each axis of the array.
    name
        Name of the image.
    tags
        Further tags in "ImageTags".
    thumbnail
        Whether a thumbnail comes first.
    more
        Further images, by name.
    pixels_last
        Whether the pixels follow all other tags, at the end of the file.
    """
    path = Path(path)
    first, every = alike(frames, sig_dims)
    shape = getattr(frames, "shape", first.shape)
    nav = nav_shape or tuple(shape[: len(shape) - sig_dims])
    sig = first.shape
    kind = _data_type_of(first.dtype) if data_type is None else data_type
    order = tuple(range(len(nav + sig)))
    if transposed:
        order = order[len(nav) :] + order[: len(nav)]
    said: dict[str, Any] = {"Format": "Spectrum image"} if nav and len(sig) == 1 else {}
    if not transposed and (len(nav + sig) == 4 or (len(nav), len(sig)) == (2, 1)):
        said["Data Order Swapped"] = True
    main = _picture(name, nav + sig, order, kind, calibrations, {"Meta Data": said, **(tags or {})})
    small = np.full((8, 8), 0x80, "u4").view("V4")
    others = {f"thumbnail of {name}": small} if thumbnail else {}
    others.update(more or {})
    pictures = [
        _picture(other, a.shape, range(a.ndim), _data_type_of(a.dtype), (), {})
        for other, a in others.items()
    ]
    further = list(pictures)
    pictures.insert(1 if thumbnail else 0, main)
    shown = [{"ImageIndex": 0, "SourceSize_Pixels": (8, 8)}] if thumbnail else []
    root = {"DocumentTags": {}, "ImageList": pictures, "InImageMode": True, "Thumbnails": shown}
    if pixels_last:
        root["ImageList"] = root.pop("ImageList")
        for picture in pictures:
            picture["ImageData"] = picture.pop("ImageData")
            picture["ImageData"]["Data"] = picture["ImageData"].pop("Data")
    write_tags(path, root, version=version, trailer=0 if pixels_last else 8)
    with path.open("r+b") as file:
        for picture, array in zip(further, others.values(), strict=True):
            file.seek(picture["ImageData"]["Data"].offset)
            file.write(array.tobytes())
        at = main["ImageData"]["Data"].offset
        file.seek(at)
        file.truncate(max(path.stat().st_size, at + main["ImageData"]["Data"].nbytes))
        if transposed:
            stored: Any = np.memmap(file, first.dtype, "r+", at, sig + nav)
        for number, frame in enumerate(every):
            if number >= math.prod(nav):
                raise ValueError(f"frame {number}: expected {math.prod(nav)} frames of {nav}")
            if transposed:
                stored[(..., *np.unravel_index(number, nav))] = frame
            else:
                file.write(_stored(frame, kind))
    return path


def _data_type_of(dtype: np.dtype[Any]) -> int:
    if dtype.itemsize == 4 and dtype.kind == "V":
        return 23
    if dtype not in OF_DTYPE:
        raise ValueError(f"expected a dtype that DM files have, found {dtype}")
    return OF_DTYPE[dtype]


def _picture(
    name: str,
    shape: Sequence[int],
    order: Sequence[int],
    kind: int,
    calibrations: Sequence[Calibration],
    tags: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the tags of an image; `order` lists the axes of the array, slowest first."""
    given = list(calibrations) or [(0.0, 1.0, "")] * len(shape)
    axes = [dict(zip(("Origin", "Scale", "Units"), given[k], strict=True)) for k in order]
    element = DATA_TYPES[kind][1]
    count = math.prod(shape)
    if kind in (27, 28):
        count = 2 * shape[0] * (shape[1] // 2 + 1)
    data = {
        "Calibrations": {
            "Brightness": {"Origin": 0.0, "Scale": 1.0, "Units": ""},
            "Dimension": axes[::-1],
            "DisplayCalibratedUnits": True,
        },
        "Data": Gap(element, count),
        "DataType": kind,
        "Dimensions": [shape[k] for k in order][::-1],
        "PixelDepth": np.dtype(DATA_TYPES[kind][0]).itemsize,
    }
    return {"ImageData": data, "ImageTags": dict(tags), "Name": name}


def _stored(frame: Array, kind: int) -> bytes:
    """Return the stored bytes of a frame: for Fourier transforms, the bytes of the stored half."""
    if kind in (27, 28):
        return frame[:, frame.shape[1] // 2 :: -1].tobytes()
    if kind != 5:
        return frame.tobytes()
    n = len(frame) // 2
    half = frame[:, n:].copy()
    for first, column in ((0, frame[:, 0]), (n, frame[:, n])):
        half[first, 0] = column[n].real + 1j * column[0].real
        half[first + 1 : first + n, 0] = column[n + 1 :]
    return half.tobytes()
