"""Write Velox files with streams of X-ray events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

END = 65535
"""Word that ends a pixel."""
LONGEST = 60_000
"""Bytes of the metadata of a frame."""


def write_velox(
    path: StrPath,
    counts: npt.ArrayLike,
    *,
    chunk: int | None = 8192,
    dispersion: float = 5.0,
    pixel_size: float = 1e-9,
    open_end: bool = False,
    whole: int = 128,
) -> Path:
    """Write streams of X-ray events, one for each detector, as Velox does.

    Parameters
    ----------
    counts
        Counts of shape (detector, frame, y, x, channel).
    chunk
        Words of a chunk; None for a contiguous stream.
    dispersion
        Energy of a channel in eV.
    pixel_size
        Step of the scan in m.
    open_end
        Leave out the last word of each stream, which ends the last pixel.
    whole
        Side of the field of view in pixels, of which the scan is a part.
    """
    found = np.asarray(counts)
    if found.ndim != 5 or found.dtype.kind not in "biu":
        raise TypeError(f"counts of shape {found.shape} {found.dtype}")
    streams = [_words(frames) for frames in found]
    if open_end:
        streams = [(words[:-1], starts) for words, starts in streams]
    return write_streams(
        path,
        streams,
        found.shape[2:],
        chunk=chunk,
        dispersion=dispersion,
        pixel_size=pixel_size,
        whole=whole,
    )


def _words(frames: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint16], list[int]]:
    """Return the words of a stream, and the number of the first word of each frame."""
    channels = frames.shape[-1]
    pixels = frames.reshape(-1, channels)
    times = np.concatenate([pixels, np.ones((len(pixels), 1), pixels.dtype)], axis=1)
    words = np.tile(np.append(np.arange(channels), END).astype("<u2"), len(pixels))
    lengths = times.reshape(len(frames), -1).sum(axis=1, dtype=np.int64)
    return np.repeat(words, times.ravel()), [0, *np.cumsum(lengths)[:-1].tolist()]


def write_streams(
    path: StrPath,
    streams: Sequence[tuple[npt.NDArray[np.uint16], Sequence[int]]],
    shape: tuple[int, ...],
    *,
    chunk: int | None = 8192,
    dispersion: float = 5.0,
    pixel_size: float = 1e-9,
    whole: int = 128,
) -> Path:
    """Write streams of given words.

    Parameters
    ----------
    streams
        For each detector its words, and the number of the first word of each frame.
    shape
        Shape (y, x, channel) of a frame.
    chunk, dispersion, pixel_size, whole
        As in :func:`write_velox`.
    """
    import h5py

    path, (height, width, channels) = Path(path), shape
    whole = max(whole, height, width)
    names = [f"SuperXG2{k}" for k in range(1, len(streams) + 1)]
    settings = {
        "bincount": str(channels),
        "StreamEncoding": "uint16",
        "RasterScanDefinition": {"Width": str(whole), "Height": str(whole)},
    }
    ends = {"right": 0.25 + width / whole, "bottom": 0.125 + height / whole}
    area = {"left": 0.25, "top": 0.125, **ends}
    size = {"width": str(whole), "height": str(whole)}
    offset = {"x": "-2e-8", "y": "-1e-8"}
    scan = {
        "ScanSize": size,
        "ScanArea": {side: str(at) for side, at in area.items()},
        "DwellTime": "1e-6",
        "FrameTime": str(2e-6 * height * width),
    }
    result = {
        "PixelSize": {"width": str(pixel_size), "height": str(pixel_size)},
        "PixelUnitX": "m",
        "PixelUnitY": "m",
        "Offset": offset,
    }
    date = {"AcquisitionStartDatetime": {"DateTime": "1709189884"}}
    shared = {"Acquisition": date, "Scan": scan}
    with h5py.File(path, "w") as file:
        _put_text(file, "Version", {"version": "11", "format": "Velox"})
        for number, (words, starts) in enumerate(streams):
            group = file.create_group(f"Data/SpectrumStream/{number:032x}")
            how = {"chunks": (chunk, 1), "maxshape": (None, 1)} if chunk else {}
            group.create_dataset("Data", data=words.reshape(-1, 1), dtype="<u2", **how)
            group["FrameLocationTable"] = np.array(starts, "<u8").reshape(-1, 1)
            _put_text(group, "AcquisitionSettings", settings)
            said = [
                shared
                | {
                    "Detectors": _detectors(names, dispersion, frame + 1.0),
                    "BinaryResult": result | {"Detector": names[number]},
                }
                for frame in range(len(starts))
            ]
            _put_metadata(group, said)
        frames = len(streams[0][1])
        _put_text(
            file,
            f"Data/SpectrumImage/{0:032x}/SpectrumImageSettings",
            {"endFramePosition": str(frames)},
        )
        group = file.create_group(f"Data/Image/{0:032x}")
        group.create_dataset("Data", data=np.zeros((height, width, 1), "<u2"))
        detectors = {"Detector-0": {"DetectorName": "HAADF", "DetectorType": "ScanningDetector"}}
        image = {"BinaryResult": result | {"Detector": "HAADF"}, "Detectors": detectors}
        _put_metadata(group, [shared | image])
        _put_text(file, f"Displays/ImageDisplay/{0:032x}", {"title": "HAADF"})
    return path


def _detectors(names: Sequence[str], dispersion: float, seconds: float) -> dict[str, Any]:
    return {
        f"Detector-{k}": {
            "DetectorName": name,
            "DetectorType": "AnalyticalDetector",
            "Dispersion": str(dispersion),
            "OffsetEnergy": "-250",
            "RealTime": str(seconds),
            "LiveTime": str(0.75 * seconds),
        }
        for k, name in enumerate(names)
    }


def _put_metadata(group: Any, said: Sequence[Mapping[str, Any]]) -> None:
    """Write a column of JSON for each frame, padded with zeros."""
    columns = np.zeros((LONGEST, len(said)), "u1")
    for frame, one in enumerate(said):
        text = np.frombuffer(json.dumps(one).encode(), "u1")
        columns[: len(text), frame] = text
    group.create_dataset("Metadata", data=columns, chunks=(LONGEST, 1))


def _put_text(group: Any, name: str, said: Mapping[str, Any]) -> None:
    """Write a document of JSON as Velox does: a text of variable length, in an array of one."""
    import h5py

    group.create_dataset(name, data=[json.dumps(said)], dtype=h5py.string_dtype())
