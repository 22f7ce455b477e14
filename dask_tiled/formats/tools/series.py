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
from dask_tiled.model.borders import Border, border, check_inside
from dask_tiled.model.files import File, is_refusal
from dask_tiled.model.paths import absolute, is_file, is_link, is_url, list_folder, named_in, real


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
        """Tell whether this file goes on where another one ends."""
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


def gather(paths: Sequence[str], read: Callable[[str], Member], *, series: bool) -> list[Member]:
    """Put the files that a user gave in order, or find the series that one of them belongs to.

    To that belong files in the same folder whose names differ in the number before the suffix, as
    long as, going from number to number, frames and geometry continue.

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
        return in_sequence([read(path) for path in paths])
    member = read(paths[0])
    folder, name = os.path.split(member.file.path)
    name_parts = re.fullmatch(r"(.*?)(\d+)(\.[^.]*)", name, re.DOTALL)
    if name_parts is None:
        return [member]
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
    found = [member]

    def paths_of(some: Iterable[int]) -> Iterator[str]:
        for n in some:
            written = numbers.get(n, f"{prefix}{n:0{len(number)}}{suffix}")
            yield os.path.join(folder, written)

    for after in _there(map(read, paths_of(later))):
        if not after.continues(found[-1]) or (after.file.grows and not after.frames):
            break
        found.append(after)
    for before in _there(map(read, paths_of(earlier))):
        if not found[0].continues(before):
            break
        found.insert(0, before)
    return found


def _there(members: Iterator[Member]) -> Iterator[Member]:
    """Give members up to the first that is none; of what a server does not give, nobody knows."""
    while True:
        try:
            member = next(members, None)
        except RemoteError:
            raise
        except (DatasetError, OSError) as error:
            if is_refusal(error):  # it may belong to them, for all we know
                raise
            return
        if member is None:
            return
        yield member


def common_stem(paths: Sequence[str], stem_of: Callable[[str], str]) -> str:
    """Give what the names of the files of one set have in common.

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
