"""Writer of data items of Nion Swift."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath


def write_ndata(
    path: StrPath,
    array: npt.ArrayLike,
    *,
    sig_dims: int = 2,
    calibrations: Sequence[tuple[float, float, str]] = (),
    intensity: tuple[float, float, str] = (0.0, 1.0, ""),
    metadata: Mapping[str, Any] | None = None,
    deflated: bool = False,
) -> Path:
    """Write a data item: as in a project if the suffix is ``.ndata``, else as it is exported.

    Parameters
    ----------
    sig_dims
        Number of the last axes that are a datum.
    calibrations
        Offset, scale and unit of each axis.
    intensity
        Offset, scale and unit of the pixels.
    metadata
        Metadata of the instrument, and of the detector as ``hardware_source``.
    deflated
        Whether members are compressed, as they are if another program packs them again.
    """
    array = np.asarray(array)
    known = calibrations or [(0.0, 1.0, "")] * array.ndim
    keys = "offset", "scale", "units"
    told = [dict(zip(keys, one, strict=True)) for one in known]
    in_project = Path(path).suffix == ".ndata"
    properties: dict[str, Any] = {
        "title": "Scan",
        "is_sequence": False,
        "collection_dimension_count": array.ndim - sig_dims,
        "datum_dimension_count": sig_dims,
        "intensity_calibration": dict(zip(keys, intensity, strict=True)),
        "dimensional_calibrations" if in_project else "spatial_calibrations": told,
        "metadata": dict(metadata or {}),
        "version": 13 if in_project else 1,
    }
    if in_project:
        properties |= {"type": "data-item", "data_shape": array.shape}
        properties |= {"data_dtype": array.dtype.name}
    pixels = io.BytesIO()
    np.save(pixels, array)
    members = {"data.npy": pixels.getvalue(), "metadata.json": json.dumps(properties).encode()}
    names = [*members] if in_project else [*members][::-1]
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name)  # of a constant date
            info.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            archive.writestr(info, members[name])
    return Path(path)
