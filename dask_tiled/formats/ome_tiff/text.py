"""OME-XML as it stands in files: in the first ImageDescription of a TIFF file, or on its own.

Layout facts: TIFF, revision 6.0; the BigTIFF design; the OME-TIFF specification.
"""

from __future__ import annotations

import os
import re

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.tiff.ifd import find_description, is_tiff
from dask_tiled.model.files import read_exactly, read_head

MAX_BYTES = 1 << 28
"""A plane takes some 200 bytes of the text."""
HEAD_BYTES = 1 << 12
"""What comes before the UUID of the document fits into them."""

_SPACE = b"\0 \t\r\n"
# Possessive and atomic: comments after comments could be told apart in too many ways.
_PROLOG = rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<\?.*?\?>|<!--.*?-->)\s*)*+"
_ROOT = re.compile(_PROLOG + rb"<(?:[\w.-]+:)?OME(?=[\s/>])([^>]*)", re.DOTALL)
_UUID = re.compile(rb"""\sUUID\s*=\s*["']([^"']*)["']""")


def is_document(head: bytes) -> bool:
    """Tell whether a file begins as an XML document whose root is OME."""
    return _ROOT.match(head) is not None


def read_text(path: str) -> bytes:
    """Read the OME-XML of a file."""
    start, nbytes = 0, os.stat(path).st_size
    if not is_document(read_head(path, HEAD_BYTES)):
        start, nbytes = find_description(path)
    if not 0 < nbytes <= MAX_BYTES:
        raise CorruptFileError(
            "no OME-XML in the file, or too much",
            path=path,
            where=f"byte {start}",
            expected=f"at most {MAX_BYTES} bytes",
            found=nbytes,
        )
    return as_utf8(read_exactly(path, nbytes, start, "the OME-XML").strip(_SPACE))


def as_utf8(text: bytes) -> bytes:
    """Give a text in UTF-8, which some writers promise and then write a micron in Latin 1."""
    try:
        text.decode()
    except UnicodeDecodeError:
        if b"UTF-8" in text[:64].upper() or not text.startswith(b"<?xml"):
            return text.decode("latin-1").encode()
    return text


def read_uuid(path: str) -> str:
    """Read the UUID of the OME-XML in a file, and no more of it; empty where there is none."""
    head = read_head(path, HEAD_BYTES)
    if is_tiff(head):
        start, nbytes = find_description(path)
        head = read_head(path, min(nbytes, HEAD_BYTES), start).lstrip(_SPACE)
    root = _ROOT.match(head)
    found = root and _UUID.search(root[1])
    return plain_uuid(found[1].decode(errors="replace")) if found else ""


def plain_uuid(text: str | None) -> str:
    """Write a UUID in one way: in lower case, without what says that it is one."""
    return (text or "").strip().lower().removeprefix("urn:uuid:")
