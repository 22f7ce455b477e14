"""Series of files: finding and ordering the files of an acquisition."""

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
from dask_tiled.files.file import File, is_following, is_refusal, opened, read_exactly
from dask_tiled.files.paths import (
    Border,
    absolute,
    border,
    check_inside,
    file_size,
    in_folder,
    is_file,
    is_link,
    is_url,
    list_folder,
    named_in,
    names_in,
    real,
)
from dask_tiled.model.doubts import Doubt

__all__ = [
    "Series",
    "SeriesFile",
    "absolute",
    "beside",
    "common_stem",
    "file_size",
    "gather",
    "in_sequence",
    "is_file",
    "is_url",
    "lost_before",
    "named_file",
    "named_in",
    "named_in_a_row",
    "names_in",
    "natural_key",
    "opened",
    "read_exactly",
]


NUMBERED = re.compile(r"(.*?)(\d+)(\.[^.]*)", re.DOTALL)
"""Path of a file with a number before its suffix."""


class SeriesFile(NamedTuple):
    """A file of a series.

    Attributes
    ----------
    file : File
    first, frames : int
        Sequence number of the first frame, and number of frames.
    geometry : object
        Comparable value that all frames of a series share.
    """

    file: File
    first: int
    frames: int
    geometry: Any

    def continues(self, other: SeriesFile) -> bool:
        """Return whether this file continues another one."""
        return self.first == other.first + other.frames and self.geometry == other.geometry

    def follows_a_gap(self, other: SeriesFile) -> bool:
        """Return whether this file belongs to the series of another one, after lost frames."""
        return self.first > other.first + other.frames and self.geometry == other.geometry


def in_sequence(members: Sequence[SeriesFile], *, filled: bool = False) -> list[SeriesFile]:
    """Sort the files of a series by sequence number, and check that they are contiguous.

    Where the result is ``filled``, frames between two files may be missing.

    Raises
    ------
    CorruptFileError
        The files differ in geometry, or hold the same frames.
    TruncatedFileError
        Frames between two files are missing.
    """
    ordered = sorted(members, key=lambda member: member.first)
    for before, after in pairwise(ordered):
        if after.geometry != before.geometry:
            problem = "the frames differ from those of the previous file"
            expected, found = f"{before.geometry}, as in {before.file.path}", after.geometry
            raise CorruptFileError(problem, path=after.file.path, expected=expected, found=found)
        follows = before.first + before.frames
        if after.first != follows and not (filled and after.first > follows):
            missing = after.first > follows
            kind = TruncatedFileError if missing else CorruptFileError
            raise kind(
                "frames are missing before this file" if missing else "frames occur twice",
                path=after.file.path,
                where="the sequence number",
                expected=f"{follows}, which follows {before.file.path}",
                found=after.first,
                hint="Pass missing='fill' to show them as missing." if missing else None,
            )
    return ordered


def lost_before(members: Sequence[SeriesFile], counts: Sequence[int]) -> list[int]:
    """Return the number of lost frames before each file, of files that are numbered themselves.

    Lost files have as many frames as the others, except the last one.

    Raises
    ------
    TruncatedFileError
        The others differ.
    """
    gaps = [0, *(after.first - one.first - 1 for one, after in pairwise(members))]
    lengths = set(counts[:-1])
    if any(gaps) and len(lengths) > 1:
        at = next(k for k, gap in enumerate(gaps) if gap)
        raise TruncatedFileError(
            "a file is missing before this one, and its number of frames is unknown",
            path=members[at].file.path,
            expected="files of one length",
            found=f"{min(lengths)} to {max(lengths)} frames",
        )
    return [gap * max(lengths, default=0) for gap in gaps]


class Series(NamedTuple):
    """The files of a series, and reasons why it may be incomplete."""

    members: list[SeriesFile]
    doubts: tuple[Doubt, ...] = ()
    before: int = 0
    """Frames of lost files before the first one."""

    @property
    def lost(self) -> list[int]:
        """Number of lost frames before each file."""
        pairs = pairwise(self.members)
        return [self.before, *(after.first - one.first - one.frames for one, after in pairs)]


def named_in_a_row(files: Sequence[File]) -> Series:
    """Return files as a series, with the places that the numbers in their names give them.

    Numbers may have a step. Where names differ in more than the number before the suffix, where
    numbers do not increase by whole steps, or more files would be lost than there are, the files
    are taken as complete.
    """
    parts = [NUMBERED.fullmatch(file.path) for file in files]
    names = {part and (part[1], part[3]) for part in parts}
    numbers = [int(part[2]) for part in parts if part] if len(names) == 1 else []
    steps = [after - one for one, after in pairwise(numbers)]
    step = min(steps, default=0)
    places = [*range(len(files))]
    if step > 0 and not any(n % step for n in steps) and sum(steps) < 2 * len(files) * step:
        places = [(n - numbers[0]) // step for n in numbers]
    members = [SeriesFile(file, n, 1, ()) for file, n in zip(files, places, strict=True)]
    gap = next((k for k, n in enumerate(places) if k and n > places[k - 1] + 1), 0)
    if not gap or is_following():
        return Series(members)
    why = f"the numbers of its files go on from {numbers[gap - 1]} to {numbers[gap]}"
    settle = "pass missing='fill' to show the frames between as missing, or a nav_shape of just "
    settle += "those found"
    return Series(members, (Doubt("lost-files", f"the series may be longer: {why}", settle),))


def gather(
    paths: Sequence[str], read: Callable[[str], SeriesFile], *, series: bool, filled: bool = False
) -> Series:
    """Sort the files that a user gives, or find the series of a single file.

    A series consists of files in one folder whose names differ in the number before the suffix, as
    long as frames and geometry continue from number to number. Where they do not, the series is in
    doubt, unless another acquisition clearly begins there, or files are followed.

    Parameters
    ----------
    paths : sequence of str
    read : callable
        Function that returns the member of a file. A neighbour for which it raises DatasetError is
        skipped.
    series : bool
        Whether a single file includes its series.
    filled : bool
        Whether the series goes on after lost frames, which are missing.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        As for :func:`in_sequence`.
    OutsideFolderError
        A neighbour is a link out of the folder that was opened.
    """
    if not series or len(paths) != 1:
        members = in_sequence([read(path) for path in paths], filled=filled)
        return Series(members, before=_before(members[0]) if filled else 0)
    member = read(paths[0])
    later, earlier, listed = _neighbours(member.file.path)
    after, ends = _neighbours_of(member, later, read, listed=listed, filled=filled, later=True)
    before, begins = _neighbours_of(member, earlier, read, listed=listed, filled=filled)
    found = [*before[::-1], member, *after]
    first, lost = found[0], _before(found[0])
    if lost and not begins and not filled:  # else they are missing frames
        name = os.path.basename(first.file.path)
        why = f"it begins with {name}, whose first frame has the number {first.first}"
        begins = (may_be_longer(why),)
    doubts = () if is_following() else (*ends, *begins)
    return Series(found, doubts, lost if filled else 0)


def _neighbours_of(
    member: SeriesFile,
    paths: Iterable[str],
    read: Callable[[str], SeriesFile],
    *,
    listed: bool,
    filled: bool,
    later: bool = False,
) -> tuple[list[SeriesFile], tuple[Doubt, ...]]:
    """Return the members of a series after or before one, and the doubt where it ends."""
    found: list[SeriesFile] = []
    doubts: tuple[Doubt, ...] = ()
    for path in paths:
        other, why = _look(read, path, listed=listed)
        end = found[-1] if found else member
        one, two = (end, other) if later else (other, end)
        fits = one and two and (two.continues(one) or (filled and two.follows_a_gap(one)))
        if fits and other and (not later or other.frames or not other.file.grows):
            found.append(other)
            doubts = ()
            continue
        why = why or _gap(one, two)
        if why and not doubts and (later or end.first > 1):  # numbered from 0 or 1
            place = "ends with" if later else "begins with", "before" if later else "after"
            end_name, name = (os.path.basename(each) for each in (end.file.path, path))
            text = f"it {place[0]} {end_name}, {place[1]} {name}, as {why}"
            doubts = (may_be_longer(text),)
        if not (filled and listed and other is None):  # the number of a further one tells the gap
            break
    return found, doubts


def _before(first: SeriesFile) -> int:
    """Return the number of frames in lost files before the first one, if its numbers show them.

    Frames are numbered from 1. The number in the name, from 0 or 1, has to count whole files of the
    same length, as numbers of some detectors go on from acquisition to acquisition.
    """
    named = re.search(r"(\d{1,18})\.[^.]*$", os.path.basename(first.file.path))
    number, frames = int(named[1]) if named else 0, first.first - 1
    counted = frames in {number * first.frames, (number - 1) * first.frames}
    return frames if frames > 0 and counted else 0


def may_be_longer(why: str) -> Doubt:
    """Return the doubt that files of a series are lost or damaged."""
    settle = "pass missing='fill' to read the files found, a nav_shape of just their frames, or a "
    settle += "list of files"
    return Doubt("lost-files", f"the series may be longer: {why}", settle)


def _neighbours(path: str) -> tuple[Iterator[str], Iterator[str], bool]:
    """Yield files with higher numbers, and with lower numbers; return whether these exist."""
    folder, name = os.path.split(path)
    name_parts = NUMBERED.fullmatch(name)
    if name_parts is None:
        return iter(()), iter(()), True
    prefix, number, suffix = name_parts.groups()
    pattern = re.compile(re.escape(prefix) + r"(\d+)" + re.escape(suffix))
    names, own = list_folder(folder), int(number)
    matches = filter(None, map(pattern.fullmatch, names or ()))
    # Numbers may be padded differently; the padding of the given name comes first.
    ways = sorted(matches, key=lambda match: (len(match[1]) == len(number), -len(match[1])))
    numbers = {int(match[1]): match[0] for match in ways}
    later: Iterable[int] = sorted(n for n in numbers if n > own)
    earlier: Iterable[int] = sorted((n for n in numbers if n < own), reverse=True)
    if names is None:  # up to the first missing one
        later, earlier = count(own + 1), range(own - 1, -1, -1)

    def path_of(n: int) -> str:
        return in_folder(folder, numbers.get(n, f"{prefix}{n:0{len(number)}}{suffix}"))

    return map(path_of, later), map(path_of, earlier), names is not None


def _look(
    read: Callable[[str], SeriesFile], path: str, *, listed: bool
) -> tuple[SeriesFile | None, str | None]:
    """Read a neighbour; otherwise return why it cannot be read, unless it need not exist.

    Errors of a server are raised.
    """
    try:
        return read(path), None
    except RemoteError:
        raise
    except (DatasetError, OSError) as error:
        if is_refusal(error):  # it may belong to the series
            raise
        why = error.problem if isinstance(error, DatasetError) else str(error.strerror)
        return None, why if listed or not isinstance(error, FileNotFoundError) else None


def _gap(before: SeriesFile | None, after: SeriesFile | None) -> str | None:
    """Return which frames are missing between two files of one acquisition, or None."""
    if before is None or after is None or before.geometry != after.geometry:
        return None
    last = before.first + before.frames - 1
    return f"the sequence goes on from {last} to {after.first}" if after.first > last + 1 else None


def common_stem(paths: Sequence[str], stem_of: Callable[[str], str]) -> str:
    """Return the common stem of the files of one set.

    Raises
    ------
    DatasetError
        The files are of different sets.
    """
    stem = stem_of(paths[0])
    stray = [path for path in paths if stem_of(path) != stem]
    if stray:
        raise DatasetError(
            "the files are not of one set", path=stray[0], expected=f"files called {stem}..."
        )
    return stem


def beside(stem: str, *endings: str) -> str | None:
    """Return the first existing file with this stem and one of the endings, or None.

    Raises
    ------
    OutsideFolderError
        The file is a link out of the folder that was opened.
    """
    found = next((stem + ending for ending in endings if is_file(stem + ending)), None)
    if found is not None:
        check_inside(found)
    return found


def named_file(name: str, path: str, where: str) -> str | None:
    """Return a file that another file names: beside it, or beside the target if it is a link.

    Parameters
    ----------
    name, path, where : str
        The name, a relative or absolute path taken literally; the file that holds it; and its
        location in that file.

    Returns
    -------
    str or None
        None if there is no such file.

    Raises
    ------
    OutsideFolderError
        The file lies outside of the folder that was opened.
    """
    start = absolute(path)
    folder = os.path.dirname(start)
    found = named_in(folder, name)
    known = border() or Border([path])
    try:
        if is_url(found):  # checked first: no request for files outside
            known.check(found)
        if not name or "\0" in name or not is_file(found):
            behind = real(start) if is_link(start) else None
            return behind and named_file(name, behind, where)
        if not is_url(found):
            known.check(found)
            known.check(real(in_folder(folder, name)))  # ".." after a link differs
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
    """Return a sort key by which ``scan10`` comes after ``scan9``."""
    parts = re.split(r"(\d+)", path)
    texts, numbers = parts[::2], [int(n) for n in parts[1::2]]
    return tuple(zip(texts, [*numbers, -1], strict=True))
