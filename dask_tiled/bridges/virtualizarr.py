"""A parser for VirtualiZarr: files as virtual arrays of byte ranges."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from dask_tiled.codecs.byte_codecs import as_numcodecs
from dask_tiled.errors import DatasetError, require
from dask_tiled.export.virtual.byte_ranges import ByteRanges
from dask_tiled.export.virtual.documents import create_group, opened_for_zarr
from dask_tiled.export.virtual.references import url_of
from dask_tiled.export.virtual.stored import stored
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.description import Description
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.tiling.bases import ceil_div

if TYPE_CHECKING:
    from virtualizarr.manifests import ChunkManifest, ManifestStore


class Parser:
    """Parser of VirtualiZarr for the files that :func:`~dask_tiled.open_dataset` opens.

    ``open_virtual_dataset(url, registry, parser=Parser(...))`` returns the array ``data``, whose
    chunks are byte ranges of the files, with named dimensions. The attribute ``dask_tiled`` holds
    the axes with their scales, and metadata of the file. From VirtualiZarr 2.8 on, coordinates of
    calibrated axes are variables; older versions cannot hold data outside of files.

    Parameters
    ----------
    format : str, optional
        As for :func:`~dask_tiled.open_dataset`; by default it is detected.
    **options
        Options of :func:`~dask_tiled.open_dataset`, such as ``nav_shape``, or of the format,
        such as ``dataset`` of HDF5. URLs are read by the stores of VirtualiZarr's registry, so
        there are no ``storage_options``.

    Raises
    ------
    DatasetError
        ``storage_options`` are among the options.

    Examples
    --------
    >>> import dask_tiled
    >>> parser = dask_tiled.virtual.Parser("mib", nav_shape=(24, 32))
    >>> from virtualizarr import open_virtual_dataset  # doctest: +SKIP
    >>> scan = open_virtual_dataset("file:///data/scan.mib", registry, parser)  # doctest: +SKIP
    """

    def __init__(self, format: str | None = None, **options: Any) -> None:
        if "storage_options" in options:
            raise DatasetError("storage_options must be passed to the stores of the registry")
        self.format = format
        self.options = options

    def __repr__(self) -> str:
        given = {"format": self.format, **self.options}
        told = (f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"{type(self).__name__}({', '.join(told)})"

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Return the byte ranges of a file's chunks.

        Parameters
        ----------
        url : str
            A path, or a URL: ``file://…``, or one for which the registry has a store of obstore.
        registry : obspec_utils.registry.ObjectStoreRegistry

        Returns
        -------
        virtualizarr.manifests.ManifestStore
            A group with the array ``data``, and coordinates.

        Raises
        ------
        DatasetError
            The chunks are not byte ranges, as for :func:`~dask_tiled.to_references`;
            VirtualiZarr is not installed, or the registry has no obstore store for the URL. Also
            the errors of :func:`~dask_tiled.open_dataset`.
        """
        import zarr
        from zarr.errors import ZarrUserWarning

        manifests = require("virtualizarr", "virtualizarr", url).manifests
        scheme = urlsplit(url).scheme
        if scheme in {"", "file"}:
            there: dict[str, Any] = {"path": _path_in(url) if scheme else os.path.abspath(url)}
        else:
            there = {"path": url, "storage_options": _store_of(url, registry)}
        arr = open_dataset(**there, format=self.format, **self.options)
        _, desc = opened_for_zarr(arr)
        ranges, codecs = stored(desc, 3)
        group: dict[str, Any] = {}
        create_group(group, desc, ranges.shape, **codecs)
        for file in desc.files:
            file.check()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZarrUserWarning)  # codecs outside zarr's core
            known = {name: one.metadata for name, one in zarr.open_group(group, mode="r").arrays()}
        metadata = known.pop(DATA)
        _register(metadata)
        arrays = {DATA: manifests.ManifestArray(metadata, _references(desc, ranges))}
        if hasattr(manifests.manifest, "INLINED_CHUNK_PATH"):
            for name in filter(known.__contains__, desc.dims):
                numbers = _inlined(group[f"{name}/c/0"].to_bytes())
                arrays[name] = manifests.ManifestArray(known[name], numbers)
        return manifests.ManifestStore(manifests.ManifestGroup(arrays), registry=registry)


def _path_in(url: str) -> str:
    """Return the path in a file URL, of which VirtualiZarr quotes a current folder twice."""
    path = unquote(urlsplit(url).path)
    return unquote(path) if not os.path.exists(path) and os.path.exists(unquote(path)) else path


def _register(metadata: Any) -> None:
    """Register the codecs of an array in numcodecs, for writers of zarr format 2."""
    import_module("dask_tiled.export.filters")
    for codec in metadata.codecs:
        told = codec.to_dict()
        as_numcodecs(told["name"], told.get("configuration") or {})


def _references(desc: Description, ranges: ByteRanges) -> ChunkManifest:
    """Return the byte ranges of the chunks."""
    from virtualizarr.manifests import ChunkManifest

    counts = [*map(ceil_div, desc.shape, ranges.shape)]
    paths = np.zeros(counts, np.dtypes.StringDType())  # empty for missing chunks
    offsets, lengths = np.zeros((2, *counts), np.uint64)
    urls = [*map(url_of, desc.files)]
    for place, number, offset, nbytes in ranges.chunks:
        paths[place], offsets[place], lengths[place] = urls[number], offset, nbytes
    found = {"paths": paths, "offsets": offsets, "lengths": lengths}
    return ChunkManifest.from_arrays(**found, validate_paths=False)


def _inlined(numbers: bytes) -> ChunkManifest:
    """Return a chunk that is stored inside its manifest."""
    from virtualizarr.manifests import ChunkManifest
    from virtualizarr.manifests.manifest import INLINED_CHUNK_PATH

    return ChunkManifest.from_arrays(
        paths=np.full(1, INLINED_CHUNK_PATH, np.dtypes.StringDType()),
        offsets=np.zeros(1, np.uint64),
        lengths=np.full(1, len(numbers), np.uint64),
        inlined={(0,): numbers},
    )


def _store_of(url: str, registry: Any) -> Any:
    """Return the obstore store that reads a URL, with keys relative to the server's root."""
    try:
        store, _ = registry.resolve(url)
    except ValueError as error:
        raise DatasetError("the registry has no store for the URL", path=url) from error
    kind = type(store)
    if kind.__module__.partition(".")[0] != "obstore":
        expected = "a store of obstore"
        raise DatasetError(
            "unsupported store in the registry", path=url, expected=expected, found=kind
        )
    told = {"client_options": store.client_options, "retry_config": store.retry_config}
    if kind.__name__ == "HTTPStore":
        scheme, server, *_ = urlsplit(url)
        return kind(f"{scheme}://{server}", **told)
    if not store.prefix:
        return store
    more = {"config": store.config, "credential_provider": store.credential_provider}
    return kind(**told, **more)
