"""The ImageDescription of a TIFF page, a text in which writers say what TIFF has no entries for.

Layout facts: TIFF, revision 6.0; the OME-TIFF specification.
"""

from __future__ import annotations

from dask_tiled.errors import DatasetError
from dask_tiled.formats.tiff.ifd import is_tiff, opened, size_of
from dask_tiled.model.files import File, read_head

DESCRIPTION = 270
MOST_BYTES = 1 << 26


def find_description(path: str) -> tuple[int, int]:
    """Find that of the first page: first byte and length, or 0 for none or a short one."""
    with opened(File.at(path)) as source:
        entry = source.ifd(next(source.chain())).entries.get(DESCRIPTION)
        if entry is None or size_of(entry) <= len(entry[3]):
            return 0, 0
        return source.place(entry), size_of(entry)


def read_description(file: File, ifd: int | None = None) -> str:
    """Read that of the page whose IFD is at a byte, by default the first; empty if it has none."""
    with opened(file) as source:
        entries = source.ifd(next(source.chain()) if ifd is None else ifd).entries
        entry = entries.get(DESCRIPTION)
        if entry is None or size_of(entry) > MOST_BYTES:
            return ""
        return source.value(entry).rstrip(b"\0").decode("utf-8", "replace")


def is_ome_tiff(path: str, head: bytes) -> bool:
    """Tell whether a file is a TIFF file, and describes its first page as OME-TIFF files do."""
    try:
        start, nbytes = find_description(path) if is_tiff(head) else (0, 0)
    except DatasetError:
        return False
    tail = min(nbytes, 64)
    return read_head(path, tail, start + nbytes - tail).rstrip(b"\0 \t\r\n").endswith(b"OME>")
