"""Private names of other packages, looked up with a fallback.

If a package no longer has a name, a class stands in that has no instances and equals no function or
key: nothing matches it, and calling it raises an error that its users handle. For each package, one
module lists the names, their use, and what happens without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Use(NamedTuple):
    """The use of a name, and what happens if its package no longer has it."""

    use: str
    without: str


Names = Mapping[str, Mapping[str, Use]]
"""Names and their use, by module."""


class NoSuchNameError(NotImplementedError):
    """A missing name of another package was called."""


class Missing(type):
    """Metaclass of the classes that stand in for missing names."""

    def __call__(cls, *_: Any, **__: Any) -> Any:  # noqa: D102 - never succeeds
        raise NoSuchNameError(f"{cls.place} does not exist")  # type: ignore[attr-defined]


def find(module: str, name: str) -> Any:
    """Return a name of a module, or a class that stands in for it."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return Missing(name, (), {"place": f"{module}.{name}"})


def missing_of(names: Names) -> dict[str, Use]:
    """Return the names that are missing in their modules."""
    return {
        f"{module}.{name}": use
        for module, some in names.items()
        for name, use in some.items()
        if isinstance(find(module, name), Missing)
    }
