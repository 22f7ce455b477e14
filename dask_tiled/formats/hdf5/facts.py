"""Facts of an HDF5 file: groups, attributes, small datasets and JSON.

Facts keep their paths in the file. The unit of ``name`` is called ``name@units``, as in NeXus.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import read_head
from dask_tiled.formats.hdf5.attributes import MOST_BYTES, attribute, label, plain_value
from dask_tiled.formats.hdf5.conventions import CONVENTIONS
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import BROKEN, Tree

MOST_VALUES = 2000
"""Read at most this many values."""
MOST_NAMES = 3000
"""Visit at most this many attributes, groups and datasets; each takes some 0.1 ms."""
MOST_CHARACTERS = 1 << 18
"""Maximum number of characters of all facts as text."""
MOST_ITEMS = 64
"""Larger arrays are skipped."""
LONGEST_TEXT = 10_000
DEEPEST = 16
Names = tuple[str, ...]
PLACE = 16  # bytes of a variable-length text: its length and its location


class Facts:
    """Facts about an image, by the convention of the file.

    Attributes
    ----------
    found : dict
        The facts, nested, by the paths of their groups.
    complete : bool
        Whether all facts were read, without exceeding a limit.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.found: dict[str, Any] = {}
        self.complete = False
        self._names, self._values = MOST_NAMES, MOST_VALUES
        self._characters = MOST_CHARACTERS
        self._seen: set[Any] = set()

    def read(self, picture: Picture) -> None:
        """Read the facts that the first matching convention lists."""
        from h5py import Group

        self.complete = True
        told = (convention.facts(self.tree, picture) for convention in CONVENTIONS)
        for path, facts in next(filter(None, told), {}).items():
            if isinstance(facts, tuple):
                group = self._look(path)
                try:
                    found = self.walk(group, facts) if isinstance(group, Group) else {}
                except BROKEN:  # the pixels may be readable
                    self.complete, found = False, {}
            else:
                found = facts
            self.found |= {path: found} if found else {}

    def _look(self, path: str) -> Any:
        try:
            return self.tree.look(self.tree.root, path)
        except DatasetError:  # a link out of the folder
            return None

    def walk(self, group: Any, names: Names = (), depth: int = 0) -> dict[str, Any]:
        """Read attributes and small members of a group, or some of them; each group once."""
        import h5py

        found: dict[str, Any] = {}
        if group in self._seen:
            return found
        self._seen.add(group)
        for name in self._bounded(names or group.attrs):
            self._add(found, name, attribute(group, name))
        if depth == DEEPEST and len(group):
            self.complete = False
            return found
        for name in self._bounded(names or names_in(group, self._names + 1)):
            item = _item(group, name)
            if isinstance(item, h5py.Group):
                inner = self.walk(item, depth=depth + 1)
                found |= {name: inner} if inner else {}
            elif isinstance(item, h5py.Dataset):
                self._add(found, name, self._value(item))
                units = label(attribute(item, "units"))
                if units and name in found:
                    found[f"{name}@units"] = units
        return found

    def _bounded(self, names: Iterable[str]) -> Iterator[str]:
        """Yield names until a limit is reached."""
        for name in names:
            if not self._names or not self._values:
                self.complete = False
                return
            self._names -= 1
            yield name

    def _add(self, found: dict[str, Any], name: str, value: Any) -> None:
        cut = isinstance(value, (bytes, str)) and len(value) > LONGEST_TEXT
        value = None if value is None else plain_value(value, MOST_ITEMS, LONGEST_TEXT)
        if value is None:
            return
        length = len(name) + len(str(value))
        fits = self._values and length <= self._characters
        self.complete &= bool(fits) and not cut
        if fits:
            self._values -= 1
            self._characters -= length
            value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            found[name] = None if value == "_None_" else value

    def _value(self, dataset: Any) -> Any:
        """Read a small dataset; None if it is large, filtered, or in other files."""
        from h5py import h5d

        if dataset.shape is None or dataset.size > MOST_ITEMS:
            return None
        try:
            if _nbytes(dataset) > MOST_BYTES:
                self.complete = False
                return None
            how = dataset.id.get_create_plist()
            packed = how.get_nfilters() or how.get_external_count()
            if packed or how.get_layout() == h5d.VIRTUAL:
                return None
            return dataset[()]
        except BROKEN:
            return None


def _nbytes(dataset: Any) -> int:
    """Return the size of a dataset; for texts, the sum of the lengths in its pointers."""
    path, at = dataset.file.filename, dataset.id.get_offset()
    if dataset.dtype.kind != "O" or at is None or not os.path.isfile(path):
        return int(dataset.nbytes)
    places = np.frombuffer(read_head(path, PLACE * dataset.size, at), "<u4")
    return int(places[:: PLACE // 4].sum(dtype="u8"))


def _item(group: Any, name: str) -> Any:
    """Return a direct member of a group; facts are read from this file only."""
    from h5py import h5l

    try:
        kind = group.id.links.get_info(name.encode("utf8", "surrogateescape")).type
        return group[name] if kind == h5l.TYPE_HARD else None
    except BROKEN:
        return None
