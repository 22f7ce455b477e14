"""References: documents of zarr that point to bytes of files, which stay as they are."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

from dask_tiled.errors import DatasetError
from dask_tiled.export.virtual.documents import create_group, documents_of, shown_where_it_lies
from dask_tiled.export.virtual.stored_blocks import codecs_of, numcodecs_of, stored_blocks
from dask_tiled.export.virtual.stored_frames import Chunk, chunks_of, refused, stored_frames
from dask_tiled.export.zarr.group import DATA
from dask_tiled.export.zarr.new_files import check_place, new_file
from dask_tiled.export.zarr.stores import file_path
from dask_tiled.export.zarr.targets import telling_of
from dask_tiled.model.description import Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.mark import MARK
from dask_tiled.model.paths import open_file

BEGIN = json.dumps({MARK: ""})[:-2].encode()
"""So begins a file that was written here."""


def to_references(
    arr: Any,
    target: Any = None,
    *,
    zarr_format: Literal[2, 3] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write down where the chunks of an opened array lie, as references that kerchunk defines.

    Nothing is copied: who reads them fetches ranges of bytes from the files.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, or a part of one, or what :func:`open_dataset` opens, whose frames, or
        compressed chunks, are a range of bytes in one file each.
    target : path-like or store of an icechunk session, optional
        The JSON file to write, whose folder is made if need be; or an empty store, which needs a
        container of virtual chunks for the folder of the files, and knows when they were changed.
        What it is given is not committed.
    zarr_format : {2, 3}, optional
        By default 3 for icechunk, and 2, which everything reads, for JSON where no frame is missing
        and zarr knows the pixels by itself: those that are stored as numpy has them, in either byte
        order, or in chunks that codecs of numcodecs compress. Others, packed, turned or with gaps,
        are decoded by codecs of this package, such as ``dask_tiled.units``, which only zarr format
        3 can name.
    overwrite : bool
        Replace a file that this function wrote before. Nothing else is ever replaced.

    Returns
    -------
    dict
        The references, version 1, of a group with the array ``data``, and coordinates of the axes
        that the file gives a scale. Missing frames have none: zarr shows the fill value.

    Raises
    ------
    DatasetError
        The array was computed; its pixels are corrected, scaled or converted; a frame or a chunk of
        them is no range of bytes in one file, or is compressed in a way that zarr has no codec for;
        zarr has no type for them; something else is at ``target``, or it has no container for the
        files.
    StaleFileError
        A file is not the one that was opened any more.
    """
    _, desc, _ = shown_where_it_lies(arr)
    if zarr_format not in (None, 2, 3):
        raise DatasetError("no format of zarr", expected="2 or 3", found=zarr_format)
    versioned = hasattr(target, "set_virtual_refs")
    path = None if target is None or versioned else file_path(target)
    if path is not None:
        check_place(path, _is_ours, overwrite=overwrite)
    shape, chunks, options = _chunks(desc, zarr_format, versioned=versioned)
    documents = documents_of(desc, shape, **options)
    if versioned:
        _set_in(target, chunks, desc.files, lambda: create_group(target, desc, shape, **options))
    for file in desc.files:
        file.check()
    refs: dict[str, Any] = {key: _inline(key, value) for key, value in documents.items()}
    urls = [*map(_url, desc.files)]
    for place, number, offset, nbytes in chunks:
        numbers = [*map(str, place)]
        name = ".".join(numbers) or "0" if "dtype" in options else "/".join(["c", *numbers])
        refs[f"{DATA}/{name}"] = [urls[number], offset, nbytes]
    references = {MARK: version("dask-tiled"), "version": 1, "refs": refs}
    if path is not None:
        with (
            new_file(path, _is_ours, overwrite=overwrite) as written,
            telling_of(path),
            open_file(written, "w", encoding="utf8") as file,
        ):
            json.dump(references, file)
    return references


def _chunks(
    desc: Description, zarr_format: int | None, *, versioned: bool
) -> tuple[tuple[int, ...], list[Chunk], dict[str, Any]]:
    """Choose chunks: their shape, where they lie, and what zarr is told of their pixels."""
    blocks = stored_blocks(desc)
    if blocks is not None:
        usual = None if versioned or zarr_format == 3 else numcodecs_of(blocks)
        if zarr_format == 2 and usual is None:
            raise refused(desc, "need a fill value or codecs, for which there is zarr format 3")
        return blocks.shape, blocks.chunks, usual or codecs_of(blocks)
    frames = stored_frames(desc)
    dtype = frames.plain_dtype()
    missing = bool((frames.file < 0).any())
    if zarr_format == 2 and (dtype is None or missing or versioned):
        need = "icechunk" if versioned else "a codec" if dtype is None else "a plain fill value"
        raise refused(desc, f"need {need}, for which there is zarr format 3")
    shape, listed = chunks_of(desc, frames, whole=dtype is None)
    options: dict[str, Any] = {"zarr_format": 2, "dtype": dtype}
    if dtype is None or missing or versioned or zarr_format == 3:
        options = {"serializer": frames.codec(dtype)}
    return shape, list(listed), options


def _set_in(
    store: Any, chunks: Sequence[Chunk], files: Sequence[File], create: Callable[[], None]
) -> None:
    """Set the virtual chunks of an icechunk store, after what describes them."""
    import zarr
    from icechunk import VirtualChunkSpec

    for file in files:
        if not file.mtime_ns:
            raise DatasetError("icechunk is told of files on disk only", path=file.path)
    with suppress(FileNotFoundError):
        raise DatasetError("the store holds something already", found=zarr.open(store, mode="r"))
    create()
    urls = [*map(_url, files)]
    # Compared are whole seconds: of the one that has begun, all has to be over.
    seconds = [-(-file.mtime_ns // 10**9) for file in files]
    times = [datetime.fromtimestamp(second, UTC) for second in seconds]
    rest = max(seconds) - time.time()
    time.sleep(rest if 0 < rest < 1 else 0)
    specs = [
        VirtualChunkSpec([*place], urls[k], offset, nbytes, last_updated_at_checksum=times[k])
        for place, k, offset, nbytes in chunks
    ]
    failed = store.set_virtual_refs(DATA, specs)
    if failed:
        raise DatasetError(
            "icechunk has no container of virtual chunks for the file",
            path=files[chunks[0].file].path,
            found=f"{len(failed)} of {len(chunks)} chunks outside of all",
        )


def _inline(key: str, value: bytes) -> str:
    if key.rpartition("/")[2] in {"zarr.json", ".zarray", ".zattrs", ".zgroup"}:
        return value.decode()
    return "base64:" + base64.b64encode(value).decode()


def _url(file: File) -> str:
    return file.path if "://" in file.path else f"file://{file.path}"


def _is_ours(path: str) -> bool:
    """Return whether a file begins as those that are written here."""
    return read_head(path, len(BEGIN)) == BEGIN
