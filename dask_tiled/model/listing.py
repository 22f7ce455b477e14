"""The images that a file lists by name, one of which is described."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, count
from typing import Any, NamedTuple

from dask_tiled.errors import printable

MOST_NAMED = 6
"""Maximum number of other images named on a line."""
MOST_LISTED = 100
"""Maximum number of images listed in metadata, which exports store."""
DATA = "data"
"""Name of an image without one."""

_limit: ContextVar[int | None] = ContextVar("limit", default=MOST_LISTED)


@contextmanager
def listing_all() -> Iterator[None]:
    """List all images of files that are described in this context."""
    token = _limit.set(None)
    try:
        yield
    finally:
        _limit.reset(token)


def most_listed() -> int | None:
    """Return the maximum number of images to list in metadata; None without a limit."""
    return _limit.get()


class Listing(NamedTuple):
    """The images of a file."""

    option: str
    """Name of the option that selects an image."""
    meant: Any
    """Value of the option for the described image."""
    names: dict[Any, str]
    """Image names by option value."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Listing:
        """Return the images in the metadata of a format; no file is opened."""
        option = "field" if "fields" in facts else "dataset"
        meant = facts.get(option)
        return cls(option, meant, _names(facts.get(f"{option}s", ()), meant))

    def __str__(self) -> str:
        """Return "2 of 5, name; the others: …"; empty if the file has one image."""
        if len(self.names) < 2 or self.meant not in self.names:
            return ""
        others = [name for key, name in self.names.items() if key != self.meant]
        more = ", ..." if len(others) > MOST_NAMED else ""
        place = [*self.names].index(self.meant) + 1
        names = f"{', '.join(others[:MOST_NAMED])}{more}"
        meant = self.names[self.meant]
        return printable(f"{place} of {len(self.names)}, {meant}; the others: {names}")


def _names(listed: Any, meant: Any) -> dict[Any, str]:
    """Return the names of the images listed in metadata, by option value.

    Numbers without an image have no facts.
    """
    items = [*(listed.items() if isinstance(listed, Mapping) else enumerate(listed))]
    found = {key: _name(key, facts, meant) for key, facts in items if facts != {}}
    counts = Counter(found.values())
    fields = {
        found[key] for key, one in items if isinstance(one, Mapping) and one.get("is_field")
    }  # of a plate, whose names are paths
    kept = {x for x in counts if counts[x] == 1 and (x in fields or _plain(x) == x)}
    named, taken = {}, {*kept}
    for key, name in found.items():
        if not name and key != meant:
            continue
        if counts[name] > 1 and name:
            name = key if isinstance(key, str) else f"{name}_{key}"  # noqa: PLW2901
        plain = _plain(name)
        every = chain([plain], (f"{plain}_{k}" for k in count(2)))
        free = (x for x in every if x not in taken)
        named[key] = name if found[key] in kept else next(free)
        taken.add(named[key])
    return named


def _plain(name: str) -> str:
    """Return a name without slashes."""
    return name.strip("/").replace("/", "_") or DATA


def _name(key: int | str, facts: Any, meant: Any) -> str:
    """Return the name of an image, from its title, name, path or number.

    One-dimensional data without a title are not an image, nor are levels of the pyramid of an
    image; their name is empty.
    """
    if not isinstance(facts, Mapping):
        return str(key if isinstance(key, str) else facts) or "dataset"
    levels = facts.get("levels", ()) if isinstance(key, str) else ()  # names, not a number
    if key != meant and (key in levels[1:] or meant in levels):
        return ""
    given = facts.get("title") or facts.get("name")
    if given or not isinstance(key, str):
        return given or "dataset"
    return os.path.basename(key) if len(facts.get("shape", (1, 1))) > 1 else ""
