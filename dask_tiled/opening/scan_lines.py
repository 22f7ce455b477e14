"""Lines of a scan, found by their likeness, where files and frame headers leave its shape open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import format_shape
from dask_tiled.files.paths import is_url
from dask_tiled.model.description import Description, facts_of
from dask_tiled.model.doubts import Suggestion
from dask_tiled.model.indexing import Array
from dask_tiled.opened.building import build
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.tiling.scheme import negotiate

CENTRE = 16, 64
"""Rows and columns at the centre of a frame, whose sums are compared."""
MOST_BYTES, MOST_FRAMES = 1 << 29, 1 << 18
"""Bytes to decode, and frames to read, at most."""
FEWEST_FRAMES = 64
"""Fewer frames suggest nothing."""
MOST_UNEVEN = 8
"""Lines have up to this many times as many frames as there are lines, or the other way round."""
LEAST_LIKENESS, LEAST_SPREADS = 0.1, 8
"""Correlation of lines that is no chance: itself, and in standard deviations of noise."""
NEAR = 0.8
"""Other lengths are likely, too, if their lines are alike by this part of the best."""
FAR, TURNED = 0.85, 0.7
"""Frames far apart, or turned lines, explain likeness of which they have at least this part."""
OUTLIERS = 1, 99
"""Percentiles of the sums that are compared; others count as these."""
MOST_CANDIDATES = 4


class ScanCandidate(NamedTuple):
    """A shape that a scan may have, with a picture of the scan in this shape."""

    suggestion: Suggestion
    image: Array
    """Sums of the centres of the frames; NaN for frames that were not read."""

    @property
    def name(self) -> str:
        """The shape as text, such as "60 x 64"."""
        return format_shape(self.suggestion.shape)


def scan_candidates(arr: da.Array) -> list[ScanCandidate]:
    """Return the shapes that a scan may have whose frames are shown in a row; empty if unlikely.

    They are the suggestions of the description, else lines that are alike, and a square. The
    centres of the frames are read, of local files only.
    """
    desc = description_of(arr)
    if desc is None or not is_row(desc):
        return []
    sums = central_sums(desc)
    if sums is None:
        return []
    told = facts_of(desc).get("suggested_scans", ())
    shapes = [Suggestion(*one) for one in told] or likely_scans(sums, desc)[0]
    side = math.isqrt(len(sums))
    if side * side == desc.layout.n_frames and side > 1:
        shapes = [*shapes, Suggestion((side, side), 0, "the number of frames is a square")]
    found: dict[tuple[tuple[int, ...], int], ScanCandidate] = {}
    for one in shapes:
        image = np.full(one.shape, np.nan)
        part = sums[one.first : one.first + image.size]
        image.ravel()[: len(part)] = part
        found.setdefault((one.shape, one.first), ScanCandidate(one, image))
    return [*found.values()][:MOST_CANDIDATES]


def is_row(desc: Description) -> bool:
    """Return whether all frames are shown in a row, although they may be a scan."""
    is_open = any(doubt.code == "scan-shape" for doubt in desc.doubts)
    return is_open and desc.nav_shape == (desc.layout.n_frames,)


def in_shape(desc: Description, suggestion: Suggestion) -> da.Array:
    """Return the frames of a description in a suggested shape, which a user has chosen."""
    doubts = tuple(doubt for doubt in desc.doubts if doubt.code != "scan-shape")
    shown = replace(desc.with_frames(suggestion.shape, suggestion.first), doubts=doubts)
    return build(shown, negotiate(shown, ()), "auto")


def central_sums(desc: Description) -> Array | None:
    """Return the sums of the centres of the first frames; None if reading them takes too long."""
    if is_url(desc.files[0].path) or not desc.sig_shape:
        return None
    centre = [slice(None)] * len(desc.sig_shape)
    if len(centre) == 2:  # of a spectrum, all channels are summed
        sizes = zip(desc.sig_shape, CENTRE, strict=True)
        centre = [slice(max(0, n - most) // 2, (n + most) // 2) for n, most in sizes]
    is_whole = desc.layout.has_blocks or len(centre) != 2
    pixels = math.prod(desc.sig_shape) if is_whole else CENTRE[0] * desc.sig_shape[-1]
    count = min(desc.nav_shape[0], MOST_FRAMES, MOST_BYTES // (pixels * desc.dtype.itemsize))
    if count < min(desc.nav_shape[0], FEWEST_FRAMES):
        return None
    part = build(desc, negotiate(desc, ()), "auto")[(slice(count), *centre)]
    part = abs(part) if part.dtype.kind == "c" else part
    sums = part.sum(axis=tuple(range(1, part.ndim)), dtype="f8")
    return np.nan_to_num(np.asarray(sums.compute()), posinf=0, neginf=0)


def likely_scans(sums: Array, desc: Description) -> tuple[list[Suggestion], bool]:
    """Return the shapes of scans whose lines are alike, and whether one of them is certain enough.

    That is the only one, of all frames, if nothing else explains that its lines are alike.
    """
    frames, shapes, is_certain = desc.layout.n_frames, [], True
    for n in line_lengths(sums, frames):
        other = objection(sums, frames, n)
        why = f"neighbouring lines of {n} frames are alike{f', but {other}' if other else ''}"
        shapes.append(Suggestion((frames // n, n), 0, why))
        is_certain = not (other or shapes[1:] or frames % n)
    return shapes, is_certain and bool(shapes)


def line_lengths(sums: Array, frames: int) -> list[int]:
    """Return the lengths of lines, of which neighbours are alike; several if it is ambiguous.

    The likeness is the autocorrelation of the sums, without what varies slowly along the lines.
    Multiples of a length, up to the width of features, are left out: every second line is alike,
    too.

    Parameters
    ----------
    sums : array
        Sums of the first frames.
    frames : int
        Number of all frames.
    """
    count = len(sums)
    low, high = _range(count, frames)
    if count < FEWEST_FRAMES or high <= low:
        return []
    alike = _likeness(_detail(sums, low))[: high + 2]
    if not alike[0]:  # all frames are equal
        return []
    width = _feature_width(alike, low)
    peaks = [
        k
        for k in range(low, high + 1)
        if alike[k] == alike[max(low - 1, k - width) : k + width + 1].max()
    ]
    best = max((alike[k] for k in peaks), default=0.0)
    if best < max(LEAST_LIKENESS, LEAST_SPREADS / math.sqrt(count)):
        return []
    near = [k for k in peaks if alike[k] >= NEAR * best]
    return [k for k in near if not any(abs(k - round(k / n) * n) <= width for n in near if n < k)]


def objection(sums: Array, frames: int, length: int) -> str:
    """Return what else explains that lines of a length are alike; empty if nothing does.

    Lines of a scan become less alike with their distance. Frames that are as alike at large
    distances are a periodic series, or a scan of a lattice, which cannot be told apart.
    """
    low, high = _range(len(sums), frames)
    detail = _detail(sums, low)
    alike = _likeness(detail)
    width, half = _feature_width(alike, low), len(sums) // 2
    lengths = np.r_[width + 1 : low, high + 1 : half]
    other = max((k for k in lengths.tolist() if alike[k] >= alike[k - 1 : k + 2].max()),
                key=lambda k: alike[k], default=length)  # fmt: skip
    if alike[other] > alike[length]:
        return f"frames at a distance of {other} are more alike"
    far = np.arange(half, half + half // 2)
    energy = np.sqrt([np.cumsum(part**2)[-1 - far] for part in (detail, detail[::-1])])
    mean = np.prod(energy, axis=0) / (len(detail) - far)  # of what overlaps at a distance
    if np.any(alike[far] * np.mean(detail**2) > FAR * alike[length] * mean):
        return "frames at large distances are as alike, as in a periodic series"
    lines = detail[: len(sums) // length * length].reshape(-1, length)
    turned = np.fft.irfft(np.mean(np.fft.rfft(lines, axis=1) ** 2, axis=0), length)
    if turned.max() > TURNED * alike[length] * np.mean(np.sum(lines**2, axis=1)):
        return f"lines are symmetric, as if lines of {length / 2:g} frames ran to and fro"
    return ""


def _range(count: int, frames: int) -> tuple[int, int]:
    """Return the least and the largest length of lines."""
    low = math.ceil(math.sqrt(frames / MOST_UNEVEN))
    return low, min(math.floor(math.sqrt(frames * MOST_UNEVEN)), count // 3)


def _detail(sums: Array, low: int) -> Array:
    """Return sums without outliers, and without what varies slowly along lines."""
    window, count = np.ones(low), len(sums)
    limited = np.clip(sums, *np.percentile(sums, OUTLIERS))
    slow = np.convolve(limited, window, "same") / np.convolve(np.ones(count), window, "same")
    rest = limited - slow
    is_equal = np.mean(rest**2) <= 1e-12 * float(np.mean(sums**2))
    return np.zeros(count) if is_equal else rest


def _likeness(detail: Array) -> Array:
    """Return the correlation of frames at each distance; zeros if all are equal."""
    count = len(detail)
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(detail, size)) ** 2
    alike = np.fft.irfft(spectrum, size)[:count] / np.arange(count, 0, -1)
    return alike / alike[0] if detail.any() else np.zeros(count)


def _feature_width(alike: Array, low: int) -> int:
    """Return the distance at which frames along a line are half as alike as neighbours."""
    return next((k for k in range(1, low) if alike[k] < alike[1] / 2), low)
