"""Write references: zarr metadata that point to byte ranges of files."""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

from dask_tiled.errors import DatasetError
from dask_tiled.export.virtual.byte_ranges import ByteRanges
from dask_tiled.export.virtual.documents import create_group, documents_of, opened_for_zarr
from dask_tiled.export.virtual.parquet import SUFFIXES, are_references, write_parquet
from dask_tiled.export.virtual.stored import stored
from dask_tiled.export.zarr.group import DATA
from dask_tiled.files.file import File
from dask_tiled.files.paths import open_file
from dask_tiled.model.description import Description
from dask_tiled.model.mark import MARK
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.new_files import check_place, file_path, new_file
from dask_tiled.storing.nodes import is_document


def to_references(
    arr: Any,
    target: Any = None,
    *,
    zarr_format: Literal[2, 3] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the byte ranges of the chunks of an opened array as kerchunk references.

    Nothing is copied: readers fetch byte ranges from the files.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, a part of one, or anything that :func:`open_dataset` opens. Each frame, or
        each compressed chunk, must be a byte range of one file.
    target : path-like or store of an icechunk session, optional
        The JSON file to write; missing parent folders are created. With the suffix ``.parquet`` or
        ``.parq``, a folder of Parquet files, which suits millions of chunks. Or an empty icechunk
        store, which needs a virtual chunk container for the folder of the files, and detects
        changed files. Changes to it are not committed.
    zarr_format : {2, 3}, optional
        By default 3 for icechunk, and 2 for Parquet, which supports no other. For JSON the format
        that more readers support: 2 if no frame is missing and the codecs are part of zarr and
        numcodecs; otherwise 3, as for codecs of this package.
    overwrite : bool
        Replace references that this function wrote before. Nothing else is ever replaced.

    Returns
    -------
    dict
        The references, version 1, of a group with the array ``data`` and the coordinates of
        calibrated axes. Missing frames have no reference: zarr returns the fill value.

    Raises
    ------
    DatasetError
        The array was computed; its pixels are corrected, scaled or converted; a frame or a chunk is
        not a byte range of one file, or zarr has no codec for its compression; zarr does not
        support its dtype; ``target`` exists, or has no container for the files.
    StaleFileError
        A file has changed since it was opened.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> refs = dask_tiled.to_references("frames.npy", "frames.json")
    >>> refs["refs"]["data/0.0.0"][1:]
    [128, 120]
    """
    _, desc = opened_for_zarr(arr)
    if zarr_format not in (None, 2, 3):
        raise DatasetError("unknown zarr_format", expected="2 or 3", found=zarr_format)
    versioned = hasattr(target, "set_virtual_refs")
    path = None if target is None or versioned else file_path(target)
    folder = path is not None and path.endswith(SUFFIXES)
    if path is not None:
        check_place(path, are_references, overwrite=overwrite, folder=folder)
    needed: Literal[2, 3] | None = 3 if versioned else 2 if folder else None
    if needed and zarr_format not in (None, needed):
        found = f"zarr_format={zarr_format}"
        raise DatasetError(
            "the target does not support this zarr_format", expected=needed, found=found
        )
    ranges, codecs = stored(desc, needed or zarr_format)
    documents = documents_of(desc, ranges.shape, **codecs)
    if versioned:
        _set_in(target, desc, ranges, codecs)
    for file in desc.files:
        file.check()
    refs: dict[str, Any] = {
        key: data.decode() if is_document(key) else f"base64:{base64.b64encode(data).decode()}"
        for key, data in documents.items()
    }
    urls = [*map(url_of, desc.files)]
    dots = "zarr_format" in codecs
    for place, number, offset, nbytes in ranges.chunks:
        numbers = [*map(str, place)]
        name = ".".join(numbers) or "0" if dots else "/".join(["c", *numbers])
        refs[f"{DATA}/{name}"] = [urls[number], offset, nbytes]
    references = {MARK: version("dask-tiled"), "version": 1, "refs": refs}
    if path is not None and folder:
        write_parquet(path, documents, ranges.chunks, urls, overwrite=overwrite)
    elif path is not None:
        with (
            new_file(path, are_references, overwrite=overwrite) as written,
            writing_to(path),
            open_file(written, "w", encoding="utf8") as file,
        ):
            json.dump(references, file)
    return references


def _set_in(store: Any, desc: Description, ranges: ByteRanges, codecs: dict[str, Any]) -> None:
    """Write the metadata and the virtual chunks of an icechunk store."""
    import zarr
    from icechunk import VirtualChunkSpec

    for file in desc.files:
        if not file.mtime_ns:
            raise DatasetError("icechunk targets support local files only", path=file.path)
    with suppress(FileNotFoundError):
        raise DatasetError("the icechunk store is not empty", found=zarr.open(store, mode="r"))
    create_group(store, desc, ranges.shape, **codecs)
    urls = [*map(url_of, desc.files)]
    # icechunk compares whole seconds: wait until the second of the last change is over.
    seconds = [-(-file.mtime_ns // 10**9) for file in desc.files]
    rest = max(seconds) - time.time()
    time.sleep(rest if 0 < rest < 1 else 0)
    times = [datetime.fromtimestamp(second, UTC) for second in seconds]
    specs = [
        VirtualChunkSpec([*place], urls[k], offset, nbytes, last_updated_at_checksum=times[k])
        for place, k, offset, nbytes in ranges.chunks
    ]
    failed = store.set_virtual_refs(DATA, specs)
    if failed:
        raise DatasetError(
            "icechunk has no virtual chunk container for the folder of the file",
            path=desc.files[ranges.chunks[0].file].path,
            found=f"{len(failed)} of {len(specs)} chunks in no container",
        )


def url_of(file: File) -> str:
    """Return the URL of a file, not percent-encoded: fsspec and icechunk do not decode it."""
    return file.path if "://" in file.path else f"file://{file.path}"
