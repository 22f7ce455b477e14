"""Which files belong together as one dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from dask_tiled.cataloguing.headers import FileHeader, stem
from dask_tiled.formats.tools.files import natural_key


class Belongings:
    """The datasets of a folder, and the files of each.

    A file whose pixels are those of files of another dataset is a part of it: a file of a series,
    of a master file or of an OME set. Of files that show the same pixels, such as a header and its
    data, the one that leads to most of the others is opened; else the one that holds the pixels.
    A file that is no dataset belongs to the first one for which it was looked at. Damaged files of
    the same stem, such as a header and its data, are one dataset, by the file at fault.

    Parameters
    ----------
    headers : iterable of FileHeader
        The datasets of the folder, also damaged ones.
    others : set of str
        The other files of the folder.
    claimed : set of str
        Files that belong to datasets of other folders.

    Attributes
    ----------
    datasets : dict
        The files of each dataset by the path to open.
    others : int
        Number of files that belong to none.
    """

    def __init__(
        self, headers: Iterable[FileHeader], others: AbstractSet[str], claimed: set[str]
    ) -> None:
        left = [one for one in headers if one.path not in claimed]
        left.sort(key=lambda one: natural_key(one.path))
        self.datasets: dict[str, list[str]] = {}
        self._owner: dict[str, str] = {}
        for alike in _alike(one for one in left if one.pictures):
            first = alike[0]
            owners = {self._owner.get(path) for path in first.pixels}
            owner = owners.pop() if len(owners) == 1 else None
            owner = owner or self._owner.get(first.path)
            if owner is None:
                for path in (first.path, *sorted(first.files, key=natural_key)):
                    self._add(first.path, path)
            for one in alike:
                self._add(owner or first.path, one.path)
        self._add_damaged([one for one in left if one.problem])
        rest = others - claimed if claimed else others
        self._add_looked(left, rest)
        self.others = sum(path not in self._owner for path in rest)
        self.others += sum(one.path not in self._owner for one in left)

    def _add(self, owner: str, path: str) -> None:
        if path not in self._owner:
            self._owner[path] = owner
            self.datasets.setdefault(owner, []).append(path)

    def _add_damaged(self, damaged: Sequence[FileHeader]) -> None:
        at_fault = {one.path for one in damaged if one.fault in {"", one.path}}
        for one in damaged:
            is_shared = one.fault in at_fault and stem(one.fault) == stem(one.path)
            first = one.fault if is_shared else one.path
            self._add(first, first)
            self._add(self._owner[first], one.path)

    def _add_looked(self, left: Iterable[FileHeader], rest: AbstractSet[str]) -> None:
        """Add the files that are no datasets to those that need them."""
        for one in left:
            if one.path in self.datasets:
                for path in sorted(one.looked & rest, key=natural_key):
                    self._add(one.path, path)


def _alike(headers: Iterable[FileHeader]) -> list[list[FileHeader]]:
    """Group headers of the same pixels, in each the one to open first; most files first."""
    groups = defaultdict[frozenset[str], list[FileHeader]](list)
    for one in headers:
        groups[one.pixels or frozenset({one.path})].append(one)
    found = [_best_first(some) for some in groups.values()]
    return sorted(found, key=lambda some: (-len(some[0].files), natural_key(some[0].path)))


def _best_first(headers: list[FileHeader]) -> list[FileHeader]:
    paths = {one.path for one in headers}

    def rank(one: FileHeader) -> tuple[object, ...]:
        reached = {one.path, *one.files, *one.looked} & paths
        return -len(reached), one.path not in one.pixels, natural_key(one.path)

    return sorted(headers, key=rank)
