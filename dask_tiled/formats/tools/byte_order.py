"""Byte orders of numbers: told by the file, given by the user, or assumed with a doubt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.tools.header import Order
from dask_tiled.model.doubts import Doubt

ORDERS: Mapping[str, Order] = {"little": "<", "big": ">"}
"""Values of the option ``byte_order``."""


def given_order(byte_order: Any, path: str | os.PathLike[str]) -> Order | None:
    """Return the byte order that the user passed, or None.

    Raises
    ------
    DatasetError
        `byte_order` is neither "little" nor "big".
    """
    if byte_order is None:
        return None
    order = ORDERS.get(byte_order) if isinstance(byte_order, str) else None
    if order is None:
        problem, expected = "invalid byte_order", "'little' or 'big'"
        raise DatasetError(problem, path=path, expected=expected, found=byte_order)
    return order


def in_order(
    dtype: np.dtype,
    told: Order | None,
    byte_order: Any,
    path: str | os.PathLike[str],
    silent: str,
) -> tuple[np.dtype, tuple[Doubt, ...]]:
    """Return a dtype in the byte order of the file, and the doubt that the order is assumed.

    Parameters
    ----------
    dtype : numpy.dtype
        Type of the numbers; a single byte has no order, and leaves no doubt.
    told : {"<", ">"} or None
        Byte order that the file tells; None if it does not.
    byte_order : {"little", "big"} or None
        Byte order that the user passed, in place of the file's.
    path : path-like
        Path named in errors.
    silent : str
        What does not tell the order, such as "the header has no key -bo".

    Raises
    ------
    DatasetError
        `byte_order` has another value.
    """
    doubts: tuple[Doubt, ...] = ()
    order = given_order(byte_order, path) or told
    if order is None and dtype.itemsize > 1:
        text = f"numbers of {dtype.itemsize} bytes are read as little-endian; {silent}"
        doubts = (Doubt("byte-order", text, "pass byte_order='little', or byte_order='big'"),)
    return dtype.newbyteorder(order or "<"), doubts
