"""OME-TIFF sets: locating the XML, and the files that it names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.files.file import read_exactly, read_head
from dask_tiled.files.paths import absolute, file_size, in_folder, names_in, real
from dask_tiled.formats.ome_tiff.xml import MAX_BYTES, Document, plain_uuid
from dask_tiled.formats.tiff.ifd import find_description, is_tiff
from dask_tiled.formats.tools.files import named_file

HEAD_BYTES = 1 << 12  # enough for the UUID of the document
ENDINGS = (".tif", ".tiff", ".tf2", ".tf8", ".btf", ".ome")
"""Suffixes of files that may belong to a set under another name."""
_SPACE = b"\0 \t\r\n"
# Possessive and atomic, to avoid exponential backtracking on comments.
_PROLOG = rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<\?.*?\?>|<!--.*?-->)\s*)*+"
_ROOT = re.compile(_PROLOG + rb"<(?:[\w.-]+:)?OME(?=[\s/>])([^>]*)", re.DOTALL)
_UUID = re.compile(rb"""\sUUID\s*=\s*["']([^"']*)["']""")


class SetFolder:
    """The folder of a set.

    If the file is a symbolic link, other files may be beside its target.
    """

    def __init__(self, path: str) -> None:
        self.start = absolute(path)
        self.path, behind = (os.path.dirname(one) for one in (self.start, real(path)))
        self._paths = [self.path] if real(self.path) == behind else [self.path, behind]
        self._uuids: dict[str, dict[str, list[str]]] = {}

    def find(self, name: str) -> str | None:
        """Return the path of a member, or None."""
        return named_file(name, self.start, "the OME-XML")

    def search(self, uuid: str, known: Iterable[str]) -> str | None:
        """Return the file with a UUID, among those not known by name."""
        for folder in self._paths:
            if folder not in self._uuids:
                self._uuids[folder] = self._read_uuids(folder, set(known))
            paths = self._uuids[folder].get(uuid, [])
            if len(paths) > 1:
                both = f"{uuid} in {paths[1]} too"
                raise CorruptFileError("two files have the same UUID", path=paths[0], found=both)
            if paths:
                return paths[0]
        return None

    def _read_uuids(self, folder: str, known: set[str]) -> dict[str, list[str]]:
        uuids: dict[str, list[str]] = {}
        for name in sorted(names_in(folder)):
            path = in_folder(folder, name)
            if path not in known and name.lower().endswith(ENDINGS):
                with suppress(DatasetError, FileNotFoundError, PermissionError):  # not a member
                    if self.find(path) is not None:
                        uuids.setdefault(read_uuid(path), []).append(path)
        return uuids


def read_document(path: str, planes_of: int | None = None) -> Document:
    """Read the OME-XML in a TIFF file, or in a separate file.

    The only image in a TIFF file without TiffData has all of its pages, as in Bio-Formats.
    """
    text = read_text(path)
    try:
        document = Document.parse(path, text, planes_of)
    except CorruptFileError as error:
        raise CorruptFileError(
            error.problem,
            path=path,
            expected=error.expected,
            found=error.found,
            hint=pages_hint(path),
        ) from error
    unplaced = len(document.images) == 1 and not len(document.images[0].runs.page)
    if unplaced and is_tiff(read_head(path, HEAD_BYTES)):
        return document.with_own_pages()
    return document


def pages_hint(path: str) -> str | None:
    """Return the hint that a file opens without its XML; None if the XML has no pages."""
    if is_tiff(read_head(path, HEAD_BYTES)):
        return 'With format="tiff" the pages are read without the XML.'
    return None


def open_document(path: str, folder: SetFolder) -> Document:
    """Read the OME-XML of a set, given any of its files."""
    own = read_document(path)
    if own.elsewhere is None:
        return own
    uuid, name = own.elsewhere
    what, where = "the file with the metadata of the set", "BinaryOnly in the OME-XML"
    master = folder.find(name) or (folder.search(uuid, [folder.start]) if uuid else None)
    if master is None:
        expected, found = f"a file {name!r} in {folder.path}", "no such file"
        raise DatasetError(
            f"{what} is missing",
            path=path,
            where=where,
            expected=expected,
            found=found,
            hint=pages_hint(path),
        )
    document = read_document(master)
    if document.elsewhere is not None:
        hint = f"The file is named in {path}."
        raise CorruptFileError(
            f"{what} has no metadata itself", path=master, where=where, hint=hint
        )
    return document


def find_members(
    document: Document, numbers: Sequence[int], folder: SetFolder
) -> dict[int, str | None]:
    """Return the paths of sources, by name or UUID; None for missing files."""
    path, own = absolute(document.path), _own(document)
    members = {
        number: path if number in own else folder.find(document.sources[number].name)
        for number in numbers
    }
    known = {member for member in members.values() if member is not None}
    for number, member in members.items():
        uuid = document.sources[number].uuid
        if member is None and uuid:
            members[number] = folder.search(uuid, known)
    return members


def numbers_of(path: str, document: Document, folder: SetFolder) -> list[int]:
    """Return the sources that a file stands for: by XML, by name, or by UUID."""
    own = _own(document)
    behind = real(path)
    if behind == real(document.path) and own:
        return [*own]
    names = {os.path.basename(path), os.path.basename(behind)}
    others = {n: source for n, source in enumerate(document.sources) if n not in own}
    called = [n for n, source in others.items() if os.path.basename(source.name) in names]
    named = [n for n in called if real(folder.find(others[n].name) or "") == behind]
    uuid = read_uuid(path)
    return named or [n for n, source in others.items() if source.uuid == uuid != ""]


def _own(document: Document) -> set[int]:
    """Return the sources in the XML's own file: those without name, or with its UUID."""
    # If several names share a UUID, it was copied with the XML, and identifies nothing.
    names = Counter(source.uuid for source in document.sources if source.name)
    return {
        number
        for number, (uuid, name) in enumerate(document.sources)
        if uuid in {"", document.uuid} and (not name or (uuid != "" and names[uuid] <= 1))
    }


def is_document(head: bytes) -> bool:
    """Return whether a file begins as an XML document with root OME."""
    return _ROOT.match(head) is not None


def _place(path: str) -> tuple[int, int]:
    """Return offset and length of the XML: a whole file, or the first description of TIFF."""
    if is_document(read_head(path, HEAD_BYTES)):
        return 0, file_size(path)
    return find_description(path)


def read_text(path: str) -> bytes:
    """Read the OME-XML of a file; UTF-8 unless declared otherwise."""
    start, nbytes = _place(path)
    if not 0 < nbytes <= MAX_BYTES:
        problem, most = "no OME-XML in the file, or it is too long", f"at most {MAX_BYTES} bytes"
        where = f"byte {start}"
        raise CorruptFileError(problem, path=path, where=where, expected=most, found=nbytes)
    text = read_exactly(path, nbytes, start, "the OME-XML").strip(_SPACE)
    try:
        text.decode()
    except UnicodeDecodeError:  # some writers declare UTF-8, but write a micron sign in Latin 1
        if b"UTF-8" in text[:64].upper() or not text.startswith(b"<?xml"):
            return text.decode("latin-1").encode()
    return text


def read_uuid(path: str) -> str:
    """Read only the UUID of the OME-XML in a file; empty if there is none."""
    start, nbytes = _place(path)
    root = _ROOT.match(read_head(path, min(nbytes, HEAD_BYTES), start).lstrip(_SPACE))
    uuid = root and _UUID.search(root[1])
    return plain_uuid(uuid[1].decode(errors="replace")) if uuid else ""
