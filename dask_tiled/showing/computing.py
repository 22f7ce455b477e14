"""Panels computed from an array, chosen by the kind of its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import dask.array as da
import numpy as np
from dask.base import compute

from dask_tiled.errors import DatasetError
from dask_tiled.measuring.disk_fits import Circle, bright_circle
from dask_tiled.measuring.sampling import mean_of, steps_between
from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import drawn as colours_of_channels
from dask_tiled.model.indexing import Array
from dask_tiled.opening.scan_lines import scan_candidates
from dask_tiled.opening.stored_results import stored_results
from dask_tiled.showing.marks import circle
from dask_tiled.showing.overviews import smallest_level
from dask_tiled.showing.panels import Composite, ImagePanel, Line, Panel, PhasePanel, VectorPanel
from dask_tiled.showing.roles import SPACE
from dask_tiled.showing.subject import LONGEST_OF_LARGE, Subject, numbers, ordinal

Drawn = tuple[list[Panel], list[str]]
"""Panels, and notes on their content."""

MOST_PANELS = 6
"""Maximum number of channels drawn."""
MOST_LINES, LEAST_POINTS = 8, 32
"""Up to this many spectra of at least this many channels are drawn as lines; otherwise as an
image."""


class ShownPanels(NamedTuple):
    """What is drawn of an array."""

    subject: Subject
    panels: list[Panel]
    notes: list[str]


def panels_of(arr: da.Array, limit: int | None) -> ShownPanels:
    """Compute the panels of an array from at most ``limit`` frames.

    Without a limit, those of an export with results are the stored results. Errors are those of
    :func:`show`.
    """
    subject, stored = _subject(arr), stored_results(arr) if limit is None else {}
    return ShownPanels(subject, *(_stored(stored) if stored else _panels(subject, limit)))


def leading(shown: ShownPanels) -> list[Panel]:
    """Return the panel that stands for an array: a composite, or the first; all of masks."""
    composites: list[Panel] = [panel for panel in shown.panels if isinstance(panel, Composite)]
    if composites:
        return composites
    has_masks = shown.subject.colours is None and shown.subject.roles.apart is not None
    return shown.panels[: None if has_masks and isinstance(shown.panels[0], ImagePanel) else 1]


def with_candidates(shown: ShownPanels, arr: da.Array) -> ShownPanels:
    """Return panels with a picture of a scan in each shape that is likely, if its shape is open."""
    axes = Axis("scan_y"), Axis("scan_x")
    candidates = scan_candidates(arr)
    drawn = [ImagePanel(f"{one.name}?", one.image, axes) for one in candidates]
    told = [f"{one.name}: {one.suggestion.why}" for one in candidates]
    note = "the shape of the scan is open, pass nav_shape=; pictures of likely ones are sums of"
    notes = [f"{note} the centres of frames", *told] if drawn else []
    return shown._replace(panels=[*shown.panels, *drawn], notes=[*shown.notes, *notes])


def _subject(arr: da.Array) -> Subject:
    """Return the subject of an array; of a large image, of a small level of its pyramid."""
    level = smallest_level(arr, LONGEST_OF_LARGE[1])
    subject = Subject.of(level).in_colours()
    if level is arr:
        return subject
    reduced = (whole / n for whole, n in zip(arr.shape, level.shape, strict=True))
    note = f"a level of the pyramid in the file, {round(max(reduced))} times smaller"
    return subject._replace(subtitle=Subject.of(arr).subtitle, left_out=(note,))


def _panels(subject: Subject, limit: int | None) -> Drawn:
    """Compute the panels, with notes about the sample."""
    roles, colours = subject.roles, subject.colours
    apart = roles.apart
    sig_ndim = len(subject.axes) - subject.nav_ndim
    if colours is None and apart is not None:
        kinds = {"component": _vectors} if len(subject.axes) - 1 == apart else {}
        return kinds.get(subject.axes[apart].name, _channels)(subject, apart, limit)
    if roles.is_volume and colours is None:
        return _volume(subject)
    is_image = sig_ndim - (colours is not None) < 3
    if subject.nav_ndim and sig_ndim and len(subject.axes) > 2 and is_image:
        return _scan(subject, limit)
    return _plain(subject)


def _stored(results: Mapping[str, da.Array]) -> Drawn:
    """Return a panel for each stored result of an export."""
    drawn: list[Panel] = []
    for name, arr in results.items():
        with suppress(DatasetError):  # single numbers, for example, cannot be drawn
            (panel, *_), _ = _panels(Subject.of(arr), None)
            drawn.append(panel._replace(title=name.replace("_", " ").capitalize()))
    return drawn[:MOST_PANELS], ["stored with the array"]


def _plain(subject: Subject) -> Drawn:
    """Return a panel of an image or of lines; of arrays with more axes, of the middle."""
    colours = subject.colours
    image_ndim = 3 if colours is not None else min(len(subject.axes), 2)
    middle, notes = _middle(subject, image_ndim)
    shown = middle.thinned()
    notes += shown.left_out
    if shown.arr.dtype.kind == "c":
        (pixels,) = compute(shown.arr)
        return _complex(shown, pixels), notes
    (pixels,) = compute(numbers(shown.arr))
    if colours is None:
        return [_lines(shown, pixels) or _panel(shown, "", pixels)], notes
    at = middle.colours or 0
    axes = _without(shown.axes, at)
    return [ImagePanel("", np.moveaxis(pixels, at, -1), (axes[0], axes[1]))], notes


def _complex(subject: Subject, values: Array) -> list[Panel]:
    """Return panels of amplitudes and of phases, and of both for images."""
    amplitude = _panel(subject, "Amplitude", np.abs(values))
    phase = _panel(subject._replace(units="rad"), "Phase", np.angle(values))
    if not (isinstance(amplitude, ImagePanel) and isinstance(phase, ImagePanel)):
        return [amplitude, phase]
    phase = phase._replace(colours="twilight")
    y, x = subject.axes
    return [PhasePanel("Phase and amplitude", values, (y, x), subject.units), amplitude, phase]


def _volume(subject: Subject) -> Drawn:
    """Return three planes through the middle."""
    middle, notes = _middle(subject, 3)
    planes = []
    for k in range(3):
        place = middle.shape[k] // 2
        planes.append((f"{middle.axes[k].name} = {place}", middle.at(k, place).thinned()))
    found = compute(*(numbers(thin.arr) for _, thin in planes))
    drawn = [_panel(thin, name, x) for (name, thin), x in zip(planes, found, strict=True)]
    left_out = dict.fromkeys(note for *_, thin in planes for note in thin.left_out)
    return drawn, [*notes, "three planes through the middle", *left_out]


def _channels(subject: Subject, axis: int, limit: int | None) -> Drawn:
    """Return panels of channels, masks or components, and a composite of channels."""
    along, count = subject.axes[axis], subject.shape[axis]
    places = range(min(count, MOST_PANELS))
    names = along.labels if len(along.labels) == count else [f"{along.name} = {k}" for k in places]
    images, notes = _images([subject.at(axis, k) for k in places], limit)
    drawn = [_panel(shown, names[k], pixels) for k, (shown, pixels) in enumerate(images)]
    if count > len(places):
        notes = [f"{len(places)} of {count} positions along {along.name}", *notes]
    channels = [panel for panel in drawn if isinstance(panel, ImagePanel)]
    is_result = axis == len(subject.axes) - 1
    colours = colours_of_channels(along.colours, count)
    return drawn if is_result else [*drawn, Composite("together", channels, colours)], notes


def _vectors(subject: Subject, axis: int, limit: int | None) -> Drawn:
    """Return a panel of vectors on a plane, and panels of their components."""
    drawn, notes = _channels(subject, axis, limit)
    components = dict(zip(subject.axes[axis].labels, drawn, strict=False))
    y, x = components.get("y"), components.get("x")
    if len(drawn) != 2 or y is None or x is None:
        return drawn, notes
    if isinstance(y, Line) and isinstance(x, Line):
        values, names = [*y.values, *x.values], ("y", "x")
        return [y._replace(title="", values=np.stack(values), names=names)], notes
    if not (isinstance(y, ImagePanel) and isinstance(x, ImagePanel)):
        return drawn, notes
    vectors, mean = _around_mean(np.stack([y.values, x.values]).astype(float))
    if mean.any():
        units = subject.units and f" {subject.units}"
        notes.append(f"vectors from their mean, y = {mean[0]:.4g}{units}, x = {mean[1]:.4g}{units}")
    return [VectorPanel("Direction and length", vectors, y.axes, subject.units), y, x], notes


def _around_mean(vectors: Array) -> tuple[Array, Array]:
    """Subtract the mean of vectors if all point in its direction; return both.

    Positions such as centres of mass do; only their differences are of interest.
    """
    there = np.isfinite(vectors).all(axis=0)
    mean = vectors[:, there].mean(axis=1) if there.any() else np.zeros(2)
    if not there.any() or not (np.tensordot(mean, vectors[:, there], 1) > 0).all():
        return vectors, np.zeros(2)
    return vectors - mean[:, np.newaxis, np.newaxis], mean


def _scan(subject: Subject, limit: int | None) -> Drawn:
    """Return the mean frame, and images of virtual detectors."""
    nav, colours = subject.nav_ndim, subject.colours
    sample, there, notes = _sample(subject, limit)
    pixels = numbers(sample.arr if there.all() else sample.arr[there])
    outer = pixels.ndim - (sample.arr.ndim - nav)
    mean = mean_of(pixels, outer)
    is_image = mean.ndim - (colours is not None) == 2
    disk = bright_circle(mean) if mean.ndim == 2 and nav > 1 else None
    masks, titles = np.ones((1, *mean.shape)), ["Sum of each frame"]
    if not is_image:
        titles = ["Sum of each spectrum"]
    if disk is not None:
        inside = disk.mask(mean.shape)
        masks, titles = np.stack([inside, ~inside]), ["Bright field", "Dark field"]
    seen = np.full((*there.shape, len(masks)), np.nan)
    seen[there] = _sums(pixels, masks.astype(float), outer).reshape(-1, len(masks))
    if nav > 2:
        notes.append(f"mean along {', '.join(axis.name for axis in sample.axes[: nav - 2])}")
        seen = _mean_over(seen, nav - 2)
    frame = sample._replace(axes=sample.axes[nav:])
    if colours is not None:
        mean = np.moveaxis(mean, colours - nav, -1)
        frame = frame._replace(axes=_without(frame.axes, colours - nav))
    scan = sample._replace(axes=sample.axes[max(0, nav - 2) : nav])
    drawn = [_panel(frame, "Mean frame" if is_image else "Mean spectrum", mean, disk, "inferno")]
    drawn += [_panel(scan, title, seen[..., k]) for k, title in enumerate(titles)]
    return drawn, notes


def _middle(subject: Subject, ndim: int) -> tuple[Subject, list[str]]:
    """Return the middle along the first axes, and notes that say so."""
    notes = []
    for _ in range(len(subject.axes) - ndim):
        axis, size = subject.axes[0], subject.shape[0]
        notes.append(f"{axis.name}: {size // 2} of {size}")
        subject = subject.at(0, size // 2)
    return subject, notes


def _images(
    subjects: Sequence[Subject], limit: int | None
) -> tuple[list[tuple[Subject, Array]], list[str]]:
    """Return an image of each subject: the mean of its frames, or the middle."""
    nav = subjects[0].nav_ndim
    if not nav or len(subjects[0].axes) - nav != 2:
        middles = [_middle(subject, min(len(subject.axes), 2)) for subject in subjects]
        shown = [middle.thinned() for middle, _ in middles]
        found = compute(*(numbers(one.arr) for one in shown))  # in one pass
        notes = [*middles[0][1], *shown[0].left_out]
        return [*zip(shown, found, strict=True)], notes
    images = []
    for subject in subjects:
        sample, there, notes = _sample(subject, limit)
        pixels = numbers(sample.arr if there.all() else sample.arr[there])
        mean = mean_of(pixels, pixels.ndim - (sample.arr.ndim - nav))
        images.append((sample._replace(axes=sample.axes[nav:]), mean))
    along = ", ".join(axis.name for axis in subjects[0].axes[:nav])
    return images, [f"mean of each along {along}", *notes]


def _sample(subject: Subject, limit: int | None) -> tuple[Subject, Array, list[str]]:
    """Return sampled frames, a mask of the existing ones, and notes about them."""
    nav, whole = subject.nav_ndim, math.prod(subject.shape[: subject.nav_ndim])
    steps, rest = steps_between(subject.arr, nav, limit), [slice(None)] * (len(subject.axes) - nav)
    some = subject.cut([*(slice(None, None, step) for step in steps), *rest])
    there = np.ones(some.shape[:nav], bool)
    if some.desc is not None:
        there.ravel()[some.desc.missing] = False
    if not there.any():
        raise DatasetError("there is nothing to draw", found="only missing frames")
    count, missing = there.size, there.size - np.count_nonzero(there)
    noun = "frames" if len(subject.axes) - nav > 1 else "spectra"
    text = f"all {whole:,} {noun}"
    if count < whole:
        along = zip(subject.axes, steps, strict=False)
        every = [f"every {ordinal(step)} along {axis.name}" for axis, step in along if step > 1]
        text = f"a sample: {count:,} of {whole:,} {noun}, {', '.join(every)}"
    text += f", of which {missing:,} are missing" if missing else ""
    sample = some.thinned(nav)
    return sample, there, [text, *sample.left_out]


def _without(axes: tuple[Axis, ...], place: int) -> tuple[Axis, ...]:
    return axes[:place] + axes[place + 1 :]


def _lines(subject: Subject, values: Array) -> Line | None:
    """Return a few spectra as lines; None for images."""
    few = values.ndim == 2 and len(values) <= MOST_LINES and values.shape[1] >= LEAST_POINTS
    if not few or subject.nav_ndim != 1 or subject.axes[1].name in SPACE:
        return None
    names = subject.axes[0].labels or [f"{subject.axes[0].name} = {k}" for k in range(len(values))]
    return Line("", values, subject.axes[1], subject.units, names)


def _panel(
    subject: Subject, title: str, values: Array, disk: Circle | None = None, colours: str = "gray"
) -> Panel:
    """Return a panel of values on a subject's axes, in anatomical orientation if known."""
    axes, units = subject.axes, subject.units
    if len(axes) == 1:
        return Line(title, values[np.newaxis], axes[0], units)
    marks = () if disk is None else (circle(disk),)
    return _upright(ImagePanel(title, values, (axes[0], axes[1]), units, marks, colours), subject)


def _upright(image: ImagePanel, subject: Subject) -> ImagePanel:
    """Orient an image: head (or else front) up, right side on the right."""
    ends = [subject.directions.get(axis.name, "") for axis in image.axes]
    ends = [e[::-1] if axis.scale < 0 else e for e, axis in zip(ends, image.axes, strict=True)]
    if not all(ends):
        return image
    values, axes = image.values, list(image.axes)
    if "LAS".index(_towards(ends[0])) < "LAS".index(_towards(ends[1])):
        values, axes, ends = np.swapaxes(values, 0, 1), axes[::-1], ends[::-1]
    for k, first in ((0, "SA"), (1, "LP")):  # directions at the top and on the left
        if ends[k][0] not in first:
            values, ends[k] = np.flip(values, k), ends[k][::-1]
            axes[k] = axes[k].cut(values.shape[k] - 1, -1)
    return image._replace(values=values, axes=(axes[0], axes[1]), ends=(ends[0], ends[1]))


def _towards(ends: str) -> str:
    """Return the anatomical axis of two directions."""
    return next(letter for letter in "LAS" if letter in ends)


def _sums(pixels: da.Array, masks: Array, ndim: int) -> Array:
    """Sum every frame under masks, ignoring pixels that are not finite; NaN if none is."""
    sig, there = tuple(range(ndim, pixels.ndim)), np.True_
    if pixels.dtype.kind == "f":
        finite = da.isfinite(pixels)
        pixels, there = da.where(finite, pixels, 0), finite.any(sig)
    sums = da.tensordot(pixels, masks, (sig, tuple(range(1, masks.ndim))))
    found, there = compute(sums, there)
    return np.where(there[..., np.newaxis], found, np.nan)


def _mean_over(values: Array, ndim: int) -> Array:
    """Return the mean along the first axes, ignoring NaN."""
    axes, there = tuple(range(ndim)), ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.divide(np.nansum(values, axis=axes), there.sum(axis=axes))
