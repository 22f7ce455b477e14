"""Fits of a bright disk to one frame: a circle through its edge, then its profile across it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Array

Bools = npt.NDArray[np.bool_]

COARSE = 256
"""Largest side of the frame in which the disk is searched."""
BOXES = 0, 1, 2, 4
"""Half widths of the boxes over which noisy frames are averaged, in turn."""
CLEAR = 6.0
"""Contrast of a disk relative to the noise of a pixel, above which frames are not averaged."""
TRIPLES, MOST_POINTS = 800, 1200
"""Number of circles that are tried, and of edge points that judge them."""
POINTS_PER_RADIUS = 8.0
"""Edge points of a circle of radius 1: the pixel rows and columns that it crosses."""
OUTLYING = 6.0
"""Error of a pixel, relative to the usual one, from which it is ignored."""
CLEAN = 0.3
"""Least noise of frames without noise, relative to the level inside."""
STILL = 1e-3
"""Least step of a fit, in pixels."""
BRIGHT = 1.3
"""Least ratio of the levels inside and outside of a disk."""
LEAST_SEEN = 0.3
"""Least share of the circumference of a disk that is seen."""
RIVAL = 0.6
"""Least share of the circumference of a second disk."""
LEAST_WIDTH, LOGISTIC = 0.17, 1.702
"""Least width of an edge, in pixels, and the standard deviation of the normal distribution whose
edge is most like a logistic one of width 1."""
ROUND_RADIUS = 4.0
"""Radius from which the ellipticity of a disk is fitted, in pixels."""


class Circle(NamedTuple):
    """A circle in a frame, in pixels."""

    y: float
    x: float
    radius: float

    def mask(self, shape: tuple[int, ...]) -> Bools:
        """Return a mask of the pixels inside."""
        y, x = np.ogrid[: shape[0], : shape[1]]
        inside: Bools = np.hypot(y - self.y, x - self.x) <= self.radius
        return inside


class DiskFit(NamedTuple):
    """A disk fitted to a frame, in pixels."""

    circle: Circle
    seen: float
    """Share of the circumference where the step from the inside to the outside is seen."""
    cut: float
    """Share of the circumference that lies outside of the frame."""
    blur: float
    """Standard deviation of the edge."""
    ellipticity: float
    """Ratio of the axes of the ellipse, less 1; NaN if the disk is too small, or hidden in part."""
    direction: float
    """Direction of the major axis in degrees, from x to y, 0 to 180."""
    rival: Circle | None
    """A second disk that is as bright."""


def bright_circle(frame: Array) -> Circle | None:
    """Return the bright disk of a mean frame; None if there is none."""
    fit = fit_disk(frame)
    return None if fit is None else fit.circle


def fit_disk(frame: Array, weights: Array | None = None) -> DiskFit | None:
    """Fit the brightest disk of a frame; None if no disk is found.

    Pixels that are not finite, or have the weight 0, are ignored.
    """
    values = np.asarray(frame, np.float64)
    good = np.isfinite(values)
    if weights is not None:
        good &= weights != 0
    if min(values.shape) < 3 or np.count_nonzero(good) < 9:
        return None
    values = np.where(good, values, 0.0)
    every = -(-max(values.shape) // COARSE)
    points = _edge_points(*_binned(values, good, every))
    first = _best_circle(points)
    if first is None:
        return None
    rival = _rival(points, first)
    circle = _on_pixels(first, every)
    rival = None if rival is None else _on_pixels(rival, every)
    profile = _Profile.of(circle)
    is_there = np.ones(values.shape, bool) & good
    seen, cut = 1.0, 0.0
    for attempt in range(3):
        refined = profile.refined(values, is_there)
        if refined is None:
            return None
        profile = refined
        sectors = _Sectors.of(profile, values, good)
        seen, cut = sectors.seen.mean(), (~sectors.inside).mean()
        if seen < max(LEAST_SEEN, 0.5 * (1 - cut)):
            return None
        is_there = good & sectors.around(values.shape)
        if attempt and seen == 1:
            break
    circle = profile.circle
    ellipse = math.nan, math.nan
    if seen > 0.7 and circle.radius >= ROUND_RADIUS:
        again = profile.refined(values, is_there, elliptic=True)
        ellipse = ellipse if again is None else again.ellipse
    return DiskFit(circle, float(seen), float(cut), profile.blur, *ellipse, rival)


def _on_pixels(circle: Circle, every: int) -> Circle:
    """Convert from the coarse frame, whose pixels are the means of several."""
    shift = (every - 1) / 2
    return Circle(circle.y * every + shift, circle.x * every + shift, circle.radius * every)


def _binned(values: Array, good: Bools, every: int) -> tuple[Array, Bools]:
    """Return means of blocks of good pixels, and which blocks have any."""
    if every == 1:
        return values, good
    height, width = (n // every for n in values.shape)
    shape = height, every, width, every
    parts = [x[: height * every, : width * every].reshape(shape) for x in (values, good)]
    total, count = (part.sum((1, 3)) for part in parts)
    return total / np.maximum(count, 1), count > 0


class _Points(NamedTuple):
    """Points of edges: positions, and directions towards the bright side."""

    places: Array
    """(n, 2): y, x."""
    inwards: Array


def _edge_points(values: Array, good: Bools) -> _Points:
    """Return the points where a smoothed frame crosses half of the height of its bright areas."""
    median = np.median(_around(np.where(good, values, np.median(values[good]))), axis=(2, 3))
    smooth = median
    level, contrast = _half_height(smooth[good])
    for half in BOXES:
        if 3 * (2 * half + 1) > min(values.shape):
            break
        smooth = _boxed(median, half)
        level, contrast = _half_height(smooth[good])
        noise = np.median(abs(np.diff(smooth[::, :: 2 * half + 1], axis=1)))
        if contrast > CLEAR * noise:
            break
    down, across = np.gradient(smooth)
    places, inwards = [], []
    for axis in (0, 1):
        low, high = (
            tuple(
                slice(k, n - 1 + k) if i == axis else slice(None)
                for i, n in enumerate(smooth.shape)
            )
            for k in (0, 1)
        )
        before, after = smooth[low] - level, smooth[high] - level
        crosses = (before < 0) != (after < 0)
        crosses &= good[low] & good[high]
        at = np.argwhere(crosses)
        step = (before / np.where(crosses, before - after, 1))[crosses]
        points = at.astype(float)
        points[:, axis] += step
        places.append(points)
        inwards.append(np.stack([down[low][crosses], across[low][crosses]], 1))
    found, directions = np.concatenate(places), np.concatenate(inwards)
    if len(found) > MOST_POINTS:
        kept = np.linspace(0, len(found) - 1, MOST_POINTS).astype(int)
        kept = np.random.default_rng(0).permutation(len(found))[kept]
        found, directions = found[kept], directions[kept]
    return _Points(found, directions)


def _half_height(values: Array) -> tuple[float, float]:
    """Return half of the height of the bright areas above the dark ones, and that height."""
    low, top = float(np.percentile(values, 10)), float(values.max())
    bright = values[values >= low + (top - low) / 2]  # none of large numbers, by rounding
    high = float(np.median(bright)) if bright.size else top
    return (low + high) / 2, high - low


def _boxed(values: Array, half: int) -> Array:
    """Return means over boxes of ``2 * half + 1`` pixels."""
    if not half:
        return values
    for axis in (0, 1):
        ends = [(half + 1, half) if k == axis else (0, 0) for k in (0, 1)]
        total = np.cumsum(np.pad(values, ends, mode="edge"), axis=axis)
        values = (
            np.delete(total, range(2 * half + 1), axis)
            - np.delete(total, range(total.shape[axis] - 2 * half - 1, total.shape[axis]), axis)
        ) / (2 * half + 1)
    return values


def _around(pixels: Array) -> Array:
    """Return each pixel with its neighbours, on two extra axes."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(pixels, 1, "edge"), (3, 3))


def _best_circle(points: _Points, least: float = LEAST_SEEN) -> Circle | None:
    """Return the circle through the most edge points, relative to its circumference."""
    places = points.places
    if len(places) < 5:
        return None
    rng = np.random.default_rng(1)
    triples = places[rng.integers(0, len(places), (TRIPLES, 3))]
    circles = _through(triples)
    if not len(circles):
        return None
    counts = np.count_nonzero(_on_circles(points, circles), axis=1)
    coverage = np.minimum(counts / (POINTS_PER_RADIUS * circles[:, 2]), 1)
    scores = counts * coverage
    best = Circle(*map(float, circles[scores.argmax()]))
    for _ in range(3):
        on = _on_circle(points, best)
        fitted = _fitted(places[on])
        if fitted is None:
            break
        best = fitted
    share = np.count_nonzero(_on_circle(points, best)) / (POINTS_PER_RADIUS * best.radius)
    return best if share >= least * 0.7 else None


def _through(triples: Array) -> Array:
    """Return the circles (y, x, radius) through three points each, without degenerate ones."""
    a, b, c = triples[:, 0], triples[:, 1] - triples[:, 0], triples[:, 2] - triples[:, 0]
    cross = 2 * (b[:, 0] * c[:, 1] - b[:, 1] * c[:, 0])
    there = abs(cross) > 1e-6
    a, b, c, cross = a[there], b[there], c[there], cross[there]
    b2, c2 = (b**2).sum(1), (c**2).sum(1)
    y = (c[:, 1] * b2 - b[:, 1] * c2) / cross
    x = (b[:, 0] * c2 - c[:, 0] * b2) / cross
    found = np.stack([a[:, 0] + y, a[:, 1] + x, np.hypot(y, x)], 1)
    size = triples.max() + 1
    return found[(found[:, 2] >= 0.7) & (found[:, 2] < 1.5 * size)]


def _on_circles(points: _Points, circles: Array) -> Bools:
    """Return which points lie on which circles (n, 3) whose insides are bright."""
    places, inwards = points
    centres, radii = circles[:, :2], circles[:, 2:]
    squares = (places**2).sum(1) + (centres**2).sum(1)[:, None] - 2 * centres @ places.T
    bright = (places * inwards).sum(1) < centres @ inwards.T
    far = np.maximum(0.75, 0.05 * radii)
    near = (squares < (radii + far) ** 2) & (squares > np.maximum(radii - far, 0) ** 2)
    found: Bools = near & bright
    return found


def _on_circle(points: _Points, circle: Circle) -> Bools:
    return _on_circles(points, np.array([circle]))[0]


def _fitted(places: Array) -> Circle | None:
    """Return the circle through points in the sense of least squares."""
    if len(places) < 4:
        return None
    middle = places.mean(0)
    away = places - middle
    columns = np.column_stack([2 * away, np.ones(len(away))])
    (y, x, rest), *_ = np.linalg.lstsq(columns, (away**2).sum(1), rcond=None)
    square = rest + y**2 + x**2
    if square <= 0:
        return None
    return Circle(float(middle[0] + y), float(middle[1] + x), math.sqrt(square))


def _rival(points: _Points, circle: Circle) -> Circle | None:
    """Return another disk, as bright as the first one, that is apart from it."""
    away = np.hypot(*(points.places - (circle.y, circle.x)).T)
    left = away > 1.2 * circle.radius + 1
    other = _best_circle(_Points(points.places[left], points.inwards[left]), RIVAL / 0.7)
    if other is None or not 0.5 < other.radius / circle.radius < 2:
        return None
    apart = math.hypot(other.y - circle.y, other.x - circle.x)
    return other if apart > 0.8 * (circle.radius + other.radius) else None


class _Profile(NamedTuple):
    """The intensity across the edge of a disk."""

    shape: Array
    """y, x, radius, width of the edge, and relative amplitudes of the ellipse along 0 and 45."""
    levels: Array
    """Level inside, its slopes along y and x, level outside, and its slope along the radius."""

    @classmethod
    def of(cls, circle: Circle) -> _Profile:
        return cls(np.array([*circle, 0.5, 0.0, 0.0]), np.zeros(5))

    @property
    def blur(self) -> float:
        """Standard deviation of the edge."""
        return LOGISTIC * float(self.shape[3])

    @property
    def circle(self) -> Circle:
        """The disk before it was blurred, which moves the half height of a round edge inwards."""
        y, x, radius, *_ = self.shape.tolist()
        return Circle(y, x, radius + self.blur**2 / (2 * radius))

    @property
    def ellipse(self) -> tuple[float, float]:
        """The ratio of the axes less 1, and the direction of the major one in degrees."""
        straight, diagonal = self.shape[4:].tolist()
        size = math.hypot(straight, diagonal)
        return (1 + size) / (1 - size) - 1, math.degrees(math.atan2(diagonal, straight) / 2) % 180

    @property
    def band(self) -> float:
        """Largest distance of fitted pixels from the edge."""
        radius, width = self.shape[2:4].tolist()
        return float(min(max(0.4 * radius, 2.5), 10.0) + 4 * width)

    def columns(self, places: Array) -> tuple[Array, Array]:
        """Return the columns of the levels at places (y, x), and the slopes of the shape.

        The slopes are those of the share of the inside, by each number of the shape.
        """
        y, x, radius, width, straight, diagonal = self.shape
        down, across = (places - (y, x)).T
        away = np.maximum(np.hypot(down, across), 1e-9)
        sin, cos = down / away, across / away
        along = np.stack([cos**2 - sin**2, 2 * sin * cos])  # of twice the angle
        edge = radius * (1 + straight * along[0] + diagonal * along[1])
        inside = 0.5 * (1 + np.tanh((edge - away) / (2 * width)))
        outside = 1 - inside
        beyond = np.maximum(away - radius, 0) / self.band
        tilted = [inside, inside * down / radius, inside * across / radius]
        steep = inside * outside / width
        shape = [
            sin,
            cos,
            edge / radius,
            (away - edge) / width,
            radius * along[0],
            radius * along[1],
        ]
        slopes = steep[:, None] * np.stack(shape, 1)
        return np.stack([*tilted, outside, outside * beyond], 1), slopes

    def refined(self, values: Array, good: Bools, *, elliptic: bool = False) -> _Profile | None:
        """Fit the profile to the pixels around the edge, leaving out those far from it."""
        now, damping = self, 1e-3
        free = 6 if elliptic else 4
        places = now.near(good)
        if len(places) < 12:
            return None
        pixels = values[places[:, 0], places[:, 1]]
        columns, slopes = now.columns(places)
        now = now._replace(levels=_first_levels(columns, pixels))
        now = now._replace(levels=_solved(columns, pixels, now.weights(columns, pixels)))
        for _ in range(30):
            weights = now.weights(columns, pixels, robust=not elliptic)
            rest = (pixels - columns @ now.levels) * weights
            inside, outside = columns[:, 0], columns[:, 3]
            contrast = columns[:, :3] @ now.levels[:3] / np.maximum(inside, 1e-12) - now.levels[3]
            moved = np.concatenate([slopes[:, :free] * contrast[:, None], columns], 1)
            moved *= weights[:, None]
            normal = moved.T @ moved
            damped = normal + damping * np.diag(np.diag(normal) + 1e-12)
            step = np.linalg.lstsq(damped, moved.T @ rest, rcond=None)[0]
            shape = now.shape.copy()
            shape[:free] += np.clip(step[:free], -1.5, 1.5)
            shape[3] = np.clip(shape[3], LEAST_WIDTH, max(shape[2] / 2, 2 * LEAST_WIDTH))
            if not 0.6 < shape[2] < 2 * max(values.shape):
                return None
            trial = now._replace(shape=shape)
            new_columns, new_slopes = trial.columns(places)
            trial = trial._replace(levels=_solved(new_columns, pixels, weights))
            error = ((pixels - new_columns @ trial.levels) * weights) @ (
                (pixels - new_columns @ trial.levels) * weights
            )
            if error > rest @ rest:
                damping *= 8
                if damping > 1e6:
                    break
                continue
            is_still = float(abs(trial.shape - now.shape)[:4].max()) < STILL
            now, damping, columns, slopes = trial, damping / 5, new_columns, new_slopes
            if is_still:
                break
        inside, outside = now.levels[0], now.levels[3]
        return now if inside > BRIGHT * outside and np.isfinite(now.shape).all() else None

    def near(self, good: Bools) -> Array:
        """Return the good pixels around the edge, (n, 2)."""
        y, x, radius = self.shape[:3]
        band = self.band
        low = [max(0, math.floor(at - radius - band)) for at in (y, x)]
        high = [math.ceil(at + radius + band) + 1 for at in (y, x)]
        part = good[low[0] : high[0], low[1] : high[1]]
        places = np.argwhere(part) + low
        away = np.hypot(*(places - (y, x)).T)
        return places[abs(away - radius) <= band]

    def weights(self, columns: Array, pixels: Array, *, robust: bool = True) -> Array:
        """Return the weights of pixels, by the noise of counts and, if robust, without outliers."""
        high, low = self.levels[0], max(self.levels[3], 0)
        expected = columns[:, 0] * high + columns[:, 3] * low
        noise = np.sqrt(np.maximum(expected, max(0.2 * abs(high), 1e-30)))
        if not robust:
            return 1 / noise
        scaled = abs(pixels - columns @ self.levels) / noise
        is_inside = columns[:, 0] > 0.5  # outside, most pixels may be 0
        sides = [scaled[some] for some in (is_inside, ~is_inside) if some.any()]
        spread = 1.4826 * max(float(np.median(side)) for side in sides)
        spread = max(spread, CLEAN * abs(high) / float(noise.max()), 1e-12)
        found: Array = (1 - np.clip(scaled / (OUTLYING * spread), 0, 1) ** 2) / noise
        return found


def _solved(columns: Array, pixels: Array, weights: Array) -> Array:
    """Return the levels that fit best."""
    moved = columns * weights[:, None]
    found: Array = np.linalg.lstsq(moved.T @ moved, moved.T @ (pixels * weights), rcond=None)[0]
    return found


def _first_levels(columns: Array, pixels: Array) -> Array:
    inside, outside = columns[:, 0] > 0.9, columns[:, 3] > 0.9
    high = np.median(pixels[inside]) if inside.any() else pixels.max()
    low = np.median(pixels[outside]) if outside.any() else pixels.min()
    return np.array([high, 0.0, 0.0, low, 0.0])


class _Sectors(NamedTuple):
    """Sectors of the circumference of a disk."""

    circle: Circle
    inside: Bools
    """Whether a sector lies in the frame."""
    seen: Bools
    """Whether it shows the step from the inside to the outside."""

    @classmethod
    def of(cls, profile: _Profile, values: Array, good: Bools) -> _Sectors:
        circle = Circle(*profile.shape[:3].tolist())
        count = int(np.clip(2 * circle.radius, 8, 48))
        places = profile.near(np.ones_like(good))
        away = np.hypot(*(places - (circle.y, circle.x)).T)
        numbers = _sector(places, circle, count)
        band = max(1.5, 0.2 * circle.radius, 1.5 * profile.blur)
        valid, pixels = good[places[:, 0], places[:, 1]], values[places[:, 0], places[:, 1]]
        off = away - circle.radius
        contrast = profile.levels[0] - profile.levels[3]
        sides = [(off < -0.3) & (off > -band - 0.5), (off > 0.3) & (off < band + 0.5)]
        counts = [np.bincount(numbers[one & valid], minlength=count) for one in sides]
        totals = [
            np.bincount(numbers[one & valid], pixels[one & valid], minlength=count) for one in sides
        ]
        means = [total / np.maximum(n, 1) for total, n in zip(totals, counts, strict=True)]
        there = (counts[0] > 0) & (counts[1] > 0)
        step = means[0] - means[1]
        inside = np.bincount(numbers[sides[1]], minlength=count) > 0
        return cls(circle, inside, there & (step > 0.4 * contrast) & (step < 4 * contrast))

    def around(self, shape: tuple[int, ...]) -> Bools:
        """Return the pixels in sectors that are seen, as their neighbours are."""
        seen = self.seen
        kept = seen & np.roll(seen, 1) & np.roll(seen, -1)
        kept = kept if np.count_nonzero(kept) >= 0.2 * len(seen) else seen
        places = np.indices(shape).reshape(2, -1).T
        return kept[_sector(places, self.circle, len(seen))].reshape(shape)


def _sector(places: Array, circle: Circle, count: int) -> Array:
    down, across = (places - (circle.y, circle.x)).T
    turn = np.arctan2(down, across) / (2 * np.pi) + 0.5
    numbers: Array = np.minimum((turn * count).astype(int), count - 1)
    return numbers
