"""The napari plugin: a lazy layer for each image, and export of layers to zarr.

napari finds it through ``napari.yaml`` in the package. The module does not import napari.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.bridges.pictures import open_pictures
from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.zarr.group import DATA, labels_of
from dask_tiled.export.zarr.zarr_export import to_zarr
from dask_tiled.files.paths import is_url
from dask_tiled.formats.registry import completed, formats, recognised_by
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.calibration import is_unknown
from dask_tiled.model.colours import PALETTE, drawn
from dask_tiled.model.description import facts_of
from dask_tiled.model.pyramids import Method
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import is_array
from dask_tiled.opened.tiled_array import description_of, levels_of, read_once
from dask_tiled.opening.arrays import open_dataset, opened
from dask_tiled.showing.panels import contrast
from dask_tiled.showing.roles import CHANNELS, MOST_APART, colour_axis, colour_places
from dask_tiled.showing.subject import numbers

LayerData = tuple[Any, dict[str, Any], str]

SAMPLED = 2048
"""Contrast is chosen from the central pixels of three images, at most this many per axis."""
NO_UNIT = "pixel"
OF_IMAGES = {"blending", "colormap", "contrast_limits", "gamma", "rgb"}
"""Attributes that layers of labels do not have."""
FAR = 8
"""Images further apart than this many times their length are shown at one place."""
MOST_IMAGES = 32
"""Maximum number of images of a file that are opened: a plate may have hundreds of wells."""


def get_reader(path: str | Sequence[str]) -> Callable[[Any], list[LayerData]] | None:
    """Return a reader of files, or None if no format recognises the first one.

    Parameters
    ----------
    path : str or sequence of str
        A file, a zarr folder, or several files for one layer. URLs are not read here.

    Returns
    -------
    callable or None
        Function that takes the path and returns napari layers: pixels, attributes, and kind.
    """
    try:
        first = path if isinstance(path, str) else path[0]
        return read_layers if is_url(first) or _is_known(first) else None
    except Exception:  # noqa: BLE001 - napari passes any path, and tries other readers next
        return None


def _is_known(path: str) -> bool:
    path = completed(path)
    return os.path.isfile(path) and recognised_by(formats().values(), path, {}) is not None


def read_layers(path: str | Sequence[str]) -> list[LayerData]:
    """Open files as lazy layers; napari reads what it displays.

    Parameters
    ----------
    path : str or sequence of str
        As for :func:`dask_tiled.open_dataset`. Files that are not a series are stacked.

    Returns
    -------
    list of tuple
        Arrays, or lists of them for pyramids; attributes; and "image", or "labels" for label
        images of OME-Zarr. Of several images only the default one is visible, and at most 32 are
        opened, with a warning. Contrast is chosen from a few images, which are read.

    Raises
    ------
    DatasetError
        As for :func:`dask_tiled.open_dataset`.
    """
    first = path if isinstance(path, str) else path[0]
    stem, _ = os.path.splitext(os.path.basename(os.path.normpath(first)))
    stem = stem.removesuffix(".ome")
    layers: list[LayerData] = []
    for number, (name, arr) in enumerate(_opened(path)):
        if number == MOST_IMAGES:
            warn(f"{first}: the first {MOST_IMAGES} images are shown")
            break
        facts = facts_of(description_of(arr))
        given = facts.get("attributes", {}).get("name", stem)  # the name that write_image stored
        called = str(given) if name == DATA else f"{stem} {name}"
        visible = {"visible": not layers}
        levels = levels_of(arr)
        has_labels = facts.get("has_labels") and arr.dtype.kind in "iu"
        kind, dropped = ("labels", OF_IMAGES) if has_labels else ("image", set[str]())
        for data, more in _layers(called, levels):
            told = {key: one for key, one in more.items() if key not in dropped}
            layers.append((data, told | visible, kind))
    _gather(layers)
    return layers


def _gather(layers: Sequence[LayerData]) -> None:
    """Move images to the place of the first one if they lie far apart, as wells of a plate do.

    The window shows all layers at first, visible or not, and each would be a few pixels large.
    Their offsets are kept in the metadata.
    """
    ends: list[tuple[float, float, float]] = []
    for data, told, _ in layers:
        shape = (data[0] if told["multiscale"] else data).shape
        axes = zip(told["translate"], told["scale"], shape, strict=False)  # no axis of colours
        ends += [(start, start + n * step, n * abs(step)) for start, step, n in [*axes][-2:]]
    for k in (0, 1):
        first, last, lengths = zip(*ends[k::2], strict=True)
        if max(*first, *last) - min(*first, *last) <= FAR * max(lengths):
            continue
        for _, told, _ in layers:
            place, name = k - 2, told["axis_labels"][k - 2]
            kept = told["metadata"].get("offsets", {}) | {name: told["translate"][place]}
            told["metadata"] = {**told["metadata"], "offsets": kept}
            told["translate"][place] = layers[0][1]["translate"][place]


def _opened(path: str | Sequence[str]) -> Iterator[tuple[str, da.Array]]:
    if isinstance(path, str) or len(path) == 1:
        yield from open_pictures(path if isinstance(path, str) else path[0], {})
        return
    try:
        yield DATA, open_dataset(path)
    except DatasetError:
        yield DATA, da.stack([open_dataset(one) for one in path])


def _layers(name: str, levels: list[da.Array]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a layer, or one for each channel."""
    shape, axes = levels[0].shape, shown_of(levels[0]).axes
    named = [k for k, axis in enumerate(axes[:-2]) if axis and axis.name in CHANNELS]
    along = axes[named[0]] if named else None
    if along is None or shape[named[0]] > (MOST_APART if along.labels else len(PALETTE)):
        yield _layer(name, levels)
        return
    count, before = shape[named[0]], (slice(None),) * named[0]
    names = along.labels or range(count)
    windows = _windows(facts_of(description_of(levels[0])), count)
    columns = zip(names, drawn(along.colours, count), windows, strict=True)
    for k, (channel, colour, window) in enumerate(columns):
        of_channel = [level[(*before, k)] for level in levels]
        data, options = _layer(f"{name} {channel}", of_channel, window)
        yield data, options | {"colormap": colour, "blending": "additive"}


def _windows(facts: Mapping[str, Any], count: int) -> list[tuple[float, float] | None]:
    """Return the values of black and white that OME-Zarr stores for channels; None if invalid."""
    told = facts.get("omero", {}).get("channels", ())
    found: list[tuple[float, float] | None] = [None] * count
    fits = isinstance(told, tuple) and len(told) == count
    for k, one in enumerate(told if fits else ()):
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            low, high = (float(one["window"][end]) for end in ("start", "end"))
            if -math.inf < low < high < math.inf:
                found[k] = low, high
    return found


def _layer(
    name: str, levels: list[da.Array], window: tuple[float, float] | None = None
) -> tuple[Any, dict[str, Any]]:
    shown = shown_of(levels[0])
    labels = labels_of(shown.axes, levels[0].shape, shown.of)
    axes, spectra = [*labels.axes], None
    colours = colour_axis(labels.dims, levels[0].shape)
    is_rgb = colours is not None or levels[0].dtype.names is not None
    levels = [numbers(level) for level in levels]
    if colours is not None:
        levels = [da.moveaxis(level, colours, -1) for level in levels]
        places = colour_places(axes.pop(colours), levels[0].shape[-1])
        if places not in ((), (0, 1, 2)):
            levels = [level[..., [*places]] for level in levels]
    elif shown.of and len(shown.of[0].sig_shape) == 1 and len(axes) > 2:
        # Images of a spectrum image are maps; a slider goes along the spectra.
        spectra = levels[-1]
        levels = [da.moveaxis(level, -1, 0) for level in levels]
        axes = [axes[-1], *axes[:-1]]
    if len(axes) == 1:  # napari cannot show lines
        levels = [level[np.newaxis] for level in levels]
        axes = [Axis(""), *axes]
    options: dict[str, Any] = {
        "name": name,
        "rgb": is_rgb,
        "multiscale": len(levels) > 1,
        "scale": [axis.scale or 1.0 for axis in axes],
        "translate": [axis.offset for axis in axes],
        "units": [_unit(axis.units) for axis in axes],
        "axis_labels": [axis.name for axis in axes],
        "metadata": labels.attrs,
    }
    if window is not None:
        options["contrast_limits"] = window
    elif not is_rgb:
        sample = _sample(levels[-1]) if spectra is None else _brightest(spectra)
        low, high, gamma = contrast(sample)
        options |= {"contrast_limits": (low, high), "gamma": gamma}
    return levels if len(levels) > 1 else levels[0], options


def _unit(text: str) -> str:
    """Return a unit that napari understands, or "pixel"."""
    return NO_UNIT if not text or is_unknown(text) else text


def _sample(arr: da.Array) -> np.ndarray[Any, Any]:
    """Read the middle of three images along napari's sliders."""
    middle = tuple(
        slice(max(0, (n - SAMPLED) // 2), (n + SAMPLED) // 2 if n > SAMPLED else n)
        for n in arr.shape[-2:]
    )
    places = {tuple(n * k // 4 for n in arr.shape[:-2]) for k in (1, 2, 3)}
    images = [read_once(arr[(*place, *middle)]) for place in sorted(places)]
    sample: np.ndarray[Any, Any] = da.stack(images).compute()
    return sample


def _brightest(arr: da.Array) -> np.ndarray[Any, Any]:
    """Read spectra of three rows of a scan; return the part of the brightest map in them."""
    count = max(1, SAMPLED * SAMPLED // arr.shape[-1])
    first = max(0, (arr.shape[-2] - count) // 2)
    rows = {tuple(n * k // 4 for n in arr.shape[:-2]) for k in (1, 2, 3)}
    taken = [read_once(arr[(*row, slice(first, first + count))]) for row in sorted(rows)]
    spectra: np.ndarray[Any, Any] = da.stack(taken).compute()
    return spectra[..., spectra.sum(axis=(0, 1), dtype=float).argmax()]


def write_image(path: str, data: Any, attributes: Mapping[str, Any]) -> list[str]:
    """Write an image layer to zarr, chunk by chunk, readable by OME-Zarr viewers.

    Parameters
    ----------
    path : str
        Target. An existing zarr array or group is replaced, nothing else.
    data : array, or list of them
        The pixels; lower levels of a pyramid are computed from the largest one.
    attributes : mapping
        Attributes of the layer: axis labels, scale, translation, units and name are kept. Axes
        that the layer leaves at napari's defaults are those of an opened array or xarray object.

    Returns
    -------
    list of str
        The path.

    Raises
    ------
    DatasetError
        As for :func:`dask_tiled.to_zarr`.
    """
    return _write(path, data, attributes, None)


def write_labels(path: str, data: Any, attributes: Mapping[str, Any]) -> list[str]:
    """Write a layer of labels to zarr, as :func:`write_image` does; levels have no new labels."""
    return _write(path, data, attributes, "nearest")


def _write(
    path: str, data: Any, attributes: Mapping[str, Any], pyramid_method: Method | None
) -> list[str]:
    """Write a layer to zarr; return the path."""
    levels = [*data] if attributes.get("multiscale") else [data]
    arr = opened(levels[0]) if is_array(levels[0]) else da.asarray(levels[0])
    rgb = bool(attributes.get("rgb"))
    axes = _axes(shown_of(arr).axes[: arr.ndim - rgb], attributes)
    if rgb:
        arr = da.moveaxis(arr, -1, -3)
        axes.insert(-2, Axis("rgb"))
    told = {"name": str(attributes["name"])} if attributes.get("name") else None
    to_zarr(
        arr,
        path,
        dimension_names=axes,
        attributes=told,
        pyramid=len(levels) - 1 or False,
        pyramid_method=pyramid_method,
        overwrite=True,
    )
    return [path]


def _axes(known: Sequence[Axis | None], attributes: Mapping[str, Any]) -> list[Axis]:
    """Return the axes of a layer, with napari's calibration, or those known of its array."""
    usual = (*nav_axes(len(known) - 2), *sig_axes(2))
    defaults = {"axis_labels": "", "units": NO_UNIT, "scale": 1.0, "translate": 0.0}
    columns = (attributes.get(key) for key in defaults)
    told = (
        column if column is not None and len(column) else (default,) * len(known)
        for column, default in zip(columns, defaults.values(), strict=True)
    )
    found = []
    for axis, other, label, *calibration in zip(known, usual, *told, strict=True):
        named = axis or other
        name = _name(label) or named.name
        unit, scale, offset = calibration[0], *map(float, calibration[1:])
        if name != named.name or (_symbol(unit), scale, offset) != ("", 1, 0):
            kept = named if name == named.name else Axis(name)
            named = replace(kept, name=name, units=_symbol(unit), scale=scale, offset=offset)
        found.append(named)
    return found


def _name(label: str) -> str:
    """Return the name of an axis; empty for napari's default, a number."""
    return "" if label.removeprefix("axis ").lstrip("-").isdecimal() else label


def _symbol(unit: Any) -> str:
    text = unit if isinstance(unit, str) else f"{unit:~C}"
    return "" if text in (NO_UNIT, f"{NO_UNIT}s", "") else text
