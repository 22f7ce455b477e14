"""Write references as Parquet files, in kerchunk's layout, which fsspec reads lazily."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.errors import require
from dask_tiled.export.virtual.byte_ranges import StoredChunk
from dask_tiled.export.zarr.group import DATA
from dask_tiled.files.file import read_head
from dask_tiled.files.paths import open_file
from dask_tiled.model.mark import MARK
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.folders import begin_beside
from dask_tiled.storing.new_files import check_place

SUFFIXES = ".parquet", ".parq"
"""Suffixes of folders of Parquet files."""
METADATA = ".zmetadata"
BEGIN = json.dumps({MARK: ""})[:-2].encode()
"""First bytes of files written here: of the JSON, and of the metadata of a folder."""
ROWS = 100_000
"""References in a file; fsspec caches whole files."""


def are_references(path: str) -> bool:
    """Return whether a file, or the metadata in a folder, holds references written here."""
    told = os.path.join(path, METADATA) if os.path.isdir(path) else path
    return os.path.isfile(told) and read_head(told, len(BEGIN)) == BEGIN


def write_parquet(
    path: str,
    documents: Mapping[str, bytes],
    chunks: Sequence[StoredChunk],
    urls: Sequence[str],
    *,
    overwrite: bool,
) -> None:
    """Write references to a temporary folder beside the path, and rename it when complete.

    Parameters
    ----------
    documents : mapping of str to bytes
        Zarr 2 metadata, and the chunks of coordinates.
    chunks : sequence of Chunk
        All chunks of the array, in C order.
    urls : sequence of str
        URLs of the files.
    """
    require("fastparquet", "parquet", path, does="written")
    from pandas import Categorical

    attempt = f"{uuid.uuid4().hex}-{uuid.uuid4().hex}"
    check = partial(check_place, is_kind=are_references, overwrite=overwrite, folder=True)
    with begin_beside(path, [attempt], check, resume=False) as (place,), writing_to(path):
        metadata = {}
        for key, data in documents.items():
            name, _, document = key.rpartition("/")
            if document.startswith(".z"):
                metadata[key] = json.loads(data)
            else:  # coordinates have a single chunk
                columns = {"path": [None], "offset": [0], "size": [0], "raw": [data]}
                _write_rows(os.path.join(place.content.path, name), 0, columns)
        table = np.array([chunk[1:] for chunk in chunks], np.int64).reshape(-1, 3)
        for number in range(math.ceil(len(table) / ROWS)):
            files, offsets, sizes = table[number * ROWS : (number + 1) * ROWS].T
            names = Categorical.from_codes(files, urls)
            columns = {"path": names, "offset": offsets, "size": sizes}
            _write_rows(os.path.join(place.content.path, DATA), number, columns)
        with open_file(os.path.join(place.content.path, METADATA), "w", encoding="utf8") as file:
            json.dump({MARK: "", "metadata": metadata, "record_size": ROWS}, file)


def _write_rows(folder: str, number: int, columns: Mapping[str, Any]) -> None:
    import fastparquet
    from pandas import DataFrame

    os.makedirs(folder, exist_ok=True)
    fastparquet.write(
        os.path.join(folder, f"refs.{number}.parq"),
        DataFrame(columns),
        compression="ZSTD",
        write_index=False,
        stats=False,
        object_encoding={"path": "utf8", "raw": "bytes"},
        has_nulls=[name for name in ("path", "raw") if name in columns],
    )
