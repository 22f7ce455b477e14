"""Pieces that no file holds, because nothing was ever written there: one value all over."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder


def unwritten(dtype: np.dtype, pixel: bytes) -> BlockDecoder:
    """Give the decoder of pieces that were never written: one value all over.

    Parameters
    ----------
    dtype : numpy.dtype
        Type of the pixels, in native byte order.
    pixel : bytes
        The value, as that type.
    """
    options = (("dtype", dtype), ("pixel", pixel))
    return BlockDecoder(f"{__name__}:fill", dtype, options)


def fill(block: Block, fetch: Fetch, *, dtype: np.dtype, pixel: bytes) -> npt.NDArray[Any]:
    """Give one value as often as it is asked for."""
    return np.broadcast_to(np.frombuffer(pixel, dtype, 1)[0], block.shape)
