"""Which options a figure takes, and each kind of picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.showing.looks import chosen
from dask_tiled.showing.panels import Composite, Line, Panel, PhasePanel, VectorPanel

BY_KIND = {
    "values": ("cmap", "vmin", "vmax", "norm", "percentiles"),
    "directions": ("cmap", "vmax", "percentiles"),
    "colours": (),
    "lines": ("vmin", "vmax", "norm"),
}
"""Options by kind: "directions" are vectors as colours, and phases; arrows lie on values."""


def check_taken(panels: Sequence[Panel], vectors: str, given: Mapping[str, Any]) -> None:
    """Check that each option has an effect.

    Raise a DatasetError if an option for all pictures applies to none of them, or an option for a
    picture does not apply to it.
    """
    names = [panel.title for panel in panels]
    kinds = [_kind(panel, vectors) for panel in panels]
    for option, value in given.items():
        own = [chosen(option, value, names, k) for k in range(len(panels))]
        takes = [one is None or _takes(kind, option, one)
                 for kind, one in zip(kinds, own, strict=True)]  # fmt: skip
        if all(takes) or (any(takes) and not isinstance(value, Mapping)):
            continue
        k = takes.index(False)
        known = BY_KIND[kinds[k]]
        expected = " or ".join(known) if option not in known else "the name of a norm"
        found = f"{option} for {f'{names[k]!r}, ' if names[k] else ''}a picture of {kinds[k]}"
        problem = "an option does not apply to a picture"
        raise DatasetError(problem, expected=expected or "no option of colours", found=found)


def _kind(panel: Panel, vectors: str) -> str:
    if isinstance(panel, Line):
        return "lines"
    if isinstance(panel, PhasePanel) or (isinstance(panel, VectorPanel) and vectors != "arrows"):
        return "directions"
    is_colour = isinstance(panel, Composite) or (
        not isinstance(panel, VectorPanel) and np.ndim(panel.values) == 3
    )
    return "colours" if is_colour else "values"


def _takes(kind: str, option: str, value: Any) -> bool:
    is_scale = kind != "lines" or option != "norm" or isinstance(value, str)
    return is_scale and option in BY_KIND[kind]


def check_title(title: Any) -> None:
    """Raise a DatasetError if a title is no text."""
    if title is not None and not isinstance(title, str):
        raise DatasetError("invalid title", expected="text", found=repr(title))


def check_switches(*, open: bool = False, **given: Any) -> None:
    """Raise a DatasetError if an option is neither on nor off, nor left open."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_) and not (open and value is None):
            expected = f"True{',' if open else ' or'} False{' or None' * open}"
            raise DatasetError(f"invalid {name}", expected=expected, found=repr(value))


def check_on_axes(axes: Sequence[Any], *, title: str | None, **given: Any) -> None:
    """Raise a DatasetError for options that have no effect on axes of the user."""
    for name, value in given.items():
        if value is not None:
            problem = f"{name} does not apply to axes of your own"
            raise DatasetError(problem, found=f"{name}={value:g}")
    if len(axes) > 1 and title is not None:
        hint = "Pass the arrays as a mapping by title."
        raise DatasetError("title does not apply to several axes", found=repr(title), hint=hint)
