"""Groups and datasets of an HDF5 file, and of the files that it links to.

The library would follow a link to any file of the machine. Here links are followed one at a time,
inside the folder of the opened file unless the user permits others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

from dask_tiled.apart.child import on_opening
from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    MissingFileError,
    TruncatedFileError,
    require,
)
from dask_tiled.files.file import File, is_filling
from dask_tiled.files.paths import is_url
from dask_tiled.formats.hdf5.grids import Box
from dask_tiled.formats.hdf5.library import MOST_BUILT_IN, filters_of, load_plugins, open_file
from dask_tiled.formats.hdf5.selections import MOST_BOXES, boxes_of, moved
from dask_tiled.formats.tools.files import may_be_longer, named_file
from dask_tiled.model.doubts import Doubt

MOST_LINKS = 16
"""Maximum number of links on the way to an object: links may be cyclic."""
MOST_OPEN = 32
"""Maximum number of files of a series that stay open."""
BROKEN = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, OverflowError)
"""Errors of h5py for corrupt files."""


class CircularLinkError(LookupError):
    """More links than permitted lead to an object, perhaps in a circle."""


class Tree(ExitStack):
    """A file, and the files that it links to; they stay open as long as the tree."""

    def __init__(self, file: File) -> None:
        super().__init__()
        require("h5py", "hdf5", file.path)
        self.file = file
        self.doubts: list[Doubt] = []
        """Doubts about what was read."""
        self._opened: dict[str, Any] = {}
        self._checked: dict[tuple[str, str], list[tuple[str, Box]]] = {}
        self._above: list[tuple[str, str]] = []

    def open(self, path: str) -> Any:
        """Open a file, or return it if it is open."""
        if path not in self._opened:
            file = File.at(path)
            if path != self.file.path:
                on_opening.get()(file)
            self._opened[path] = self.enter_context(open_file(file))
        return self._opened[path]

    @property
    def is_crowded(self) -> bool:
        """Whether to close further files after use: each needs a descriptor and memory."""
        return len(self._opened) >= MOST_OPEN

    @property
    def root(self) -> Any:
        """The root group."""
        return self.open(self.file.path)

    def find(self, name: str, path: str, where: str) -> str:
        """Return the path of a file that another one names as holding a part of a dataset."""
        whole, last = os.path.isabs(name), os.path.basename(name)
        # In the search order of the library.
        for known in (name, last)[whole and is_url(path) : 1 + whole]:
            found = named_file(known, path, where)
            if found is not None:
                return found
        raise _missing(name, path, where)

    def get(self, start: Any, path: str) -> Any:
        """Return the object at a path, relative to a group; raise LookupError if there is none."""
        from h5py import Group, h5l

        here, names, links = start.file if path.startswith("/") else start, path.split("/")[::-1], 0
        while names:
            name = names.pop()
            if name in {"", "."}:
                continue
            key = name.encode("utf8", "surrogateescape")
            if links > MOST_LINKS:
                raise CircularLinkError(f"too many links lead to {name!r}")
            if not isinstance(here, Group) or not here.id.links.exists(key):
                raise LookupError(f"{name!r} in {here.name} does not exist")
            kind = here.id.links.get_info(key).type
            if kind == h5l.TYPE_HARD:
                here = here[name]
                continue
            target, links = here.id.links.get_val(key), links + 1
            if kind == h5l.TYPE_EXTERNAL:
                file, target = target
                here = self._follow(here, name, os.fsdecode(file))
            elif target.startswith(b"/"):
                here = here.file
            names += target.decode("utf8", "surrogateescape").split("/")[::-1]
        return here

    def look(self, start: Any, path: str) -> Any:
        """Return the object at a path like :meth:`get`; None if there is none."""
        with suppress(LookupError):
            return self.get(start, path)
        return None

    def is_link(self, group: Any, name: str) -> bool:
        """Return whether a group has a link of this name, whatever it leads to."""
        from h5py import Group

        known = isinstance(group, Group) and name and "/" not in name
        return bool(known and group.id.links.exists(name.encode("utf8", "surrogateescape")))

    def _follow(self, group: Any, link: str, name: str) -> Any:
        where = f"the link {group.name.rstrip('/')}/{link}"
        try:
            found = self.find(name, group.file.filename, where)
        except MissingFileError as error:
            raise LookupError(f"{name} does not exist") from error
        return self.open(found)

    def members(self, dataset: Any, source: Any) -> Iterator[Any]:
        """Yield the sources of a virtual dataset: a dataset, or a numbered series.

        Each is closed when the next one is opened.
        """
        names, here = (source.file_name, source.dset_name), dataset.file.filename
        numbered = any("%b" in name for name in names)
        for k in count() if numbered else [0]:
            name, inside = (n.replace("%b", str(k)).replace("%%", "%") for n in names)
            with Tree(self.file) as tree:
                try:
                    path = here if name == "." else tree.find(name, *_place(dataset))
                    member = tree.get(tree.open(path), inside)
                except (MissingFileError, LookupError):
                    if numbered:  # the end of the series
                        self._doubt_end(name, source.file_name.replace("%b", str(k + 1)), here)
                        return
                    raise
                yield member

    def _doubt_end(self, missing: str, following: str, path: str) -> None:
        """Doubt that a numbered series of files ends, if the file after the missing one exists."""
        if following == missing or named_file(following, path, "a virtual dataset") is None:
            return
        doubt = may_be_longer(f"{missing} is missing, but {following} is there")
        self.doubts += [doubt] if doubt not in self.doubts else []

    @contextmanager
    def inside(self, dataset: Any) -> Iterator[None]:
        """Mark a dataset while its sources are visited, to detect cycles.

        Raise a CorruptFileError if the dataset is among its own sources.
        """
        place = dataset.file.filename, dataset.name
        if place in self._above:
            what = "a virtual dataset has itself as a source"
            raise CorruptFileError(what, path=place[0], where=place[1])
        self._above.append(place)
        try:
            yield
        finally:
            self._above.pop()

    def check_sources(self, dataset: Any) -> list[tuple[str, Box]]:
        """Check that the library will read only permitted files, and does not loop.

        Return the names of missing files, and the boxes of the dataset that they hold.

        Raise a DatasetError or CorruptFileError if a source is outside or cyclic, and a
        MissingFileError or LookupError if one is missing, unless ``missing`` is "fill".
        """
        place = dataset.file.filename, dataset.name
        if dataset.external:  # the library searches the working directory
            what = "external files of such a dataset are not supported"
            raise DatasetError(what, path=place[0], where=place[1], found=dataset.external[0][0])
        if place not in self._checked:
            if any(number > MOST_BUILT_IN for number, _ in filters_of(dataset)):
                load_plugins()
            lost = list[tuple[str, Box]]()
            with self.inside(dataset):
                for source in dataset.virtual_sources() if dataset.is_virtual else ():
                    lost += self._lost_of(dataset, source)
                    if len(lost) > MOST_BOXES:
                        raise _missing(lost[0][0], *_place(dataset))
            self._checked[place] = lost
        return self._checked[place]

    def _lost_of(self, dataset: Any, source: Any) -> list[tuple[str, Box]]:
        """Check a source of a virtual dataset; return missing files and their boxes as above."""
        lost, parts = list[tuple[str, Box]](), self.members(dataset, source)
        while True:
            try:
                part = next(parts, None)
            except (TruncatedFileError, LookupError):
                boxes = boxes_of(source.vspace, dataset.shape) if is_filling() else []
                if not boxes:
                    raise
                return [(source.file_name, box) for box in boxes]
            if part is None:
                return lost
            inside: dict[str, list[Box]] = {}
            for name, box in self.check_sources(part):
                inside.setdefault(name, []).append(box)
            for name, some in inside.items():
                found = moved(some, part, source.src_space, source.vspace)
                if found is None:
                    raise _missing(name, *_place(dataset))
                lost += [(name, box) for box in found]

    def read(self, dataset: Any, first: int | None = None) -> Any:
        """Read a dataset, or the first values of each row."""
        self.check_sources(dataset)
        return dataset[()] if first is None else dataset[..., :first]


def _place(dataset: Any) -> tuple[str, str]:
    """Return the file of a virtual dataset, and the place of its sources, for errors."""
    return dataset.file.filename, f"the sources of {dataset.name}"


def _missing(name: str, path: str, where: str) -> MissingFileError:
    what = "a file that holds a part of the dataset is missing"
    hint = "Pass missing='fill' to show its frames as missing."
    return MissingFileError(what, path=path, where=where, expected=name, hint=hint)
