"""Text headers of pixels that lie behind them, beside them, or in files that they name."""

from __future__ import annotations

import os
import re

from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.formats.tools.series import beside, named_file
from dask_tiled.model.files import File, read_head

MOST_HEADER = 1 << 20
MOST_FILES = 1 << 17
LIST = re.compile(r"LIST(\s+\d+D?)?", re.IGNORECASE)
MOST_NAME = 4096
PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?\d?\d?)d((?:[^%]|%%)*?)((?:\s++-?\d{1,9}){3})(?:\s+\d+)?")
"""As ``printf`` has it, then the first number, the last one, and the step."""


def read_text(path: str, end: bytes) -> tuple[str, int]:
    """Read a text header up to what ends it, a regular expression, and give the byte after that."""
    head = read_head(path, MOST_HEADER)
    match = re.search(end, head)
    stop = match.end() if match else len(head)
    return head[:stop].decode("utf8", "surrogateescape"), stop


def pixel_files(header: File, key: str, text: str, end: int) -> list[tuple[File, int]]:
    """Find where the pixels of a header begin: files, and a byte of each.

    Parameters
    ----------
    header : File
    key, text : str
        What the files are named behind, for errors, and what stands there: a name; a pattern with
        numbers; ``LIST``, with a name in each line that follows; ``LOCAL`` or nothing for the file
        of the header itself.
    end : int
        The byte of the header after that.

    Raises
    ------
    CorruptFileError
        They are too many, or none.
    OutsideFolderError
        One of them lies outside of the folder.
    TruncatedFileError
        One of them is missing.
    """
    names, where, pattern = [text], f"the key {key!r}", PATTERN.fullmatch(text[:MOST_NAME])
    if text.upper() in {"", "LOCAL"}:
        return [(header, end)]
    if LIST.fullmatch(text):
        lines = read_head(header.path, MOST_HEADER, end).decode("utf8", "surrogateescape")
        names = [line.rstrip() for line in lines.split("\n") if line.strip()]
    elif pattern:
        first, last, step = map(int, pattern[4].split())
        numbers = range(first, last + (1 if step > 0 else -1), step) if step else ()
        before, after = pattern[1].replace("%%", "%"), pattern[3].replace("%%", "%")
        names = [f"{before}{n:{pattern[2]}d}{after}" for n in numbers[: MOST_FILES + 1]]
    if not 0 < len(names) <= MOST_FILES:
        problem, most = "no files, or too many", f"1 to {MOST_FILES}"
        raise CorruptFileError(problem, path=header.path, where=where, expected=most, found=text)
    files = []
    for name in names:
        path = named_file(name, header.path, where)
        if path is None:
            expected = os.path.join(os.path.dirname(header.path), name)
            problem = "a file of the pixels is missing"
            raise TruncatedFileError(problem, path=header.path, where=where, expected=expected)
        files.append((File.at(path), 0))
    return files


def pixels_beside(header: str, *endings: str) -> File:
    """Look at the file of the pixels, which is called like the header but for the ending.

    Raises
    ------
    TruncatedFileError
        There is none.
    """
    stem = os.path.splitext(header)[0]
    path = beside(stem, *endings)
    if path is None:
        problem, expected = "the file of the pixels is missing", os.path.basename(stem) + endings[0]
        raise TruncatedFileError(problem, path=header, expected=expected, found="no such file")
    return File.at(path)


def after_lines(file: File, at: int, count: int) -> int:
    """Return the byte of a file after so many lines, from byte `at` on.

    Raises
    ------
    TruncatedFileError
        There are fewer.
    """
    lines = read_head(file.path, MOST_HEADER if count else 0, at).split(b"\n", count)
    if len(lines) <= count:
        problem, where = "lines to skip are missing", f"byte {at}"
        expected, found = f"{count} lines, in {MOST_HEADER} bytes", len(lines) - 1
        raise TruncatedFileError(
            problem, path=file.path, where=where, expected=expected, found=found
        )
    return at + sum(len(line) + 1 for line in lines[:count])
