"""Files of HyperSpy: .hspy, which is HDF5, and .zspy, which is zarr in a zip file.

Layout facts: the specification of HyperSpy's files, version 3.3. RosettaSciIO, HyperSpy's own
writer, needs a dask task for each chunk of the file, and cannot write .zspy with zarr 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.blocks.iteration import iter_blocks
from dask_tiled.bridges.hyperspy import signal_of
from dask_tiled.errors import DatasetError, require
from dask_tiled.export.zarr.grids import grids_of
from dask_tiled.export.zarr.group import fits
from dask_tiled.opened.spec import Given
from dask_tiled.storing.disk import writing_to

FORMAT_VERSION = "3.3"
LEVEL = 1
"""Deflate level. HyperSpy's default, 4, takes twice as long, and saves 5 percent."""

_Group = tuple[str, dict[str, Any], dict[str, Any]]
"""The name of a group, its attributes, and arrays of numbers in it."""


def write_hspy(
    arr: da.Array,
    path: str,
    at: str,
    *,
    chunks: Any = None,
    compressors: Any = "auto",
    show: bool | None,
) -> None:
    """Write an array as HyperSpy's HDF5, deflated after a byte shuffle.

    ``chunks`` are those of the file; by default whole frames, about 1 MiB.
    """
    h5py = require("h5py", "hdf5", path, does="written")
    level = _gzip_level(compressors, path)
    compressed = {} if level is None else {"compression": level, "shuffle": True}

    def make(file: Any, groups: Iterable[_Group], place: str, chunk: tuple[int, ...]) -> Any:
        for name, attributes, lists in groups:
            group = file.require_group(f"/{name}")
            group.attrs.update(attributes)
            for key, numbers in lists.items():
                group.create_dataset(key, data=numbers)
        return file.create_dataset(place, arr.shape, arr.dtype, chunks=chunk, **compressed)

    with writing_to(path), UnfailingFile(at, "w+b") as kept:
        # From version 1.8 on, attributes may hold long texts.
        opened = partial(h5py.File, kept, "w", libver=("v108", "latest"))
        _write(arr, path, opened, "HyperSpy", make, chunks, show=show, check=kept.check)
        kept.check()


class UnfailingFile(FileIO):
    """A file that keeps the first error of writing: the HDF5 library crashes after one."""

    _error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes, unless there was an error before; return their number."""
        view = memoryview(data)
        while view and self._error is None:
            try:
                view = view[super().write(view) :]
            except OSError as error:
                self._error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Change the size, unless there was an error before; return the position."""
        try:
            return super().truncate(size) if self._error is None else 0
        except OSError as error:
            self._error = error
            return 0

    def check(self) -> None:
        """Raise the error."""
        if self._error is not None:
            raise self._error


def write_zspy(
    arr: da.Array,
    path: str,
    at: str,
    *,
    chunks: Any = None,
    compressors: Any = "auto",
    show: bool | None,
) -> None:
    """Write an array as HyperSpy's zarr, format 2, in a zip file, with Zstandard in Blosc."""
    import zarr

    codec = _codec(compressors, path)

    def make(store: Any, groups: Iterable[_Group], place: str, chunk: tuple[int, ...]) -> Any:
        options: dict[str, Any] = {"zarr_format": 2}
        for name, attributes, lists in groups:
            zarr.create_group(store, path=name, attributes=attributes, **options)
            for key, numbers in lists.items():
                zarr.create_array(store, name=f"{name}/{key}", data=numbers, **options)
        options |= {"shape": arr.shape, "dtype": arr.dtype, "chunks": chunk, "compressors": codec}
        return zarr.create_array(store, name=place, **options)

    _write(arr, path, partial(zarr.storage.ZipStore, at, mode="w"), "ZSpy", make, chunks, show=show)


def _write(
    arr: da.Array,
    path: str,
    opened: Callable[[], Any],
    kind: str,
    make: Callable[..., Any],
    chunks: Any,
    *,
    show: bool | None,
    check: Callable[[], object] = bool,
) -> None:
    """Write groups, and pixels in whole chunks of the array that ``make`` returns.

    Threads read ahead. After each chunk, ``check`` may raise an error of writing.
    """
    if arr.dtype.kind not in "biufc" or not arr.ndim:
        problem, expected = "pixels not supported by HyperSpy", "numbers, on one axis or more"
        raise DatasetError(problem, path=path, expected=expected, found=arr.dtype)
    chunk, _ = grids_of(Given.of(arr), chunks, None)
    signal = signal_of(arr)
    title = str(signal["metadata"]["General"].get("title", ""))
    home = f"Experiments/{title.replace('/', '-').strip('.') or '__unnamed__'}"
    with writing_to(path):
        file = opened()
    try:
        with writing_to(path):
            stored = make(file, _groups(signal, home, kind), f"{home}/data", chunk)
        bar = progress_bar(total=int(arr.nbytes), desc="convert", show=show)
        # A separate thread writes: h5py would report a Ctrl-C, and ignore it.
        with bar, ThreadPoolExecutor(1, thread_name_prefix="dask-tiled") as writer:
            for block in iter_blocks(aligned(arr, chunk)):
                with writing_to(path):
                    writer.submit(stored.__setitem__, block.where, block.pixels).result()
                    check()
                bar.update(block.pixels.nbytes)
    finally:
        with writing_to(path):
            file.close()


def _gzip_level(compressors: Any, path: str) -> int | None:
    """Return the gzip level of HDF5; None for no compression."""
    match compressors:
        case "auto":
            return LEVEL
        case None:
            return None
        case {"name": "gzip", "configuration": {"level": level}}:
            if level in range(10):
                return int(level)
        case {"name": "gzip"}:
            return LEVEL
    problem, expected = "invalid compressors for HDF5", "auto, none or gzip:0 to gzip:9"
    raise DatasetError(problem, path=path, expected=expected, found=repr(compressors))


def _codec(compressors: Any, path: str) -> Any:
    """Return the numcodecs codec for zarr chunks; None for no compression."""
    from numcodecs import Blosc, get_codec
    from numcodecs.abc import Codec

    if compressors is None or isinstance(compressors, Codec):
        return compressors
    if isinstance(compressors, str) and compressors == "auto":
        return Blosc("zstd", 1, Blosc.SHUFFLE)
    with suppress(ValueError, TypeError, KeyError):
        if isinstance(compressors, Mapping):
            return get_codec({"id": compressors["name"], **compressors.get("configuration", {})})
    problem = "invalid compressors for zarr format 2"
    expected = "auto, none or a codec, such as zstd:5"
    raise DatasetError(problem, path=path, expected=expected, found=repr(compressors))


def _groups(signal: Mapping[str, Any], home: str, kind: str) -> Iterator[_Group]:
    """Yield groups with attributes and lists of numbers, parents first."""
    yield "", {"file_format": kind, "file_format_version": FORMAT_VERSION}, {}
    yield "Experiments", {}, {}
    yield home, {}, {}
    for k, axis in enumerate(signal["axes"]):
        told = {"_type": "UniformDataAxis", "is_binned": False, **axis}
        lists = {"axis": told.pop("axis")} if "axis" in told else {}
        yield f"{home}/axis-{k}", told, lists
    for name in ("metadata", "original_metadata"):
        yield from _nested(f"{home}/{name}", signal[name])
    for name in ("learning_results", "attributes"):
        yield f"{home}/{name}", {}, {}


def _nested(name: str, facts: Mapping[str, Any]) -> Iterator[_Group]:
    """Yield groups for nested JSON values; lists of other values than numbers become groups."""
    attributes: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    inner: dict[str, Mapping[str, Any]] = {}
    for key, value in facts.items():
        known = key.strip("/").replace("/", ".").strip(".") or "_"
        if isinstance(value, Mapping):
            inner[known] = value
        elif isinstance(value, list) and not value:
            attributes[f"_list_empty_{known}"] = "_None_"
        elif (
            isinstance(value, list)
            and {*map(type, value)} in ({int}, {float})
            and all(map(fits, value))
        ):
            numbers[f"_list_{known}"] = np.array(value)
        elif isinstance(value, list):  # read in the order of names
            digits = len(str(len(value)))
            items = {f"{k:0{digits}d}": item for k, item in enumerate(value)}
            inner[f"_list_{len(value)}_{known}"] = items
        elif value is None:
            attributes[known] = "_None_"
        else:
            attributes[known] = value if fits(value) else str(value)
    yield name, attributes, numbers
    for key, value in inner.items():
        yield from _nested(f"{name}/{key}", value)
