"""Inner loops of NumPy's ufuncs, by address.

The addresses are read from ``PyUFuncObject``, a structure that NumPy's C interface documents; numba
reads its types from it, too.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import warn_once


class _UFunc(ctypes.Structure):
    """Leading fields of PyUFuncObject."""

    _fields_ = (
        ("ob_refcnt", ctypes.c_ssize_t),
        ("ob_type", ctypes.c_void_p),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    )


class InnerLoop(NamedTuple):
    """An inner loop, and the dtypes of its operands and its result."""

    address: int
    data: int
    dtypes: tuple[np.dtype, ...]


@cache
def loop_of(ufunc: np.ufunc, operands: tuple[np.dtype | type, ...]) -> InnerLoop | None:
    """Return the loop for operand dtypes; a Python scalar counts by its type.

    None if no loop can be called directly, or the ufunc is not one of NumPy's.
    """
    if getattr(np, ufunc.__name__, None) is not ufunc:
        return None
    try:
        dtypes = ufunc.resolve_dtypes((*operands, None))
    except TypeError:
        return None
    name = "".join(dtype.char for dtype in dtypes)
    signature = f"{name[:-1]}->{name[-1]}"
    native = all(x.isnative for x in (*operands, *dtypes) if isinstance(x, np.dtype))
    if signature not in ufunc.types or not native:
        return None
    fields = _UFunc.from_address(id(ufunc))
    if (fields.nin, fields.nout, fields.ntypes) != (ufunc.nin, ufunc.nout, len(ufunc.types)):
        problem = f"PyUFuncObject of numpy {np.__version__} is not as documented"
        warn_once(f"{problem}: ufuncs are called on whole chunks", RuntimeWarning)
        return None
    number = ufunc.types.index(signature)
    address = fields.functions[number]
    return InnerLoop(address, fields.data[number] or 0, dtypes) if address else None
