"""Parsers of text in data files: XML without document types, JSON, pairs, literals, dates."""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate
from itertools import permutations
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET
from xml.parsers import expat

from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.files.file import File, read_head

NOTHING = {"", ".", "_None_", "<undefined>", "None"}
"""Placeholders for a missing name or unit."""
MAX_BYTES = 1 << 22
MAX_HEADER = 1 << 20
MAX_COUNT = 25_000
"""Limit of elements and attributes in a header, which need many times the memory and time of
their text."""
MAX_DEPTH = 64
MAX_VALUES = 300_000
QUOTED = re.compile(r"""(['"])(?!\1\1)(?:\\.?|(?!\1)[^\\])*(?:\1|\Z)""", re.DOTALL)
ESCAPE = re.compile(r"""\\(?:(?![4-7][0-7]{2})[0-7]|[\n\\'"abfnrtvxNuU])""")
STRANGE = re.compile(r"""and|else|for|if|in|is|not|or|['"#]|\b[rR]?[fFtT][rR]?\b""")
BYTES = re.compile(r"\b[rR]?[bB][rR]?\b")
"""Parts of a Python literal: texts, valid escapes in them, tokens outside of texts that no
header has, and prefixes of bytes."""
NUMERIC_DATE = re.compile(
    r"(\d\d?)[./-](\d\d?)[./-](\d{4})\s+(\d\d?):(\d\d)(?::(\d\d))?(?:\s*([ap])\.?m\.?)?\s*",
    re.ASCII | re.IGNORECASE,
)
QUARTER, SLACK = timedelta(minutes=15), timedelta(minutes=2)
"""Pattern of a numeric date and time, year last; rounding of time zones; tolerance of clocks."""
FILE_TIME = 11_644_473_600
"""Seconds from 1601, the epoch of Windows, to 1970."""
BLOCK_BYTES = 1 << 14
"""Parse this many bytes at a time, so that little is parsed after an error."""
MAX_TOKEN = 1 << 17
"""Limit of a tag or comment up to its first ``>``."""
Take: TypeAlias = Mapping[str, Callable[[ET.Element], ET.Element | None]]
"""Functions called with complete elements of some names, without namespace. The elements are
then removed and not counted: there may be millions. A small element that a function returns takes
the place of the one it was given."""


class _Builder:
    """Builds a tree with expat, and refuses input that needs unbounded resources.

    Limited are document types (entities), elements and attributes, and tags.
    """

    def __init__(self, take: Take, max_count: int, max_depth: int) -> None:
        self.take = take
        self.max_count = max_count
        self.max_depth = max_depth
        self.tree = ET.TreeBuilder()
        self.count = 0
        self.within: list[tuple[ET.Element, int]] = []  # open elements, with the count before each
        parser = expat.ParserCreate(None, "}")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self.doctype
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.tree.data
        self.parser = parser

    def build(self, text: bytes) -> ET.Element:
        """Return the tree of a document."""
        first = begin = 0
        while first < len(text):
            # expat scans an incomplete tag again with each block. Version 2.6, and older ones that
            # distributions have patched, wait for twice as much.
            size = max(BLOCK_BYTES, first - begin)
            self.parser.Parse(text[first : first + size])
            first += size
            begin = max(0, self.parser.CurrentByteIndex)
            if first - begin > MAX_TOKEN and b">" not in text[begin : begin + MAX_TOKEN]:
                raise ValueError(f"a tag or a comment of more than {MAX_TOKEN} bytes")
        self.parser.Parse(b"", True)  # noqa: FBT003 - the last part
        return self.tree.close()

    def doctype(self, name: str, *_: Any) -> None:
        raise ValueError(f"a document type, {name!r}, is not allowed")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if "}" in " ".join((tag, *attributes)):  # a namespace, whose first brace expat omits
            tag, *names = ["{" * ("}" in name) + name for name in (tag, *attributes)]
            attributes = dict(zip(names, attributes.values(), strict=True))
        self.within.append((self.tree.start(tag, attributes), self.count))
        self.count += 1 + len(attributes)
        if self.count > self.max_count or len(self.within) > self.max_depth:
            told = f"more than {self.max_count} elements and attributes"
            raise ValueError(f"{told}, or {self.max_depth} nested levels")

    def end(self, tag: str) -> None:
        element = self.tree.end(tag)
        _, before = self.within.pop()
        take = self.take.get(tag.rpartition("}")[2])
        if take is not None:
            kept = take(element)
            if self.within:
                parent = self.within[-1][0]
                parent.remove(element)
                parent.extend([] if kept is None else [kept])
                self.count = before


def local_name(element: ET.Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def read_xml(path: str | os.PathLike[str]) -> ET.Element:
    """Read an XML file; errors are those of :func:`parse_xml`."""
    return parse_xml(read_head(path, MAX_BYTES + 1), path)


def parse_xml(
    text: bytes,
    path: str | os.PathLike[str],
    *,
    take: Take | None = None,
    max_bytes: int = MAX_BYTES,
    max_count: int = MAX_COUNT,
    max_depth: int = MAX_DEPTH,
) -> ET.Element:
    """Parse XML.

    Parameters
    ----------
    text : bytes
        The document.
    path : path-like
        Path named in errors.
    take : mapping, optional
        Functions that process and remove elements, by name without namespace. A ValueError in one
        of them is an error in the XML.
    max_bytes : int
        Largest size of the document; by default 4 MiB.
    max_count, max_depth : int
        Largest number of elements and attributes, and of nested elements.

    Raises
    ------
    CorruptFileError
        The XML is malformed, too large, has more elements and attributes, more nested elements, a
        tag or a comment of more than 128 KiB before its first ``>``, or a document type.
    """
    try:
        if len(text) > max_bytes:
            raise ValueError(f"it is larger than {max_bytes} bytes")  # noqa: TRY301
        if not take and text.count(b"<") - text.count(b"</") > max_count:  # a quick check first
            raise ValueError(f"more than {max_count} elements")  # noqa: TRY301
        return _Builder(take or {}, max_count, max_depth).build(text)
    except (expat.ExpatError, ValueError, LookupError) as error:  # LookupError: unknown encodings
        raise CorruptFileError("the XML cannot be read", path=path, found=str(error)) from error


def parse_json(text: bytes | str) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        The text is not JSON, has more than 300000 values, or more than 64 nested levels.
    """
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else ",[{"
    if sum(map(text.count, marks)) > MAX_VALUES:  # type: ignore[arg-type]
        raise ValueError(f"more than {MAX_VALUES} values")
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"more than {MAX_DEPTH} nested levels") from error
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(MAX_DEPTH + 1):
        groups = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for group in groups for one in group if isinstance(one, (dict, list))]
        if not level:
            return found
    raise ValueError(f"more than {MAX_DEPTH} nested levels")


def read_text(path: str, end: bytes) -> tuple[str, int]:
    """Read a text header up to ``end``, a regular expression; return it and the offset after."""
    head = read_head(path, MAX_HEADER)
    match = re.search(end, head)
    stop = match.end() if match else len(head)
    return head[:stop].decode("utf8", "surrogateescape"), stop


def after_lines(file: File, at: int, count: int) -> int:
    """Return the offset after ``count`` lines from byte `at` on.

    Raises
    ------
    TruncatedFileError
        There are fewer lines.
    """
    lines = read_head(file.path, MAX_HEADER if count else 0, at).split(b"\n", count)
    if len(lines) <= count:
        problem, where = "lines to skip are missing", f"byte {at}"
        expected, path = f"{count} lines, in {MAX_HEADER} bytes", file.path
        found = len(lines) - 1
        raise TruncatedFileError(problem, path=path, where=where, expected=expected, found=found)
    return at + sum(len(line) + 1 for line in lines[:count])


def read_pairs(path: str | os.PathLike[str], sep: str, encoding: str) -> dict[str, str]:
    """Read the keys and values of a text file, one pair per line."""
    return parse_pairs(read_head(path, MAX_HEADER).decode(encoding, "replace"), sep)


def parse_pairs(text: str, sep: str) -> dict[str, str]:
    """Parse lines of keys and values; lines without ``sep`` are skipped.

    Only the first MiB of the text is parsed.
    """
    pairs = (line.partition(sep) for line in text[:MAX_HEADER].splitlines())
    return {key.strip(): value.strip() for key, found, value in pairs if found}


def plain_tree(element: ET.Element) -> Any:
    """Convert an element to its text, or to a dict of attributes, as ``@name``, and children.

    Children with the same name become a tuple. Text beside them is ``#text``. Namespaces are
    dropped.
    """
    text = (element.text or "").strip()
    children: dict[str, list[Any]] = {}
    for child in element:
        children.setdefault(local_name(child), []).append(plain_tree(child))
    tree: dict[str, Any] = {f"@{k.rpartition('}')[2]}": value for k, value in element.items()}
    for tag, values in children.items():
        tree[tag] = values[0] if len(values) == 1 else tuple(values)
    if tree and text:
        tree["#text"] = text
    return tree or text


def number_in(tree: Any, *keys: str, default: float = 0.0) -> float:
    """Return a finite number in nested dicts, or ``default``.

    It may be stored as text, whose decimal point may be a comma.
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    try:
        number = float(str(tree).replace(",", "."))
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def parse_literal(text: str) -> Any:
    """Parse a Python literal.

    Raises
    ------
    ValueError, SyntaxError, TypeError, MemoryError, RecursionError
        The text is not a literal, or has a comment, text in triple quotes, a number that Python
        does not print, or anything it warns about, such as a backslash before a blank.
    """
    # Warnings cannot be turned into errors here: filters are global to all threads.
    beside = QUOTED.sub(" ", text)
    escaped = "\\" in text and ("\\" in ESCAPE.sub("", text) or BYTES.search(beside))
    if escaped or STRANGE.search(beside):
        raise SyntaxError("an invalid escape, or an unexpected token")
    value = ast.literal_eval(text)
    repr(value)  # raises if an integer is too long to print
    return value


def since_1970(seconds: float | str) -> datetime:
    """Return the time this many seconds after 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(seconds))


def since_1601(ticks: float) -> datetime:
    """Return the time this many ticks of 100 ns after 1601, the epoch of Windows."""
    return since_1970(ticks / 1e7 - FILE_TIME)


def serial_date(days: float) -> datetime | None:
    """Return the time of a spreadsheet's day number; None for 0."""
    moment = datetime(1899, 12, 30) + timedelta(milliseconds=round(days * 86_400_000))  # noqa: DTZ001
    return moment if days > 0 else None


def local_time(text: str, utc: datetime | None = None) -> datetime | None:
    """Parse a date and time in common notations.

    Parameters
    ----------
    text : str
        Date and time in ISO 8601, in the style of C's ctime, or in numbers with the year last.
    utc : datetime, optional
        The same time in UTC, from which the time zone is inferred if the text has none.

    Returns
    -------
    datetime or None
        None if day and month are ambiguous.
    """
    moments = set(_readings(text))
    if utc is not None and not any(moment.tzinfo for moment in moments):
        utc = utc.astimezone(UTC).replace(tzinfo=None)
        zoned = {moment: QUARTER * round((moment - utc) / QUARTER) for moment in moments}
        moments = {
            moment.replace(tzinfo=timezone(zone))
            for moment, zone in zoned.items()
            if abs(moment - utc - zone) < SLACK
            and timedelta(hours=-12) <= zone <= timedelta(hours=14)
        }
    return moments.pop() if len(moments) == 1 else None


def _readings(text: str) -> Iterator[datetime]:
    numeric = NUMERIC_DATE.fullmatch(text)
    asctime = parsedate(text)
    if numeric is None:
        yield datetime(*asctime[:6]) if asctime else datetime.fromisoformat(text)  # noqa: DTZ001
        return
    *days, year, hour, minute, second = (int(part or 0) for part in numeric.groups()[:6])
    if numeric[7]:
        hour = hour % 12 + 12 * (numeric[7] in "pP")
    for month, day in permutations(days):
        if month <= 12:
            yield datetime(year, month, day, hour, minute, second)  # noqa: DTZ001
