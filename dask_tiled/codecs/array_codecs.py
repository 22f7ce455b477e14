"""Array-to-array codecs: transposes, predictors, and the filters of numcodecs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.codecs.image_codecs import PREDICTORS, check_predictor, unpredicted
from dask_tiled.model.indexing import Array, Shaped

Config = Mapping[str, Any]

ARRAY_CODECS = {
    "transpose": "",
    "numcodecs.packbits": "",
    "numcodecs.bitround": "",
    "numcodecs.delta": "dtype",
    "numcodecs.fixedscaleoffset": "dtype",
    "numcodecs.quantize": "dtype",
    "numcodecs.astype": "decode_dtype",
    **dict.fromkeys(PREDICTORS, ""),
}
"""Array-to-array codecs, with the parameter that names the input dtype, if any."""


NUMBERS = {
    *("bool", "complex64", "complex128", "float16", "float32", "float64"),
    *(f"{sign}int{8 << k}" for sign in ("", "u") for k in range(4)),
}
"""Pixel dtypes, by the names that NumPy and zarr 3 share."""


def _numbers(dtype: Any) -> np.dtype:
    """Return the output dtype of a filter; only numbers are allowed."""
    found = np.dtype(dtype)
    if found.kind not in "biufc":
        raise ValueError(f"filters do not support pixels of type {found}")
    return found


def encoded_pixels(name: str, config: Config, given: Shaped) -> Shaped:
    """Return the shape and dtype that a codec encodes an array to.

    Raise a ValueError, TypeError or LookupError if the codec does not suit the array.
    """
    if name == "transpose":
        order = config["order"]
        if sorted(order) != [*range(len(given.shape))]:
            raise ValueError(f"invalid order {order} of a transpose of {len(given.shape)} axes")
        return Shaped(tuple(given.shape[k] for k in order), given.dtype)
    if name in PREDICTORS:
        check_predictor(config, given.shape)
        return given
    if name == "numcodecs.packbits":
        return Shaped((1 + -(-math.prod(given.shape) // 8),), np.dtype("u1"))
    astype = "encode_dtype" if name == "numcodecs.astype" else "astype"
    return Shaped(given.shape, _numbers(config.get(astype) or config.get("dtype") or given.dtype))


def decoded_pixels(name: str, config: Config, array: Array, given: Shaped) -> Array:
    """Decode an array-to-array codec."""
    import numcodecs

    if name == "transpose":
        return array.transpose(np.argsort(config["order"]))
    if name in PREDICTORS:
        return unpredicted(name, config, array)
    if name == "numcodecs.bitround":  # decoding changes nothing, as encoding only rounds
        return array.reshape(given.shape)
    config = {**config, "id": name.removeprefix("numcodecs.")}
    told = ARRAY_CODECS[name]
    if told:
        config[told] = _numbers(config.get(told) or given.dtype).str
    stored = np.ascontiguousarray(array, encoded_pixels(name, config, given).dtype)
    pixels = np.asarray(numcodecs.get_codec(config).decode(stored))
    return pixels.reshape(given.shape).astype(given.dtype, copy=False)
