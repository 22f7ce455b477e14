"""Validate the docstrings of all public names with numpydoc; ``make lint`` does so."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

import dask_tiled

PAGE = Path(__file__).parent / "api.rst"
IGNORED = {
    "ES01",  # a summary is enough for many functions
    "SA01",  # the guide links related functions
}
"""Codes of numpydoc to ignore."""


def names() -> list[str]:
    """Return the names on the page of the API."""
    page = PAGE.read_text("utf8")
    blocks = re.findall(r"^\.\. autosummary::\n(?:   :.*\n)+\n((?:   .+\n)+)", page, re.MULTILINE)
    found = " ".join(blocks).split()
    return (
        found if find_spec("torch") else [name for name in found if not name.startswith("torch.")]
    )


def problems(name: str) -> list[str]:
    """Return numpydoc's findings on the docstring of a public name, as lines."""
    value = attrgetter(name)(dask_tiled)
    found = validate(f"{value.__module__}.{value.__qualname__}")
    place = f"{found['file']}:{found['file_line']}: {name}:"
    errors = [(code, text) for code, text in found["errors"] if code not in IGNORED]
    if isinstance(value, type) and not missing_parameters(value):
        errors = [(code, text) for code, text in errors if code != "PR01"]
    return [f"{place} {code} {text}" for code, text in errors]


def missing_parameters(kind: type) -> set[str]:
    """Return the parameters of a class that are documented neither as parameters nor attributes.

    Errors inherit documented parameters; opened arrays are made by functions, not by the class.
    """
    if kind is dask_tiled.TiledArray:
        return set()
    documented = {name for base in kind.__mro__[:-1] for name in _documented(base)}
    return {*getattr(kind, "__annotations__", ())} - documented


def _documented(kind: Any) -> set[str]:
    doc = ClassDoc(kind)
    entries = [*doc["Parameters"], *doc["Attributes"]]
    return {name for entry in entries for name in entry.name.split(", ")}


def main() -> None:
    """Print all problems; exit with 1 if there are any."""
    public = names()
    if len(public) < 60:
        sys.exit(f"{PAGE}: found {len(public)} names; expected all of the package")
    lines = [line for name in public for line in problems(name)]
    print("\n".join(lines or [f"numpydoc finds no problem in {len(public)} public docstrings"]))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
