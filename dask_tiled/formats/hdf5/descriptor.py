"""HDF5: any dataset of numbers in a file, with what NeXus, EMD, HyperSpy and Eiger files add.

Layout facts: the HDF5 File Format Specification, version 3.0; for series of files, the
documentation of the Eiger detectors of Dectris.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, check_whole
from dask_tiled.formats.format import Format
from dask_tiled.formats.hdf5.axes import calibration, named, plain_attributes
from dask_tiled.formats.hdf5.chunks import open_file
from dask_tiled.formats.hdf5.properties import filters_of, leads_to_pipe
from dask_tiled.formats.hdf5.storage import Pieces
from dask_tiled.model.description import Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.indexing import Cut, Selection
from dask_tiled.model.layout import Layout

MAGIC = b"\x89HDF\r\n\x1a\n"
SERIES = re.compile(r"data_\d{6}")
"""Names of the parts of a series, in the order of their frames."""
MOST_OBJECTS = 20_000
"""So many groups and datasets are looked at."""
MOST_LISTED = 100
"""So many datasets are listed in the metadata."""
MOST_BYTES = 1 << 62
"""Larger arrays have pixels that no offset reaches."""
BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError)
"""What h5py raises where a file is corrupt."""


class Source(NamedTuple):
    """An array in a file: one dataset, or several that continue each other along the first axis.

    Attributes
    ----------
    path : str
        Path in the file, of the dataset or of the group of all of them.
    shape : tuple of int
    dtype : numpy.dtype
    members : tuple of h5py.Dataset
    missing : str
        Name of a dataset that should be between them, and is not.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    members: tuple[Any, ...]
    missing: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def sniff(path: str, head: bytes) -> str | None:
    """Look for the magic bytes: at the start, or at a power of two, after a block of the user's."""
    at = 0
    while at == 0 or read_head(path, 1, at):
        found = head[at : at + 8] if at + 8 <= len(head) else read_head(path, 8, at)
        if found == MAGIC:
            return None
        at = 2 * at or 512
    return f"does not begin with {MAGIC!r}"


def describe(
    paths: Sequence[str], *, dataset: str | None = None, sig_dims: int | None = None
) -> Description:
    """Describe a dataset of an HDF5 file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    dataset : str, optional
        Path of the dataset in the file, or of a group, for the largest dataset in it; by default
        the largest of all.
    sig_dims : int, optional
        How many of the last axes are signal axes; by default what the file says, or 2.
    """
    if len(paths) != 1:
        raise DatasetError(
            "hdf5 opens one file at a time", path=paths[0], found=f"{len(paths)} files"
        )
    file = File.at(paths[0])
    try:
        with open_file(file) as opened:
            return _describe(file, opened, dataset, sig_dims)
    except DatasetError:
        raise
    except BROKEN as error:
        raise CorruptFileError(
            "the HDF5 library cannot read the file", path=file.path, found=str(error)[:300]
        ) from error


def _describe(file: File, opened: Any, dataset: str | None, sig_dims: int | None) -> Description:
    known = {source.path: source for source in _series_first(_sources(opened), opened)}
    source = _chosen(file, opened, known, dataset)
    first = source.members[0]
    _check(file, source)
    group_path = source.path if len(source.members) > 1 else posixpath.dirname(source.path)
    name = posixpath.basename(source.path)
    axes = calibration(opened[group_path or "/"], first, name, source.shape)
    if sig_dims is None:
        sig_dims = 2 if axes.sig_dims is None else axes.sig_dims
    sig_dims = min(check_whole("sig_dims", sig_dims, least=1, path=file.path), len(source.shape))
    split = len(source.shape) - sig_dims
    nav = source.shape[:split]
    pieces = Pieces(file, (nav or (1,)) + source.shape[split:], source.dtype)
    at = 0
    for member in source.members:
        where = file.path if member.file == opened else member.file.filename
        origin = [0] * len(pieces.shape)
        origin[-len(source.shape)] = at
        pieces.add(member, where, tuple(origin))
        at += member.shape[0]
    shape = pieces.shape
    n = len(nav or (1,))
    selection = Selection(nav, math.prod(nav))
    cuts = tuple(Cut(0, 1, size) for size in source.shape)
    layout = Layout(
        pieces.files, shape[:n], shape[n:], pieces.table(), pieces.decoders, selection, cuts
    )
    metadata = {
        "dataset": source.path,
        "shape": source.shape,
        "dtype": str(source.dtype),
        "chunks": first.chunks or (),
        "filters": tuple(number for number, _ in filters_of(first)),
        "orientation": "axes as they are stored",
        "axes_from": axes.convention or "nothing in the file",
        "datasets": _listed(known),
        "attributes": dict(_attributes(opened, source.path)),
    }
    return Description.of(
        "hdf5",
        layout,
        {"hdf5": metadata},
        named(axes.axes, split),
        base_shape=pieces.base_shape(),
    )


def _sources(top: Any, name: str = "") -> Iterator[Source]:
    """Go through the datasets of numbers in a group, links included; none is visited twice."""
    import h5py

    waiting: deque[tuple[str, Any]] = deque([(name, top)])
    seen: set[tuple[Any, Any]] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        path, item = waiting.popleft()
        info = h5py.h5o.get_info(item.id)
        place = info.fileno, info.addr if hasattr(info, "addr") else bytes(info.token)
        if place in seen:
            continue
        seen.add(place)
        if isinstance(item, h5py.Dataset):
            dtype = _number_type(item)
            if item.shape and dtype is not None:
                yield Source(path, item.shape, dtype, (item,))
        elif isinstance(item, h5py.Group):
            for inner in islice(item, MOST_OBJECTS - len(waiting)):
                try:
                    if not leads_to_pipe(item, inner):
                        waiting.append((f"{path}/{inner}", item[inner]))
                except BROKEN:  # a link to something that is not there
                    continue


def _number_type(dataset: Any) -> np.dtype | None:
    """Give the type of the pixels of a dataset; None if they are no numbers."""
    try:
        dtype = _bare(dataset.dtype)
    except BROKEN:  # a type that numpy has not
        return None
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    numbers = all(field.base.kind in "biufc" or field.names for field in fields)
    return dtype if numbers and not dtype.hasobject and not dtype.shape else None


def _bare(dtype: np.dtype) -> np.dtype:
    """Leave out what h5py notes in a type."""
    if dtype.names is None:
        return np.dtype(dtype.str) if dtype.subdtype is None else dtype
    fields: Mapping[str, Any] = dtype.fields or {}
    parts = {name: fields[name] for name in dtype.names}
    return np.dtype(
        {
            "names": list(parts),
            "formats": [_bare(part[0]) for part in parts.values()],
            "offsets": [part[1] for part in parts.values()],
            "itemsize": dtype.itemsize,
        }
    )


def _series_first(sources: Iterator[Source], opened: Any) -> list[Source]:
    """Put the data_000001, data_000002, ... of an Eiger master together, too."""
    found = list(sources)
    groups: dict[str, list[Source]] = {}
    for source in found:
        folder, name = posixpath.split(source.path)
        if SERIES.fullmatch(name) and len(source.shape) == 3:
            groups.setdefault(folder, []).append(source)
    series = []
    for folder, members in groups.items():
        members.sort(key=lambda source: source.path)
        first = members[0]
        alike = {(source.shape[1:], source.dtype) for source in members}
        # Names stay where a file is gone; the numbers of the first ones are still wanted.
        names = sorted(filter(SERIES.fullmatch, opened[folder]))
        if len(names) > 1 and len(alike) == 1:
            shape = sum(source.shape[0] for source in members), *first.shape[1:]
            datasets = tuple(source.members[0] for source in members)
            numbers = [int(source.path[-6:]) for source in members]
            gaps = sorted({*range(int(names[0][-6:]), numbers[-1])} - {*numbers})
            missing = f"data_{gaps[0]:06d}" if gaps else ""
            series.append(Source(folder, shape, first.dtype, datasets, missing))
    return series + found


def _chosen(file: File, opened: Any, known: Mapping[str, Source], dataset: str | None) -> Source:
    """Find the dataset that is asked for, or the largest."""
    if dataset is not None and not isinstance(dataset, str):
        raise DatasetError("dataset must be a path in the file", path=file.path, found=dataset)
    path = "/" + (dataset or "").strip("/")
    if path in known:
        return known[path]
    some = list(known.values())
    if path != "/":  # a group, or a dataset that was met by another path
        item = opened.get(path)  # None for a link to nothing
        some = [] if item is None else _series_first(_sources(item, path), opened)
    if not some:
        raise DatasetError(
            "no such dataset of numbers" if dataset else "there is no dataset of numbers",
            path=file.path,
            expected=", ".join([*known][:20]) or None,
            found=dataset,
        )
    return max(some, key=lambda source: source.nbytes)


def _check(file: File, source: Source) -> None:
    if not source.nbytes:
        raise DatasetError("the array is empty", path=file.path, found=f"shape {source.shape}")
    if source.nbytes > MOST_BYTES:
        raise CorruptFileError(
            "the array is too large", path=file.path, where=source.path, found=source.shape
        )
    if source.missing:
        what = "a part of the series is missing"
        raise TruncatedFileError(what, path=file.path, where=source.path, expected=source.missing)


def _listed(known: Mapping[str, Source]) -> dict[str, Any]:
    """Tell about the datasets in a file: the first ones."""
    return {
        path: {
            "shape": source.shape,
            "dtype": str(source.dtype),
            "chunks": source.members[0].chunks or (),
        }
        for path, source in [*known.items()][:MOST_LISTED]
    }


def _attributes(opened: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read the attributes of a dataset, and of all groups around it."""
    parts = path.split("/")
    for k in range(1, len(parts) + 1):
        name = "/".join(parts[:k]) or "/"
        found = plain_attributes(opened[name].attrs)
        if found:
            yield name, found


FORMAT = Format(
    name="hdf5",
    extensions=(".h5", ".hdf5", ".hdf", ".hspy", ".nxs", ".nx5", ".emd", ".de5", ".mat"),
    summary="any dataset of numbers, with any filter, in chunks or not, and in several files",
    nav_shape_from="the shape of the dataset, all but its last axes",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO", "h5py"),
)
