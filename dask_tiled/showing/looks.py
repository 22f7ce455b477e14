"""How values become colours: colour map, limits and norm, checked before anything is computed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.indexing import Array
from dask_tiled.showing.panels import PERCENTILES, contrast

NORMS = "linear", "log", "symlog", "asinh"


class Look(NamedTuple):
    """How the values of a panel become colours; None leaves a choice to the values."""

    cmap: Any = None
    """Name of a colour map of matplotlib, or a Colormap."""
    vmin: float | None = None
    vmax: float | None = None
    norm: Any = None
    """One of NORMS, or a Normalize of matplotlib."""
    percentiles: tuple[float, float] | None = None

    @property
    def is_log(self) -> bool:
        """Whether values have to be positive."""
        from matplotlib.colors import LogNorm

        return isinstance(self.norm, LogNorm) or (isinstance(self.norm, str) and self.norm == "log")

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Check the options of a panel.

        Raise a DatasetError if a colour map or scale is unknown, or limits contradict each other.
        """
        pair = given.get("percentiles")
        given["percentiles"] = tuple(pair.tolist()) if isinstance(pair, np.ndarray) else pair
        look = cls(**given)
        _check_cmap(look.cmap)
        _check_limits(look)
        _check_norm(look)
        return look

    def limits(self, values: Array) -> tuple[float, float, float]:
        """Return the darkest and the brightest value, and a gamma that enhances dark values.

        Gamma is 1 if anything about the limits is given.
        """
        if self.norm == "log":
            with np.errstate(invalid="ignore"):
                values = values[values > 0]
        low, high, gamma = contrast(values, self.percentiles or PERCENTILES)
        low = low if self.vmin is None else self.vmin
        high = high if self.vmax is None else self.vmax
        if low >= high:  # one limit is given, beyond all values
            low, high = (low, low + 1) if self.vmax is None else (high - 1, high)
        if self.norm == "log" and low <= 0:  # no value is positive
            low, high = (1.0, 10.0) if self.vmax is None else (high / 10, high)
        return low, high, gamma if self[1:] == (None,) * 4 else 1.0

    def colours_of(self, values: Array, *, enhances: bool) -> tuple[dict[str, Any], float]:
        """Return the options of ``imshow`` for values, and the gamma that they include."""
        from matplotlib.colors import LogNorm, PowerNorm

        if self.norm is not None and not isinstance(self.norm, str):
            norm = copy(self.norm)
            norm.clip = norm.clip or isinstance(norm, LogNorm)
            return {"norm": norm}, 1.0
        low, high, gamma = self.limits(values)
        if gamma != 1 and enhances:
            return {"norm": PowerNorm(gamma, low, high)}, gamma
        if self.norm == "log":  # clipped, zeros have the lowest colour, and no transparent one
            return {"norm": LogNorm(low, high, clip=True)}, 1.0
        named = {} if self.norm is None else {"norm": self.norm}
        return {"vmin": low, "vmax": high, **named}, 1.0


def looks_of(names: Sequence[str], **given: Any) -> list[Look]:
    """Return the look of each panel, from options for all of them, or by title or position.

    Raise a DatasetError as :meth:`Look.of`, or if no panel has a title.
    """
    options = [{name: chosen(name, x, names, k) for name, x in given.items()}
               for k in range(len(names))]  # fmt: skip
    return [Look.of(**one) for one in options]


def chosen(option: str, value: Any, names: Sequence[str], k: int) -> Any:
    """Return the value of an option for a panel: of a mapping, by title or position.

    Raise a DatasetError if a key is neither.
    """
    if not isinstance(value, Mapping):
        return value
    for key in value:
        if key not in names and not (isinstance(key, int) and 0 <= key < len(names)):
            expected = " or ".join(map(repr, [*filter(None, names), *range(len(names))]))
            raise DatasetError(f"{option}: no such picture", expected=expected, found=repr(key))
    if k in value and names[k] in value:
        problem = f"{option}: a picture is named twice"
        raise DatasetError(problem, expected=f"{k} or {names[k]!r}", found="both")
    return value.get(k, value.get(names[k]))


def _check_cmap(cmap: Any) -> None:
    import matplotlib as mpl

    if cmap is None or isinstance(cmap, mpl.colors.Colormap):
        return
    if isinstance(cmap, str) and cmap in mpl.colormaps:
        return
    near = difflib.get_close_matches(str(cmap), [*mpl.colormaps], n=3)
    expected = f"{', '.join(near)}" if near else "a name in matplotlib.colormaps, or a Colormap"
    raise DatasetError("unknown colour map", expected=expected, found=repr(cmap))


def _check_limits(look: Look) -> None:
    for name in ("vmin", "vmax"):
        value = getattr(look, name)
        if value is not None and not _is_finite(value):
            raise DatasetError(f"invalid {name}", expected="a finite number", found=repr(value))
    if look.vmin is not None and look.vmax is not None and look.vmin >= look.vmax:
        expected, found = "vmin below vmax", f"vmin={look.vmin}, vmax={look.vmax}"
        raise DatasetError("invalid limits", expected=expected, found=found)
    pair = look.percentiles
    if pair is not None and not _are_percentiles(pair):
        expected = "two increasing numbers from 0 to 100"
        raise DatasetError("invalid percentiles", expected=expected, found=repr(pair))


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return is_number and not isinstance(value, bool) and math.isfinite(value)


def _are_percentiles(pair: Any) -> bool:
    is_pair = isinstance(pair, Sequence) and len(pair) == 2 and all(map(_is_finite, pair))
    return is_pair and 0 <= pair[0] < pair[1] <= 100


def _check_norm(look: Look) -> None:
    import matplotlib as mpl

    norm = look.norm
    if norm is None:
        return
    if isinstance(norm, mpl.colors.Normalize):
        if look.vmin is not None or look.vmax is not None or look.percentiles is not None:
            problem = "limits are given twice: by norm, and by vmin, vmax or percentiles"
            raise DatasetError(problem, hint="Pass vmin and vmax to the norm.")
        return
    if not isinstance(norm, str) or norm not in NORMS:
        expected = f"{', '.join(NORMS)}, or a Normalize of matplotlib"
        raise DatasetError("unknown norm", expected=expected, found=repr(norm))
    for name in ("vmin", "vmax"):
        value = getattr(look, name)
        if norm == "log" and value is not None and value <= 0:
            raise DatasetError(f"invalid {name}", expected="above 0 with norm='log'", found=value)
