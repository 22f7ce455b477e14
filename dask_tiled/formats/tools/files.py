"""Series of files: which files continue each other, and in what order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    OutsideFolderError,
    RemoteError,
    TruncatedFileError,
)
from dask_tiled.model.description import DOUBTS, Description
from dask_tiled.model.files import File, is_following, is_refusal, opened, read_exactly
from dask_tiled.model.paths import (
    Border,
    absolute,
    border,
    check_inside,
    file_size,
    is_file,
    is_link,
    is_url,
    list_folder,
    named_in,
    names_in,
    real,
)

__all__ = [
    "Member",
    "Series",
    "absolute",
    "beside",
    "common_stem",
    "file_size",
    "gather",
    "in_sequence",
    "is_file",
    "is_url",
    "named_file",
    "named_in",
    "names_in",
    "natural_key",
    "opened",
    "read_exactly",
]


class Member(NamedTuple):
    """A file of a series.

    Attributes
    ----------
    file : File
    first, frames : int
        Sequence number of its first frame, and how many it holds.
    geometry : object
        What the frames of a series have in common; it can be compared.
    """

    file: File
    first: int
    frames: int
    geometry: Any

    def continues(self, other: Member) -> bool:
        """Return whether this file goes on where another one ends."""
        return self.first == other.first + other.frames and self.geometry == other.geometry


def in_sequence(members: Sequence[Member]) -> list[Member]:
    """Put files that are to be one series into the order of their sequence numbers.

    Raises
    ------
    CorruptFileError
        They differ in geometry, or hold the same frames.
    TruncatedFileError
        Frames between two of them are missing.
    """
    ordered = sorted(members, key=lambda member: member.first)
    for before, after in pairwise(ordered):
        if after.geometry != before.geometry:
            problem = "the frames differ from those of the file before"
            expected, found = f"{before.geometry}, as in {before.file.path}", after.geometry
            raise CorruptFileError(problem, path=after.file.path, expected=expected, found=found)
        follows = before.first + before.frames
        if after.first != follows:
            missing = after.first > follows
            kind = TruncatedFileError if missing else CorruptFileError
            raise kind(
                "frames are missing before this file" if missing else "frames occur twice",
                path=after.file.path,
                where="the sequence number",
                expected=f"{follows}, which follows {before.file.path}",
                found=after.first,
            )
    return ordered


class Series(NamedTuple):
    """The files of a series, and what says that these are not all, which may be nothing."""

    members: list[Member]
    doubts: tuple[str, ...] = ()

    def told(self, desc: Description) -> Description:
        """Put the doubts into the metadata of what is described."""
        return desc.with_facts(**{DOUBTS: self.doubts}) if self.doubts else desc


def gather(paths: Sequence[str], read: Callable[[str], Member], *, series: bool) -> Series:
    """Put the files that a user gave in order, or find the series that one of them belongs to.

    To that belong files in the same folder whose names differ in the number before the suffix, as
    long as, going from number to number, frames and geometry continue. Where they do not, there are
    doubts, unless it is plain that another acquisition begins there, or files are followed.

    Parameters
    ----------
    paths : sequence of str
    read : callable
        Gives the member that a file is. A neighbour for which it raises DatasetError is none.
    series : bool
        Whether one file stands for its series.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        As for :func:`in_sequence`.
    OutsideFolderError
        A neighbour is a link out of the folder that was opened.
    """
    if not series or len(paths) != 1:
        return Series(in_sequence([read(path) for path in paths]))
    member = read(paths[0])
    later, earlier, listed = _neighbours(member.file.path)
    found, doubts = [member], []
    for path in later:
        after, why = _look(read, path, listed=listed)
        last = found[-1]
        if after and after.continues(last) and (after.frames or not after.file.grows):
            found.append(after)
            continue
        if why := why or _gap(last, after):
            doubts.append(f"it ends with {last.file.path}, before {path}: {why}")
        break
    for path in earlier:
        before, why = _look(read, path, listed=listed)
        first = found[0]
        if before and first.continues(before):
            found.insert(0, before)
            continue
        why = why or _gap(before, first)
        if why and first.first > 1:  # they are numbered from 0 or 1 on
            doubts.append(f"it begins with {first.file.path}, after {path}: {why}")
        break
    return Series(found, () if is_following() else tuple(doubts))


def _neighbours(path: str) -> tuple[Iterator[str], Iterator[str], bool]:
    """Go on from a file to those with higher numbers, and back; tell whether these are there."""
    folder, name = os.path.split(path)
    name_parts = re.fullmatch(r"(.*?)(\d+)(\.[^.]*)", name, re.DOTALL)
    if name_parts is None:
        return iter(()), iter(()), True
    prefix, number, suffix = name_parts.groups()
    pattern = re.compile(re.escape(prefix) + r"(\d+)" + re.escape(suffix))
    names, own = list_folder(folder), int(number)
    matches = filter(None, map(pattern.fullmatch, names or ()))
    # A number can be written in several ways; the way of the name that was given goes first.
    ways = sorted(matches, key=lambda match: (len(match[1]) == len(number), -len(match[1])))
    numbers = {int(match[1]): match[0] for match in ways}
    later: Iterable[int] = sorted(n for n in numbers if n > own)
    earlier: Iterable[int] = sorted((n for n in numbers if n < own), reverse=True)
    if names is None:  # up to the first that is not there
        later, earlier = count(own + 1), range(own - 1, -1, -1)

    def path_of(n: int) -> str:
        return os.path.join(folder, numbers.get(n, f"{prefix}{n:0{len(number)}}{suffix}"))

    return map(path_of, later), map(path_of, earlier), names is not None


def _look(
    read: Callable[[str], Member], path: str, *, listed: bool
) -> tuple[Member | None, str | None]:
    """Read a neighbour, or tell why it cannot be read, unless there need not be any.

    Of what a server does not give, nobody knows.
    """
    try:
        return read(path), None
    except RemoteError:
        raise
    except (DatasetError, OSError) as error:
        if is_refusal(error):  # it may belong to them, for all we know
            raise
        why = error.problem if isinstance(error, DatasetError) else str(error.strerror)
        return None, why if listed or not isinstance(error, FileNotFoundError) else None


def _gap(before: Member | None, after: Member | None) -> str | None:
    """Return which frames are missing between two files, unless they are of other acquisitions."""
    if before is None or after is None or before.geometry != after.geometry:
        return None
    last = before.first + before.frames - 1
    return f"the sequence goes on from {last} to {after.first}" if after.first > last + 1 else None


def common_stem(paths: Sequence[str], stem_of: Callable[[str], str]) -> str:
    """Return what the names of the files of one set have in common.

    Raises
    ------
    DatasetError
        They are of different sets.
    """
    stem = stem_of(paths[0])
    stray = [path for path in paths if stem_of(path) != stem]
    if stray:
        raise DatasetError("not of one set", path=stray[0], expected=f"files called {stem}...")
    return stem


def beside(stem: str, *endings: str) -> str | None:
    """Find the first file there is that has this name with one of these endings.

    Raises
    ------
    OutsideFolderError
        It is a link out of the folder that was opened.
    """
    found = next((stem + ending for ending in endings if is_file(stem + ending)), None)
    if found is not None:
        check_inside(found)
    return found


def named_file(name: str, path: str, where: str) -> str | None:
    """Find a file that another one names: beside it, or else beside what that leads to, as a link.

    Parameters
    ----------
    name, path, where : str
        A relative or an absolute path, as it is written: nothing in it stands for something else.
        The file that names it; the place in that.

    Returns
    -------
    str or None
        None where there is no such file.

    Raises
    ------
    OutsideFolderError
        It lies outside of the folder that was opened.
    """
    start = absolute(path)
    folder = os.path.dirname(start)
    found = named_in(folder, name)
    known = border() or Border([path])
    try:
        if is_url(found):  # a server is not asked for what lies outside
            known.check(found)
        if not name or "\0" in name or not is_file(found):
            behind = real(start) if is_link(start) else None
            return behind and named_file(name, behind, where)
        if not is_url(found):
            known.check(found)
            known.check(real(os.path.join(folder, name)))  # ".." after a link differs
    except OutsideFolderError as error:
        raise OutsideFolderError(
            "a file that it names lies outside of its folder",
            path=path,
            where=f"the file name {name!r} in {where}",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None
    return found


def natural_key(path: str) -> tuple[tuple[str, int], ...]:
    """Sort key by which ``scan10`` comes after ``scan9``."""
    parts = re.split(r"(\d+)", path)
    texts, numbers = parts[::2], [int(n) for n in parts[1::2]]
    return tuple(zip(texts, [*numbers, -1], strict=True))
