"""Hand-written loops for one expression each: the speed limit without any package.

The loops read a mapping that is kept, frame by frame, and may sum in any order. They sum floats in
double precision where dask-tiled does.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import intrinsic

from comparison.file_format import Array
from comparison.scans import Scan, segments

PIECE = 1 << 12
"""Pixels of which the sums stay in the innermost cache."""
DEPTH = 64
"""Frames of a product of matrices."""


@intrinsic
def reversed_bytes(typingctx, value):
    """Reverse the bytes of an integer."""

    def codegen(context, builder, signature, values):
        return builder.bswap(values[0])

    return value(value), codegen


@njit
def as_it_is(value):
    """Return a pixel in native byte order."""
    return value


def _compiled(*, swapped: bool) -> dict[str, Any]:  # noqa: C901, PLR0915 - they share these
    """Compile the loops for a byte order; ``native`` is an empty array of the native dtype."""
    load = reversed_bytes if swapped else as_it_is
    fast = njit(nogil=True, fastmath=True)

    @fast
    def row_of(data, at, native, low, high):
        size = native.itemsize
        return data[at + low * size : at + high * size].view(native.dtype)

    @fast
    def sum_frames(data, offsets, native, pixels, out):
        kind = out.dtype.type
        for i in range(offsets.size):
            row, total = row_of(data, offsets[i], native, 0, pixels), kind(0)
            for j in range(row.size):
                total = kind(total + kind(load(row[j])))
            out[i] = total

    @fast
    def max_frames(data, offsets, native, pixels, out):
        for i in range(offsets.size):
            row, most = row_of(data, offsets[i], native, 0, pixels), out[i]
            for j in range(row.size):
                x = load(row[j])
                most = x if x > most else most  # noqa: FURB136 - several at a time
            out[i] = most

    @fast
    def count_frames(data, offsets, native, pixels, out):
        kind = native.dtype.type
        limit, few = kind(5), np.int16
        for i in range(offsets.size):
            for low in range(0, pixels, 1 << 14):
                row = row_of(data, offsets[i], native, low, min(low + (1 << 14), pixels))
                found = few(0)
                for j in range(row.size):
                    found = few(found + few(load(row[j]) > limit))
                out[i] += found

    @fast
    def dot_frames(data, offsets, native, pixels, weights, out):
        kind = weights.dtype.type
        for i in range(offsets.size):
            row, total = row_of(data, offsets[i], native, 0, pixels), kind(0)
            for j in range(row.size):
                total = kind(total + kind(load(row[j])) * weights[j])
            out[i] = total

    @fast
    def sum_pixels(data, offsets, native, pixels, out):
        kind = out.dtype.type
        for low in range(0, pixels, PIECE):
            high = min(low + PIECE, pixels)
            sums = out[low:high]
            for i in range(0, offsets.size - 3, 4):
                a = row_of(data, offsets[i], native, low, high)
                b = row_of(data, offsets[i + 1], native, low, high)
                c = row_of(data, offsets[i + 2], native, low, high)
                d = row_of(data, offsets[i + 3], native, low, high)
                for j in range(sums.size):
                    some = kind(load(a[j])) + kind(load(b[j])) + kind(load(c[j])) + kind(load(d[j]))
                    sums[j] += kind(some)
            for i in range(offsets.size - offsets.size % 4, offsets.size):
                a = row_of(data, offsets[i], native, low, high)
                for j in range(sums.size):
                    sums[j] += kind(load(a[j]))

    @fast
    def max_pixels(data, offsets, native, pixels, out):
        for i in range(offsets.size):
            a = row_of(data, offsets[i], native, 0, pixels)
            for j in range(pixels):
                x = load(a[j])
                out[j] = x if x > out[j] else out[j]  # noqa: FURB136

    @fast
    def sum_roots(data, offsets, native, pixels, out):
        for low in range(0, pixels, PIECE):
            high = min(low + PIECE, pixels)
            sums = out[low:high]
            for i in range(offsets.size):
                a = row_of(data, offsets[i], native, low, high)
                for j in range(sums.size):
                    sums[j] += np.sqrt(np.float32(load(a[j])))

    @fast
    def moments(data, offsets, native, pixels, out):
        for low in range(0, pixels, PIECE):
            high = min(low + PIECE, pixels)
            shift, sums, squares = out[0, low:high], out[1, low:high], out[2, low:high]
            first = row_of(data, offsets[0], native, low, high)
            for j in range(shift.size):
                shift[j] = load(first[j])
            for i in range(offsets.size):
                a = row_of(data, offsets[i], native, low, high)
                for j in range(shift.size):
                    x = np.float64(load(a[j])) - shift[j]
                    sums[j] += x
                    squares[j] += x * x

    @fast
    def decode(data, offsets, native, low, high, out):
        for i in range(offsets.size):
            row, target = row_of(data, offsets[i], native, low, high), out[i]
            for j in range(row.size):
                target[j] = load(row[j])

    return {name: made for name, made in locals().items() if hasattr(made, "py_func")}


class Frames(NamedTuple):
    """The mapped frames of a file, and threads that process them."""

    data: Array
    offsets: Array
    nav: tuple[int, int]
    sig: tuple[int, int]
    native: Array
    loops: dict[str, Any]
    pool: ThreadPoolExecutor
    threads: int

    @property
    def pixels(self) -> int:
        """Number of pixels in a frame."""
        return self.sig[0] * self.sig[1]

    @property
    def arguments(self) -> tuple[Array, Array, Array, int]:
        """First arguments of every loop."""
        return self.data, self.offsets, self.native, self.pixels

    @property
    def parts(self) -> list[slice]:
        """Slices of frames, one per thread."""
        step = -(-len(self.offsets) // self.threads)
        return [slice(k * step, (k + 1) * step) for k in range(self.threads)]

    @property
    def wide(self) -> np.dtype[Any]:
        """Dtype of sums."""
        return np.dtype("u4" if self.native.dtype.kind == "u" else "f8")

    def by_frame(self, name: str, out: Array, *beside: Array) -> Array:
        """Run a loop with a result per frame."""

        def run(part: slice) -> None:
            data, offsets, native, pixels = self.arguments
            self.loops[name](data, offsets[part], native, pixels, *beside, out[part])

        list(self.pool.map(run, self.parts))
        return out.reshape(self.nav)

    def by_pixel(self, name: str, make: Callable[[], Array]) -> list[Array]:
        """Run a loop with a result per pixel; return the results of the threads."""

        def run(part: slice) -> Array:
            data, offsets, native, pixels = self.arguments
            out = make()
            self.loops[name](data, offsets[part], native, pixels, out)
            return out

        return list(self.pool.map(run, self.parts))


def frames_of(scan: Scan, pool: ThreadPoolExecutor, threads: int) -> Frames:
    """Map the file of a scan."""
    (path,), record = scan.files, scan.format.record
    with path.open("rb") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    assert record.fields is not None
    pixel, at = record.fields["pixels"][:2]
    count = scan.nav[0] * scan.nav[1]
    first = len(data) - count * record.itemsize + at
    offsets = first + np.arange(count) * record.itemsize
    native = np.empty(0, pixel.base.newbyteorder("="))
    loops = _compiled(swapped=not pixel.base.isnative)
    return Frames(data, offsets, scan.nav, scan.format.sig, native, loops, pool, threads)


def _sum_nav(f: Frames) -> Array:
    sums = f.by_pixel("sum_pixels", lambda: np.zeros(f.pixels, f.wide))
    return np.sum(sums, axis=0, dtype=_result(f)).reshape(f.sig)


def _sum_sig(f: Frames) -> Array:
    return f.by_frame("sum_frames", np.zeros(len(f.offsets), f.wide)).astype(_result(f))


def _result(f: Frames) -> str:
    return "u8" if f.native.dtype.kind == "u" else "f4"


def _sum_y(f: Frames) -> Array:
    out, numbers = np.zeros((f.nav[1], f.pixels), f.wide), np.arange(f.nav[1])

    def run(part: Array) -> None:
        for x in part:
            some = np.ascontiguousarray(f.offsets[x :: f.nav[1]])
            f.loops["sum_pixels"](f.data, some, f.native, f.pixels, out[x])

    list(f.pool.map(run, np.array_split(numbers, f.threads)))
    return out.astype(_result(f)).reshape(f.nav[1], *f.sig)


def _disk(f: Frames) -> Array:
    disk = (segments(f.sig)[0] > 0).astype("u4" if f.native.dtype.kind == "u" else "f4").ravel()
    return f.by_frame("dot_frames", np.zeros(len(f.offsets), disk.dtype), disk).astype(_result(f))


def _mask(f: Frames) -> Array:
    dark = (segments(f.sig)[1] * np.float32(20)).ravel()
    return f.by_frame("dot_frames", np.zeros(len(f.offsets), "f4"), dark)


def _masks(f: Frames) -> Array:
    weights = np.ascontiguousarray(segments(f.sig).reshape(16, -1))
    out = np.zeros((len(f.offsets), 16), "f4")

    def run(part: slice) -> None:
        offsets, sums = f.offsets[part], out[part]
        room = np.empty((DEPTH, PIECE), "f4")
        for first in range(0, len(offsets), DEPTH):
            some = offsets[first : first + DEPTH]
            for low in range(0, f.pixels, PIECE):
                high = min(low + PIECE, f.pixels)
                f.loops["decode"](f.data, some, f.native, low, high, room)
                pixels = room[: len(some), : high - low]
                sums[first : first + DEPTH] += pixels @ weights[:, low:high].T

    list(f.pool.map(run, f.parts))
    return out.reshape(*f.nav, 16)


def _std_nav(f: Frames) -> Array:
    n, mean, spread = 0, np.zeros(f.pixels), np.zeros(f.pixels)
    found = f.by_pixel("moments", lambda: np.zeros((3, f.pixels)))
    for part, (shift, total, squares) in zip(f.parts, found, strict=True):
        m = len(f.offsets[part])
        centre = shift + total / m
        step = centre - mean
        spread += squares - total * total / m + step * step * (n * m / (n + m))
        mean += step * (m / (n + m))
        n += m
    dtype = "f8" if f.native.dtype.kind == "u" else "f4"
    return np.sqrt(spread / n).astype(dtype).reshape(f.sig)


def _max_nav(f: Frames) -> Array:
    found = f.by_pixel("max_pixels", lambda: np.zeros(f.pixels, f.native.dtype))
    return np.max(found, axis=0).reshape(f.sig)


def _sqrt(f: Frames) -> Array:
    found = f.by_pixel("sum_roots", lambda: np.zeros(f.pixels))
    return np.sum(found, axis=0).astype("f4").reshape(f.sig)


def _pixels(f: Frames) -> Array:
    out = np.empty((len(f.offsets), f.pixels), f.native.dtype)

    def run(part: slice) -> None:
        f.loops["decode"](f.data, f.offsets[part], f.native, 0, f.pixels, out[part])

    list(f.pool.map(run, f.parts))
    return out.reshape(f.nav + f.sig)


BARE: dict[str, Callable[[Frames], Array]] = {
    "sum": lambda f: _sum_sig(f).sum(dtype=_result(f)),
    "sum-nav": _sum_nav,
    "sum-sig": _sum_sig,
    "sum-y": _sum_y,
    "max-nav": _max_nav,
    "max-np": lambda f: f.by_frame("max_frames", np.zeros(len(f.offsets), f.native.dtype)),
    "threshold": lambda f: f.by_frame("count_frames", np.zeros(len(f.offsets), "i8")),
    "std-nav": _std_nav,
    "sqrt": _sqrt,
    "disk": _disk,
    "tensordot-one": _mask,
    "tensordot": _masks,
    "pixels": _pixels,
}
"""By the names of what users type."""
