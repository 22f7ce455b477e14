"""OME-TIFF sets: which file on disk is which file of the XML.

Layout facts: the OME-TIFF specification.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.ome_tiff.xml import Document
from dask_tiled.formats.tiff.ome_text import read_uuid

ENDINGS = (".tif", ".tiff", ".tf2", ".tf8", ".btf", ".ome")
"""Files that are called so may be members under another name than the XML says."""


class Folder:
    """The folder of a set, which its members do not lead out of.

    Where the file is a symbolic link, what is not beside it may be beside what it leads to.

    Parameters
    ----------
    path : str
        A file in it.
    outside : bool
        Whether members may lie elsewhere.
    """

    def __init__(self, path: str, *, outside: bool) -> None:
        self.start = os.path.abspath(path)
        self.path = os.path.dirname(self.start)
        self.outside = outside
        self._real = os.path.realpath(self.path)
        target = os.path.realpath(self.start)
        elsewhere = os.path.dirname(target) != self._real
        self._behind = Folder(target, outside=outside) if elsewhere else None
        self._uuids: dict[str, list[str]] | None = None

    def find(self, name: str) -> str | None:
        """Give the path of a member, or None if there is none of that name.

        Raises
        ------
        DatasetError
            It is outside of the folder.
        """
        found = self._find(name)
        return self._behind.find(name) if found is None and self._behind else found

    def _find(self, name: str) -> str | None:
        if not name or "\0" in name:
            return None
        path = os.path.normpath(os.path.join(self.path, name))
        if not self.outside and os.path.commonpath([path, self.path]) != self.path:
            raise self._outside(name, path)
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        linked = stat.S_ISLNK(mode) or os.path.dirname(path) != self.path
        if linked and not self.outside and path != self.start:
            real = os.path.realpath(path)
            if os.path.commonpath([real, self._real]) != self._real:
                raise self._outside(name, real)
        return path if os.path.isfile(path) else None

    def search(self, uuid: str, known: Iterable[str]) -> str | None:
        """Find the file with a UUID among those that are not known by another one.

        Raises
        ------
        CorruptFileError
            There are several.
        """
        if self._uuids is None:
            self._uuids = self._read_uuids(set(known))
        found = self._uuids.get(uuid, [])
        if len(found) > 1:
            raise CorruptFileError(
                "two files have the same UUID", path=found[0], found=f"{uuid} in {found[1]}, too"
            )
        if not found and self._behind:
            return self._behind.search(uuid, known)
        return found[0] if found else None

    def _read_uuids(self, known: set[str]) -> dict[str, list[str]]:
        uuids: dict[str, list[str]] = {}
        for entry in sorted(os.listdir(self.path)):
            path = os.path.join(self.path, entry)
            if path in known or not entry.lower().endswith(ENDINGS):
                continue
            try:
                if self._find(entry) is None:
                    continue
                uuids.setdefault(read_uuid(path), []).append(path)
            except (DatasetError, OSError):  # whatever it is, it is not what is looked for
                continue
        return uuids

    def _outside(self, name: str, path: str) -> DatasetError:
        return DatasetError(
            "a file of the set lies outside of its folder",
            path=self.start,
            where=f"the file name {name!r} in the OME-XML",
            expected=f"a file in {self.path}",
            found=path,
            hint="Pass outside_folder=True if you trust the file.",
        )


def open_document(path: str, folder: Folder) -> Document:
    """Read the OME-XML of a set from any of its files.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        It cannot be read.
    DatasetError
        The file that holds it is not there, or outside of the folder.
    """
    own = Document.read(path)
    if own.elsewhere is None:
        return own
    uuid, name = own.elsewhere
    master = folder.find(name) or (folder.search(uuid, [folder.start]) if uuid else None)
    if master is None:
        raise DatasetError(
            "the file with the metadata of the set is missing",
            path=path,
            where="BinaryOnly in the OME-XML",
            expected=f"a file {name!r} in {folder.path}",
            found="no such file",
        )
    document = Document.read(master)
    if document.elsewhere is not None:
        raise CorruptFileError(
            "the file with the metadata of the set has none itself",
            path=master,
            where="BinaryOnly in the OME-XML",
            hint=f"It is named in {path}.",
        )
    return document


def find_members(
    document: Document, numbers: Sequence[int], folder: Folder
) -> dict[int, str | None]:
    """Find the files that planes lie in.

    A file is found by its name; by its UUID if there is none of that name. The file that the XML
    was read from is known by its UUID, whatever it is called now.

    Parameters
    ----------
    document : Document
    numbers : sequence of int
        Which of its sources are asked for.
    folder : Folder

    Returns
    -------
    dict
        Paths by number of the source, or None for those that are missing.

    Raises
    ------
    CorruptFileError
        Two files have the UUID of one.
    DatasetError
        One is outside of the folder.
    """
    path, own = os.path.abspath(document.path), _own(document)
    found = {
        number: path if number in own else folder.find(document.sources[number].name)
        for number in numbers
    }
    known = {path for path in found.values() if path is not None}
    for number, member in found.items():
        uuid = document.sources[number].uuid
        if member is None and uuid:
            found[number] = folder.search(uuid, known)
    return found


def numbers_of(path: str, document: Document, folder: Folder) -> list[int]:
    """Find the sources that a file is: that of the XML, and what has its name, or its UUID."""
    own = _own(document)
    real = os.path.realpath(path)
    if real == os.path.realpath(document.path) and own:
        return [*own]
    names = {os.path.basename(path), os.path.basename(real)}
    others = [(n, one) for n, one in enumerate(document.sources) if n not in own]
    named = [
        number
        for number, source in others
        if os.path.basename(source.name) in names
        and os.path.realpath(folder.find(source.name) or "") == real
    ]
    uuid = read_uuid(path)
    return named or [number for number, source in others if source.uuid == uuid != ""]


def _own(document: Document) -> set[int]:
    """Find the sources that are the file of the XML itself: those without a name, or its UUID.

    Where several names have one UUID, it was copied together with the XML, and says nothing.
    """
    names = Counter(source.uuid for source in document.sources if source.name)
    return {
        number
        for number, (uuid, name) in enumerate(document.sources)
        if uuid in {"", document.uuid} and (not name or (uuid != "" and names[uuid] <= 1))
    }
