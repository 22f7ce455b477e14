"""Write Imaris files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

Extent = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


def write_ims(
    path: StrPath,
    volumes: npt.ArrayLike,
    *,
    levels: int = 1,
    chunks: tuple[int, int, int] | None = (4, 8, 8),
    padded: bool = True,
    compression: str | None = "gzip",
    extent: Extent = ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    unit: str = "um",
    channels: Sequence[str] = (),
    colours: Sequence[tuple[float, float, float]] = (),
    times: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Write an Imaris file of volumes, (t, c, z, y, x); each level has every second voxel.

    Parameters
    ----------
    levels
        Number of levels.
    chunks
        Chunk shape of the volumes; None for contiguous ones.
    padded
        Pad volumes to whole chunks, as Imaris does.
    compression
        Filter of h5py.
    extent
        First and last coordinate along x, y and z.
    unit
        Unit of the coordinates; empty for none.
    channels, times
        Names of the channels, and a date with time for each time point.
    colours
        Red, green and blue of each channel, from 0 to 1.
    facts
        Further attributes of the image.
    """
    import h5py

    path, array = Path(path), np.asarray(volumes)
    with h5py.File(path, "w") as file:
        names = {"DataSetDirectoryName": "DataSet", "DataSetInfoDirectoryName": "DataSetInfo"}
        _say(file, {"ImarisDataSet": "ImarisDataSet", "ImarisVersion": "5.5.0", **names})
        _say_facts(file, array.shape[::-1], extent, {"Unit": unit} if unit else {}, facts or {})
        for k, name in enumerate(channels):
            _say(file.require_group(f"DataSetInfo/Channel {k}"), {"Name": name})
        for k, colour in enumerate(colours):
            told = {"Color": " ".join(f"{part:.3f}" for part in colour)}
            _say(file.require_group(f"DataSetInfo/Channel {k}"), told)
        told = {f"TimePoint{k}": time for k, time in enumerate(times, 1)}
        _say(file.require_group("DataSetInfo/TimeInfo"), told)
        for level in range(levels):
            shown = array[..., :: 2**level, :: 2**level, :: 2**level]
            for t, c in product(*map(range, shown.shape[:2])):
                name = f"DataSet/ResolutionLevel {level}/TimePoint {t}/Channel {c}"
                group, volume = file.require_group(name), shown[t, c]
                sizes = zip("ZYX", volume.shape, strict=True)
                _say(group, {f"ImageSize{axis}": str(size) for axis, size in sizes})
                if padded and chunks:
                    more = [(0, -n % size) for n, size in zip(volume.shape, chunks, strict=True)]
                    volume = np.pad(volume, more, constant_values=99)
                options: dict[str, Any] = {"compression": compression} if chunks else {}
                fits = chunks and tuple(map(min, chunks, volume.shape))
                group.create_dataset("Data", data=volume, chunks=fits, **options)
                group.create_dataset("Histogram", data=np.zeros(256, "u8"))
    return path


def _say_facts(
    file: Any, sizes: tuple[int, ...], extent: Extent, *facts: Mapping[str, str]
) -> None:
    told = {axis: str(n) for axis, n in zip("XYZ", sizes, strict=False)}
    for number, ends in enumerate(extent):
        told[f"ExtMin{number}"], told[f"ExtMax{number}"] = (f"{n:.9f}" for n in ends)
    for more in facts:
        told |= more
    _say(file.require_group("DataSetInfo/Image"), told)


def _say(group: Any, facts: Mapping[str, str]) -> None:
    """Write attributes as Imaris does: arrays of single characters."""
    for name, value in facts.items():
        group.attrs[name] = np.frombuffer(value.encode("latin1"), "S1")
