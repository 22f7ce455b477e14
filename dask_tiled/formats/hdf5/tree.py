"""Groups and datasets of an HDF5 file, and of the files that it names.

The library would follow a link to any file of the machine. Here links are followed one by one, and
in the folder of the file that was opened, unless a user says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import Any

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, require
from dask_tiled.formats.hdf5.library import MOST_BUILT_IN, filters_of, load_plugins, open_file
from dask_tiled.formats.tools.files import named_file
from dask_tiled.model.files import File, is_refusal
from dask_tiled.model.paths import is_url

MOST_LINKS = 16
"""So many links lead to an object, and no more: they may go round in circles."""
MOST_OPEN = 32
"""So many files stay open that are parts of a series."""
BROKEN = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, OverflowError)
"""Errors of h5py where a file is corrupt."""


@contextmanager
def reading_of(file: File, problem: str) -> Iterator[None]:
    """Raise CorruptFileError for errors of a corrupt file; those of this package stay."""
    try:
        yield
    except DatasetError:
        raise
    except (*BROKEN, MemoryError) as error:
        if is_refusal(error):
            raise
        raise CorruptFileError(problem, path=file.path, found=str(error)) from error


on_opening: ContextVar[Callable[[File], object]] = ContextVar("on_opening", default=id)
"""Called with each file that another one leads to, before the library opens it."""


class Tree(ExitStack):
    """A file, and those that it leads to; all stay open as long as the tree."""

    def __init__(self, file: File) -> None:
        super().__init__()
        require("h5py", "hdf5", file.path)
        self.file = file
        self._opened: dict[str, Any] = {}
        self._sound: set[tuple[str, str]] = set()
        self._above: list[tuple[str, str]] = []

    def open(self, path: str) -> Any:
        """Open a file, or give the one that is open."""
        if path not in self._opened:
            file = File.at(path)
            if path != self.file.path:
                on_opening.get()(file)
            self._opened[path] = self.enter_context(open_file(file))
        return self._opened[path]

    @property
    def is_crowded(self) -> bool:
        """Whether no more files should stay open: each takes a descriptor and some memory."""
        return len(self._opened) >= MOST_OPEN

    @property
    def root(self) -> Any:
        """The group that all others are in."""
        return self.open(self.file.path)

    def find(self, name: str, path: str, where: str) -> str:
        """Find a file that another one names, and that holds a part of a dataset."""
        whole, last = os.path.isabs(name), os.path.basename(name)
        for known in (name, last)[whole and is_url(path) : 1 + whole]:  # as the library
            found = named_file(known, path, where)
            if found is not None:
                return found
        what = "a file that holds a part of the dataset is missing"
        raise TruncatedFileError(what, path=path, where=where, expected=name)

    def get(self, start: Any, path: str) -> Any:
        """Follow a path from a group on; LookupError where it leads nowhere."""
        from h5py import Group, h5l

        here, names, links = start.file if path.startswith("/") else start, path.split("/")[::-1], 0
        while names:
            name = names.pop()
            if name in {"", "."}:
                continue
            key = name.encode("utf8", "surrogateescape")
            if not isinstance(here, Group) or not here.id.links.exists(key) or links > MOST_LINKS:
                raise LookupError(f"{name!r} in {here.name} leads nowhere")
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
        """Follow a path as :meth:`get` does; give None where it leads nowhere."""
        with suppress(LookupError):
            return self.get(start, path)
        return None

    def _follow(self, group: Any, link: str, name: str) -> Any:
        where = f"the link {group.name.rstrip('/')}/{link}"
        try:
            found = self.find(name, group.file.filename, where)
        except TruncatedFileError as error:
            raise LookupError(str(error)) from error
        return self.open(found)

    def members(self, dataset: Any, source: Any) -> Iterator[Any]:
        """Open what a virtual dataset takes something from: a dataset, or a numbered series.

        Each is closed when the next one is opened.
        """
        names, here = (source.file_name, source.dset_name), dataset.file.filename
        numbered = any("%b" in name for name in names)
        for k in count() if numbered else [0]:
            name, inside = (n.replace("%b", str(k)).replace("%%", "%") for n in names)
            with Tree(self.file) as tree:
                where = f"the sources of {dataset.name}"
                try:
                    path = here if name == "." else tree.find(name, here, where)
                    member = tree.get(tree.open(path), inside)
                except (TruncatedFileError, LookupError):
                    if numbered:  # the first that is not there
                        return
                    raise
                yield member

    @contextmanager
    def inside(self, dataset: Any) -> Iterator[None]:
        """Look at the sources of a dataset.

        Raises
        ------
        CorruptFileError
            It is one of them, or of theirs.
        """
        place = dataset.file.filename, dataset.name
        if place in self._above:
            what = "a virtual dataset takes something from itself"
            raise CorruptFileError(what, path=place[0], where=place[1])
        self._above.append(place)
        yield
        self._above.pop()

    def check_sources(self, dataset: Any) -> None:
        """Make sure that the library reads a dataset only from where it may, and comes back.

        Raises
        ------
        DatasetError, CorruptFileError, TruncatedFileError
            It would look elsewhere, or go round in circles; or a part is missing.
        """
        place = dataset.file.filename, dataset.name
        if dataset.external:  # the library looks for them in the working directory
            what = "external files of such a dataset are not read"
            raise DatasetError(what, path=place[0], where=place[1], found=dataset.external[0][0])
        if place not in self._sound:
            if any(number > MOST_BUILT_IN for number, _ in filters_of(dataset)):
                load_plugins()
            with self.inside(dataset):
                for source in dataset.virtual_sources() if dataset.is_virtual else ():
                    for part in self.members(dataset, source):
                        self.check_sources(part)
            self._sound.add(place)

    def read(self, dataset: Any, first: int | None = None) -> Any:
        """Read a dataset, or of each row the first values."""
        self.check_sources(dataset)
        return dataset[()] if first is None else dataset[..., :first]
