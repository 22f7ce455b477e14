"""Facts of an HDF5 file beside its pixels: groups, attributes, small datasets and JSON.

Facts keep the paths that they have in the file. The unit of ``name`` is called ``name@units``, as
NeXus writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.hdf5.attributes import MOST_BYTES, attribute, label, plain
from dask_tiled.formats.hdf5.conventions import CONVENTIONS
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.files import read_head

MOST_VALUES = 2000
"""So many values are read, and no more."""
MOST_NAMES = 3000
"""So many attributes, groups and datasets are looked at; each takes some 0.1 ms."""
MOST_CHARACTERS = 1 << 18
"""So long are they together, as text."""
MOST_ITEMS = 64
"""Arrays of more items are left out."""
LONGEST_TEXT = 10_000
DEEPEST = 16
Names = tuple[str, ...]
PLACE = 16  # bytes of a text of any length: its own, and where it is


class Facts:
    """Facts about a picture, by the convention of the file.

    Attributes
    ----------
    found : dict
        The facts, nested, by the paths of the groups that they stand in.
    complete : bool
        Whether they were read, and nothing was left out because there is too much.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.found: dict[str, Any] = {}
        self.complete = False
        self._names, self._values = MOST_NAMES, MOST_VALUES
        self._characters = MOST_CHARACTERS
        self._seen: set[Any] = set()

    def read(self, picture: Picture) -> None:
        """Read them, as the first convention has it that knows of any."""
        from h5py import Group

        self.complete = True
        told = (convention.facts(self.tree, picture) for convention in CONVENTIONS)
        for path, facts in next(filter(None, told), {}).items():
            if isinstance(facts, tuple):
                group = self._look(path)
                try:
                    found = self.walk(group, facts) if isinstance(group, Group) else {}
                except BROKEN:  # pixels may be right all the same
                    self.complete, found = False, {}
            else:
                found = facts
            self.found |= {path: found} if found else {}

    def _look(self, path: str) -> Any:
        try:
            return self.tree.look(self.tree.root, path)
        except DatasetError:  # it leads out of the folder
            return None

    def walk(self, group: Any, names: Names = (), depth: int = 0) -> dict[str, Any]:
        """Read the attributes of a group, and what is small in it, or some; each group once."""
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
        """Go on as long as more may be read."""
        for name in names:
            if not self._names or not self._values:
                self.complete = False
                return
            self._names -= 1
            yield name

    def _add(self, found: dict[str, Any], name: str, value: Any) -> None:
        cut = isinstance(value, (bytes, str)) and len(value) > LONGEST_TEXT
        value = None if value is None else plain(value, MOST_ITEMS, LONGEST_TEXT)
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
        """Read a small dataset; None of one that is large, packed, or in other files."""
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
    """Count bytes; the length of texts stands before the place that each of them has elsewhere."""
    path, at = dataset.file.filename, dataset.id.get_offset()
    if dataset.dtype.kind != "O" or at is None or not os.path.isfile(path):
        return int(dataset.nbytes)
    places = np.frombuffer(read_head(path, PLACE * dataset.size, at), "<u4")
    return int(places[:: PLACE // 4].sum(dtype="u8"))


def _item(group: Any, name: str) -> Any:
    """Return what lies in a group itself: facts are read where they are, in this file alone."""
    from h5py import h5l

    try:
        kind = group.id.links.get_info(name.encode("utf8", "surrogateescape")).type
        return group[name] if kind == h5l.TYPE_HARD else None
    except BROKEN:
        return None
