"""Check of every call of a compiled kernel that it stays inside of the arrays that it is given."""

from functools import cache, partial

import numpy as np

from dask_tiled.kernels import decoding, fold_functions

DECODERS = {
    "copy": 1,
    "truth": 1,
    "biased": 1,
    "conjugate": 1,
    "real": 1,
    "swap2": 2,
    "swap4": 4,
    "swap8": 8,
    "bits": 8,
    "bits_reversed": 8,
    "unpack12": 24,
    "join24": 8,
    "join24_reversed": 8,
}
"""Units are made of whole words of so many bytes."""
WIDTHS = {
    "bits": (8, 1),
    "bits_reversed": (8, 1),
    "unpack12": (4, 3),
    "join24": (2, 1),
    "join24_reversed": (2, 1),
    "real": (2, 1),
}
"""Bytes that come out for those that go in, as a fraction, where these are not as many."""

violations: list[str] = []
"""What was wrong with calls: an error might be taken for another one on its way."""


class OutOfBoundsError(AssertionError):
    """A kernel would have read or written outside of its arrays."""


class Checked:
    """A kernel, and what looks at its arguments first."""

    def __init__(self, kernel, check):
        self._kernel, self._check = kernel, check

    def __call__(self, *args):
        problem = self._check(*args)
        if problem:
            violations.append(f"{self._kernel.__name__}: {problem}")
            raise OutOfBoundsError(violations[-1])
        return self._kernel(*args)

    def __getattr__(self, name):
        return getattr(self._kernel, name)


def watch():
    """Put a check before each kernel that is asked for from now on, in this process."""
    compiled = decoding.compiled

    @cache
    def watched(name, *args, **options):
        short = name.rpartition(":")[2]
        kernel, check = compiled(name, *args, **options), CHECKS.get(short)
        if check is None and short.endswith(("_frames", "_pixels")):
            check = partial(check_fold, short)
        elif short in DECODERS:
            check = partial(check_decoder, short)
        return kernel if check is None else Checked(kernel, check)

    decoding.compiled = fold_functions.compiled = watched


def outside(what, size, first, stop):
    """Say that bytes or places are not inside; None if they are."""
    if first >= 0 and stop <= size:
        return None
    return f"{what} {first} to {stop} of {size}"


def extent(starts, step, count, reach):
    """Give the first byte of all runs, and the one after the last; in numbers without an end."""
    if not starts.size or count <= 0:
        return 0, 0
    last = (int(count) - 1) * int(step)
    return int(starts.min()) + min(0, last), int(starts.max()) + max(0, last) + int(reach)


def check_decoder(name, src, starts, step, out, dests, out_step, count, nbytes, lag):
    if nbytes < 0 or lag < 0 or count < 0 or nbytes % DECODERS[name]:
        return f"units of {nbytes} bytes, {count} of them, {lag} bytes apart"
    if len(starts) != len(dests):
        return f"{len(starts)} starts and {len(dests)} places"
    more, less = WIDTHS.get(name, (1, 1))
    return outside("bytes", len(src), *extent(starts, step, count, nbytes + lag)) or outside(
        "room", len(out), *extent(dests, out_step, count, nbytes * more // less)
    )


def check_fold(name, tile, rows, first, results, weights):
    if len(rows) != len(tile):
        return f"{len(rows)} rows for {len(tile)} frames"
    low, high = extent(rows, 0, len(rows) and 1, 1)
    columns = {"dot_frames": weights.shape[1]}.get(name, first + tile.shape[1])
    if name.endswith("_pixels"):
        columns = results.shape[1]
    return outside("rows", results.shape[0], low, high) or outside(
        "pixels", columns, first, first + tile.shape[1]
    )


def check_fold_units(
    decode, fold, src, offsets, rows, starts, step, firsts, count, nbytes, out_nbytes, lag, block,
    group, depth, scratch, results, weights,
):  # fmt: skip
    if len(rows) != len(offsets) or len(starts) != len(firsts):
        return f"{len(offsets)} frames, {len(rows)} rows, {len(starts)} runs, {len(firsts)} places"
    if min(block, group, depth) < 1 or (group > 1 and block != count):
        return f"blocks of {depth} frames, {group} runs, {block} of {count} units"
    low, high = extent(starts, step, count, nbytes + lag)
    room = depth * group * min(block, count) * out_nbytes
    return outside("bytes", len(src), *extent(offsets + low, 0, 1, high - low)) or outside(
        "room", scratch.nbytes, 0, room
    )


def check_fold_in_place(
    fold, src, offsets, rows, starts, firsts, nbytes, pixels, results, weights
):  # fmt: skip
    if len(rows) != len(offsets) or len(starts) != len(firsts):
        return f"{len(offsets)} frames, {len(rows)} rows, {len(starts)} runs, {len(firsts)} places"
    low, high = extent(starts, 0, 1, nbytes)
    return outside("bytes", len(src), *extent(offsets + low, 0, 1, high - low))


def check_add_packed(src, offsets, starts, step, firsts, count, nbytes, results):
    if nbytes % 24:
        return f"units of {nbytes} bytes"
    low, high = extent(starts, step, count, nbytes)
    places = extent(firsts, nbytes // 24 * 16, count, nbytes // 24 * 16)
    return outside("bytes", len(src), *extent(offsets + low, 0, 1, high - low)) or outside(
        "pixels", results.size, *places
    )


def check_gather(fd, offsets, width, out):
    if width < 0 or (offsets < 0).any():
        return f"{width} bytes at {offsets}"
    return outside("room", len(out), 0, len(offsets) * width)


def check_correct(tile, dark, gain, out):
    if not tile.shape == out.shape == (len(tile), len(dark)) == (len(tile), len(gain)):
        return f"{tile.shape}, {dark.shape}, {gain.shape} into {out.shape}"
    return None


def check_repair(src, pixels, bounds, neighbours, out):
    if len(bounds) != len(pixels) + 1 or src.shape != out.shape or (np.diff(bounds) < 0).any():
        return f"{len(pixels)} pixels, {len(bounds)} bounds, {src.shape} into {out.shape}"
    return (
        outside("pixels", src.shape[1], *extent(pixels, 0, 1, 1))
        or outside("pixels", src.shape[1], *extent(neighbours, 0, 1, 1))
        or outside("neighbours", len(neighbours), *extent(bounds, 0, 1, 0))
    )


CHECKS = {
    "fold_units": check_fold_units,
    "fold_in_place": check_fold_in_place,
    "add_packed": check_add_packed,
    "gather": check_gather,
    "correct": check_correct,
    "repair": check_repair,
}
