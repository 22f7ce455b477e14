"""Zip files: where the bytes of their members lie.

Layout facts: APPNOTE.TXT of PKWARE (the ZIP File Format Specification), RFC 9 of OME-NGFF.
"""

from __future__ import annotations

import posixpath
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, NoReturn

from dask_tiled.errors import CorruptFileError, DatasetError, Guard, TruncatedFileError
from dask_tiled.files.file import File, RemoteFile, is_refusal, read_exactly

MAGIC = b"PK\x03\x04"
HEADER = struct.Struct("<4s22xHH")
"""Header before the bytes of a member: magic, and the lengths of its name and extra field."""
ENCRYPTED = 0x1 | 0x40 | 0x2000
UTF8 = 0x800
"""Bits of the flags: encrypted bytes or names, names in UTF-8."""
BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    ValueError,
    OverflowError,
    EOFError,
    struct.error,
)
"""Errors of zipfile for damaged files; a UnicodeDecodeError is a ValueError."""


MOST_INFLATED = 1 << 25
"""Largest deflated document."""
MOST_BEFORE = 1 << 12
"""Bytes of tables and of blocks that do not shrink, in a deflated start."""


class FolderEntry(NamedTuple):
    """A file in a folder: a range of bytes of a file."""

    path: str
    """Its path, for errors; in zip files, below the path of the zip file."""
    file: File
    offset: int
    nbytes: int
    """Number of stored bytes."""
    size: int
    """Number of bytes of its content."""
    deflated: bool = False
    crc: int | None = None

    @classmethod
    def of(cls, file: File) -> FolderEntry:
        """Return a whole file."""
        return cls(file.path, file, 0, file.size, file.size)

    def start(self, nbytes: int) -> bytes:
        """Return the first bytes of the content, unchecked.

        Raise a CorruptFileError if they cannot be inflated.
        """
        if not self.deflated:
            return self.file.read(min(nbytes, self.nbytes), self.offset)
        stored = self.file.read(min(nbytes + MOST_BEFORE, self.nbytes), self.offset)
        with Guard(self.path, "a member of the zip file is damaged"):
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, nbytes)

    def read(self) -> bytes:
        """Return the content.

        Raise a CorruptFileError if it is damaged, or too long to inflate.
        """
        if self.crc is None:
            return self.file.read(self.nbytes, self.offset)
        stored = read_exactly(self.file.path, self.nbytes, self.offset, "a member of the zip file")
        problem, content = "a member of the zip file is damaged", stored
        if self.deflated:
            if self.size > MOST_INFLATED:
                problem = "a deflated document is too long"
                raise CorruptFileError(
                    problem, path=self.path, expected=MOST_INFLATED, found=self.size
                )
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, self.size + 1)
            except zlib.error as error:
                raise CorruptFileError(problem, path=self.path, found=str(error)) from error
        if len(content) != self.size or zlib.crc32(content) != self.crc:
            expected = f"{self.size} bytes with checksum {self.crc}"
            found = f"{len(content)} bytes with checksum {zlib.crc32(content)}"
            raise CorruptFileError(problem, path=self.path, expected=expected, found=found)
        return content


class ZipMember(NamedTuple):
    """A file in a zip file."""

    header: int
    """Offset of its header."""
    stop: int
    """Offset of what comes next."""
    nbytes: int
    """Number of stored bytes."""
    size: int
    """Number of bytes of its content."""
    method: int
    flags: int
    crc: int
    name_bytes: int
    """Length of its name in the index."""


class ZipIndex:
    """The members of a zip file, by name.

    Raises
    ------
    CorruptFileError
        The index is damaged, members overlap, or a name leads out of the folder.
    DatasetError
        The file is one of several parts.
    """

    def __init__(self, file: File) -> None:
        self.file = file
        try:
            with file.open() as stream, zipfile.ZipFile(stream) as archive:
                listed = archive.infolist()
                starts = sorted(one.header_offset for one in listed)
                stops = dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))
        except BROKEN as error:
            if is_refusal(error):
                raise
            problem, found = "the index of the zip file cannot be read", str(error) or repr(error)
            raise CorruptFileError(problem, path=file.path, found=found) from error
        self.members: dict[str, ZipMember] = {}
        del archive  # holds the members, which need much memory, as long as its list
        listed.reverse()
        while listed:
            one = listed.pop()
            name, at, stop = one.filename, one.header_offset, stops[one.header_offset]
            if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
                problem = "a name in the zip file leads out of its folder"
                raise CorruptFileError(problem, path=file.path, found=repr(name)[:200])
            if one.volume:
                problem, hint = "the zip file is one of several parts", "Join the parts."
                raise DatasetError(problem, path=file.path, found=f"part {one.volume}", hint=hint)
            coded = len(one.orig_filename.encode("utf8" if one.flag_bits & UTF8 else "cp437"))
            if at < 0 or at + HEADER.size + coded + one.compress_size > stop:
                problem, where = "members of the zip file overlap", f"byte {at}"
                expected = f"the end of {name!r} before byte {stop}"
                raise CorruptFileError(problem, path=file.path, where=where, expected=expected)
            if name.endswith("/"):  # a folder
                continue
            sizes = one.compress_size, one.file_size
            kind = one.compress_type, one.flag_bits, one.CRC
            # A name may occur twice, if a program replaced the member: the last one is valid.
            self.members[name] = ZipMember(at, stop, *sizes, *kind, coded)

    @cached_property
    def names(self) -> list[str]:
        """The names in order."""
        return sorted(self.members)

    def below(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with a prefix."""
        first = bisect_left(self.names, prefix)
        return self.names[first : bisect_left(self.names, prefix + "\U0010ffff", first)]

    def starts(self, names: Sequence[str]) -> list[int]:
        """Return the offsets of the bytes of members.

        Raise a CorruptFileError if a header is damaged, and a DatasetError if a member is encrypted
        or compressed in another way.
        """
        members = [self.members[name] for name in names]
        for name, one in zip(names, members, strict=True):
            if one.flags & ENCRYPTED:
                self._refuse("the zip file is encrypted", name, None, None)
            if one.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                problem, told = "unsupported compression in a zip file", f"method {one.method}"
                self._refuse(problem, name, "methods 0 or 8, stored or deflated", told)
        # Where a header has no room for more than the name, it need not be read.
        starts = [one.header + HEADER.size + one.name_bytes for one in members]
        unknown = [k for k, one in enumerate(members) if starts[k] + one.nbytes < one.stop]
        spans = [(members[k].header, members[k].header + HEADER.size) for k in unknown]
        if isinstance(self.file, RemoteFile):
            heads = [part.tobytes() for part in self.file.fetch(spans)] if spans else []
        else:
            path, what = self.file.path, "a header of the zip file"
            heads = [read_exactly(path, HEADER.size, start, what) for start, _ in spans]
        for k, head in zip(unknown, heads, strict=True):
            magic, *lengths = HEADER.unpack(head)
            starts[k] = members[k].header + HEADER.size + sum(lengths)
            if magic != MAGIC or starts[k] + members[k].nbytes > members[k].stop:
                problem, where = "a header in the zip file is damaged", f"byte {members[k].header}"
                raise CorruptFileError(problem, path=self.file.path, where=where, found=names[k])
        return starts

    def entries(self, names: Sequence[str]) -> list[FolderEntry]:
        """Return members as ranges of bytes of the file.

        Raise a TruncatedFileError if a member is empty, or its sizes differ; or as for `starts`.
        """
        entries = []
        for name, start in zip(names, self.starts(names), strict=True):
            one, path = self.members[name], posixpath.join(self.file.path, name)
            deflated = one.method != 0
            if not one.size or (not deflated and one.size != one.nbytes):
                problem, expected = "a member of the zip file has an invalid size", "1 byte or more"
                expected = expected if deflated or not one.size else f"{one.nbytes} bytes"
                raise TruncatedFileError(problem, path=path, expected=expected, found=one.size)
            sizes = start, one.nbytes, one.size
            entries.append(FolderEntry(path, self.file, *sizes, deflated, one.crc))
        return entries

    def _refuse(self, problem: str, name: str, expected: str | None, found: str | None) -> NoReturn:
        hint = "Unpack the zip file, and open the folder."
        told = {"where": name, "expected": expected, "found": found, "hint": hint}
        raise DatasetError(problem, path=self.file.path, **told)
