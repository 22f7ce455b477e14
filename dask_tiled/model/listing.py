"""The pictures that a file lists, by their names; one of them is described."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from dask_tiled.errors import printable

MOST_NAMED = 6
"""So many of the other pictures of a file are named in a line."""


class Listing(NamedTuple):
    """What else a file holds."""

    option: str
    """The option that chooses a picture."""
    meant: Any
    """Its value for the picture that is described."""
    names: dict[Any, str]
    """Names of all pictures, by the values of the option."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Listing:
        """Return what the facts of a format list; nothing is opened."""
        option = "field" if "fields" in facts else "dataset"
        meant = facts.get(option)
        return cls(option, meant, _names(facts.get(f"{option}s", ()), meant))

    def __str__(self) -> str:
        """Say which picture of how many it is; empty where it is the only one."""
        if len(self.names) < 2 or self.meant not in self.names:
            return ""
        others = [name for key, name in self.names.items() if key != self.meant]
        more = ", ..." if len(others) > MOST_NAMED else ""
        place = [*self.names].index(self.meant) + 1
        names = f"{', '.join(others[:MOST_NAMED])}{more}"
        meant = self.names[self.meant]
        return printable(f"{place} of {len(self.names)}, {meant}; the others: {names}")


def _names(listed: Any, meant: Any) -> dict[Any, str]:
    """Name the pictures that metadata list, by what chooses them."""
    items = listed.items() if isinstance(listed, Mapping) else enumerate(listed)
    found = {key: _name(key, facts) for key, facts in items}
    counts = Counter(found.values())
    for key, name in found.items():
        if name and counts[name] > 1:
            found[key] = key if isinstance(key, str) else f"{name}_{key}"
    named = {key: name.strip("/").replace("/", "_") for key, name in found.items()}
    return {key: name for key, name in named.items() if name or key == meant}


def _name(key: int | str, facts: Any) -> str:
    """Name a picture that is listed by its path, with facts; by its name; or by its number.

    Of what has a path, numbers on one axis without a title are no picture, and have no name.
    """
    if not isinstance(facts, Mapping):
        return str(key if isinstance(key, str) else facts) or "dataset"
    given = facts.get("title") or facts.get("name")
    if given or not isinstance(key, str):
        return given or "dataset"
    return os.path.basename(key) if len(facts["shape"]) > 1 else ""
