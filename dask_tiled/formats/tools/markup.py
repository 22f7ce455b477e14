"""Text beside or inside of data files, as plain values: XML without document types, JSON, pairs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET

from dask_tiled.errors import CorruptFileError
from dask_tiled.model.files import read_head

MAX_BYTES = 1 << 22
MAX_PAIRS_BYTES = 1 << 20
MAX_ELEMENTS = 100_000
"""Headers have fewer. An element of four bytes takes many times the memory and time of its text."""
MAX_DEPTH = 64


Take: TypeAlias = Mapping[str, Callable[[ET.Element], None]]
"""What is called with elements of a name, without namespace, as soon as they are complete. They are
left out of the tree then, and do not count: there may be millions of them."""


class _Builder(ET.TreeBuilder):
    """Refuses what can grow without bounds: entities, which need a document type, and elements."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self.take = take
        self.count = 0
        self.within: list[tuple[ET.Element, int]] = []  # elements, and how many came before each

    def doctype(self, name: str, *_: str | None) -> None:
        raise ValueError(f"it has a document type, {name!r}, which is not read")

    def start(self, tag: Any, attrs: dict[Any, Any], /) -> ET.Element:
        element = super().start(tag, attrs)
        self.within.append((element, self.count))
        self.count += 1
        if len(self.within) > MAX_DEPTH or self.count > MAX_ELEMENTS:
            raise ValueError(f"more than {MAX_ELEMENTS} elements, or {MAX_DEPTH} inside each other")
        return element

    def end(self, tag: str, /) -> ET.Element:
        element = super().end(tag)
        _, before = self.within.pop()
        take = self.take.get(local_name(element))
        if take is not None:
            take(element)
            if self.within:
                self.within[-1][0].remove(element)
                self.count = before
        return element


def local_name(element: ET.Element) -> str:
    """Give the name of an element without its namespace."""
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
) -> ET.Element:
    """Read XML.

    Parameters
    ----------
    text : bytes
        The document.
    path : path-like
        What to name in errors.
    take : mapping, optional
        Functions that take elements out of the tree, by name without namespace. Their ValueErrors
        are errors in the XML.
    max_bytes : int
        By default 4 MiB.

    Raises
    ------
    CorruptFileError
        It is not well formed, too large, of more than 100000 elements or 64 inside each other, or
        has a document type.
    """
    try:
        if len(text) > max_bytes:
            raise ValueError(f"it is larger than {max_bytes} bytes")  # noqa: TRY301
        parser = ET.XMLParser(target=_Builder(take or {}))  # noqa: S314 - no entities, see the builder
        parser.feed(text)
        return parser.close()
    except (ET.ParseError, ValueError, LookupError) as error:  # the last: unknown encodings
        raise CorruptFileError("the XML cannot be read", path=path, found=str(error)) from error


def parse_json(text: bytes | str) -> Any:
    """Read JSON.

    Raises
    ------
    ValueError
        It is no JSON, or has more than 64 lists and objects inside each other.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"more than {MAX_DEPTH} inside each other") from error
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(MAX_DEPTH + 1):
        groups = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for group in groups for one in group if isinstance(one, (dict, list))]
        if not level:
            return found
    raise ValueError(f"more than {MAX_DEPTH} inside each other")


def read_pairs(path: str | os.PathLike[str], sep: str, encoding: str) -> dict[str, str]:
    """Read the keys and values of a text file, of which each line has one of each."""
    return parse_pairs(read_head(path, MAX_PAIRS_BYTES).decode(encoding, "replace"), sep)


def parse_pairs(text: str, sep: str) -> dict[str, str]:
    """Take the keys and values out of lines; those without ``sep`` are left out."""
    pairs = (line.partition(sep) for line in text.splitlines())
    return {key.strip(): value.strip() for key, found, value in pairs if found}


def plain_tree(element: ET.Element) -> Any:
    """Turn an element into its text, or a dict of attributes, as ``@name``, and children.

    Children of the same name make a tuple. Text beside them is ``#text``. Namespaces are left out.
    """
    text = (element.text or "").strip()
    children: dict[str, list[Any]] = {}
    for child in element:
        children.setdefault(local_name(child), []).append(plain_tree(child))
    tree: dict[str, Any] = {
        f"@{name.rpartition('}')[2]}": value for name, value in element.attrib.items()
    }
    for tag, values in children.items():
        tree[tag] = values[0] if len(values) == 1 else tuple(values)
    if not tree:
        return text
    return {**tree, "#text": text} if text else tree
