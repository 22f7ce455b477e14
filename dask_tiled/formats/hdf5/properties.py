"""What HDF5 datasets say about the way in which they are stored.

Layout facts: the reference manual of the HDF5 library (H5P, H5S).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError, require
from dask_tiled.formats.hdf5.filters import Filter, are_known


def source_box(source: Any) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    """Read which box of a virtual dataset is which dataset; a shape without axes if none is."""
    from h5py import h5s

    none = (), (), "", ""
    if not source.vspace.is_regular_hyperslab() or "%" in source.file_name + source.dset_name:
        return none
    start, stride, count, block = source.vspace.get_regular_hyperslab()
    shape = tuple(c * b for c, b in zip(count, block, strict=True))
    box = all(c == 1 or s == b for c, s, b in zip(count, stride, block, strict=True))
    whole = source.src_space.get_select_type() == h5s.SEL_ALL or (
        source.src_space.get_select_npoints() == math.prod(source.src_space.shape)
    )
    return (start, shape, source.file_name, source.dset_name) if box and whole else none


def is_plain(dataset: Any) -> bool:
    """Tell whether the bytes of a dataset are what numpy takes them for."""
    from h5py import h5t

    return bool(h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type()))


def filters_of(dataset: Any) -> tuple[Filter, ...]:
    """List the filters of a dataset in the order in which they are applied.

    Raises
    ------
    DatasetError
        One of them is not installed.
    """
    from h5py import h5z

    properties = dataset.id.get_create_plist()
    found = []
    for k in range(properties.get_nfilters()):
        require("imagecodecs", "hdf5", dataset.file.filename)
        number, _, values, name = properties.get_filter(k)
        found.append((number, tuple(map(int, values))))
        if not are_known(found[-1:]) and not h5z.filter_avail(number):
            raise DatasetError(
                "a filter of the dataset is not installed",
                path=dataset.file.filename,
                where=dataset.name,
                found=f"filter {number}, {name.decode('latin1') or 'which has no name'}",
                hint="Run: pip install hdf5plugin",
            )
    return tuple(found)


def c_strides(shape: Sequence[int], dtype: np.dtype) -> tuple[int, ...]:
    """Give the strides of an array in C order."""
    return tuple(dtype.itemsize * math.prod(shape[k + 1 :]) for k in range(len(shape)))


def beside(name: str, path: str, variable: str) -> str:
    """Find a file that another one names, as the library does: in a folder, or beside it."""
    if os.path.isabs(name):
        return name
    folders = [os.environ.get(variable, ""), os.path.dirname(path)]
    candidates = [os.path.join(folder, name) for folder in folders if folder]
    return next((c for c in candidates if os.path.lexists(c)), candidates[-1])


def leads_to_pipe(group: Any, name: str) -> bool:
    """Tell whether a link leads to what is no file: the library would wait there for ever."""
    from h5py import ExternalLink

    link = group.get(name, getlink=True)
    if not isinstance(link, ExternalLink):
        return False
    place = beside(link.filename, group.file.filename, "HDF5_EXT_PREFIX")
    return os.path.exists(place) and not os.path.isfile(place)
