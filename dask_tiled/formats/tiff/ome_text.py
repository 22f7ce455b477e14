"""OME-XML as it stands in files: in the first ImageDescription of a TIFF file, or on its own.

Layout facts: TIFF, revision 6.0; the BigTIFF design; the OME-TIFF specification.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tiff.ifd import FLAVOURS, opened
from dask_tiled.model.files import File, read_exactly, read_head

MAX_BYTES = 1 << 28
"""A plane takes some 200 bytes of the text."""
HEAD_BYTES = 1 << 12
"""What comes before the UUID of the document fits into them."""
IMAGE_DESCRIPTION = 270

_SPACE = b"\0 \t\r\n"
# Possessive and atomic: comments after comments could be told apart in too many ways.
_PROLOG = rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<\?.*?\?>|<!--.*?-->)\s*)*+"
_ROOT = re.compile(_PROLOG + rb"<(?:[\w.-]+:)?OME(?=[\s/>])([^>]*)", re.DOTALL)
_UUID = re.compile(rb"""\sUUID\s*=\s*["']([^"']*)["']""")


class Place(NamedTuple):
    """Where a text stands in a file."""

    start: int
    nbytes: int


def find_description(path: str | os.PathLike[str]) -> Place | None:
    """Find the ImageDescription of the first page of a TIFF file; None where there is none.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF file, or its first page is damaged.
    """
    with opened(File.at(path)) as source:
        ifd = source.ifd(next(source.chain()))
        entry = ifd.entries.get(IMAGE_DESCRIPTION)
        if entry is None or entry.nbytes <= len(entry.field):
            return None
        (start,) = source.flavour.word.unpack(entry.field)
        return Place(start, entry.nbytes)


def is_tiff(head: bytes) -> bool:
    """Tell whether a file begins as a TIFF file."""
    return head.startswith(tuple(FLAVOURS))


def is_document(head: bytes) -> bool:
    """Tell whether a file begins as an XML document whose root is OME."""
    return _ROOT.match(head) is not None


def is_ome_tiff(path: str | os.PathLike[str], head: bytes) -> bool:
    """Tell whether a file is a TIFF file, and describes its first page as OME-TIFF files do."""
    try:
        place = find_description(path) if is_tiff(head) else None
    except DatasetError:
        return False
    if place is None:
        return False
    tail = min(place.nbytes, 64)
    end = read_head(path, tail, place.start + place.nbytes - tail)
    return end.rstrip(_SPACE).endswith(b"OME>")


def read_text(path: str | os.PathLike[str]) -> bytes:
    """Read the OME-XML of a file.

    Raises
    ------
    CorruptFileError
        There is none, or it is too large.
    TruncatedFileError
        The file ends inside.
    """
    head = read_head(path, HEAD_BYTES)
    place = Place(0, os.stat(path).st_size)
    if not is_document(head):
        found = find_description(path)
        if found is None:
            raise CorruptFileError("no OME-XML in the file", path=path)
        place = found
    if place.nbytes > MAX_BYTES:
        raise CorruptFileError(
            "the OME-XML is too large",
            path=path,
            where=f"byte {place.start}",
            expected=f"at most {MAX_BYTES} bytes",
            found=place.nbytes,
        )
    return as_utf8(read_exactly(path, place.nbytes, place.start, "the OME-XML").strip(_SPACE))


def as_utf8(text: bytes) -> bytes:
    """Give a text in UTF-8, which some writers promise and then write a micron in Latin 1."""
    try:
        text.decode()
    except UnicodeDecodeError:
        if b"UTF-8" in text[:64].upper() or not text.startswith(b"<?xml"):
            return text.decode("latin-1").encode()
    return text


def read_uuid(path: str | os.PathLike[str]) -> str:
    """Read the UUID of the OME-XML in a file, and no more of it; empty where there is none.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF file and no OME-XML, or its first page is damaged.
    """
    head = read_head(path, HEAD_BYTES)
    if is_tiff(head):
        place = find_description(path) or Place(0, 0)
        head = read_head(path, min(place.nbytes, HEAD_BYTES), place.start).lstrip(_SPACE)
    root = _ROOT.match(head)
    found = root and _UUID.search(root[1])
    return plain_uuid(found[1].decode(errors="replace")) if found else ""


def plain_uuid(text: str | None) -> str:
    """Write a UUID in one way: in lower case, without what says that it is one."""
    return (text or "").strip().lower().removeprefix("urn:uuid:")
