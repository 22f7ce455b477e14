"""Names of other packages that are not public, found where they are, or stood in for.

A name that its package no longer has is a class that is never an instance, a function or a key of
that package: nothing matches it, and calling it is an error that its users expect. Each package has
one module that lists the names, their use, and what happens without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Use(NamedTuple):
    """What a name is used for, and what happens if its package no longer has it."""

    use: str
    without: str


Names = Mapping[str, Mapping[str, Use]]
"""Names and their use, by module."""


class NoSuchNameError(NotImplementedError):
    """A name was called that its package no longer has."""


class Missing(type):
    """The class of the classes that stand for names that are missing."""

    def __call__(cls, *_: Any, **__: Any) -> Any:  # noqa: D102 - nothing is made
        raise NoSuchNameError(f"there is no {cls.place}")  # type: ignore[attr-defined]


def find(module: str, name: str) -> Any:
    """Return what a module has under a name, or a class that stands for what is missing."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return Missing(name, (), {"place": f"{module}.{name}"})


def missing_of(names: Names) -> dict[str, Use]:
    """Return the names that their modules do not have."""
    return {
        f"{module}.{name}": use
        for module, some in names.items()
        for name, use in some.items()
        if isinstance(find(module, name), Missing)
    }
