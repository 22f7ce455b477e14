"""Primitives: single steps on vectors of pixels, and the driver that runs a program of them.

A primitive takes addresses and a number of pixels, so that one driver, compiled once, can call all
of them; NumPy's are the inner loops of its ufuncs. Those of this module have one form::

    primitive(a, b, c, out, n)

with as many operands as needed; the rest are ignored. Operands are contiguous.
"""

from __future__ import annotations

from math import isnan

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from dask_tiled.kernels import step_layout as layout
from dask_tiled.kernels.fused_folds import call_address
from dask_tiled.kernels.limits import AHEAD, FRAMES_AT_ONCE, SEARCHED_PIXELS
from dask_tiled.kernels.words import LINE_BYTES, fetch, inlined, inner, smaller

PRIMITIVE = types.void(*[types.voidptr] * layout.MOST_OPERANDS, types.int64)


def cast(a, b, c, out, n):
    """Cast pixels to the dtype of ``out``."""
    pixels, converted = carray(a, n), carray(out, n)
    for k in range(n):
        converted[k] = pixels[k]


def _truncate(wide, upper):
    """Build a primitive that casts floats to integers through a wider type.

    A value out of its range becomes its minimum; otherwise the result would depend on the
    processor. With ``upper``, values from the limit of the wider type up to twice that are in
    range, too.
    """
    least = wide(np.iinfo(wide).min)
    limit = -float(least)

    def primitive(a, b, c, out, n):
        pixels, converted = carray(a, n), carray(out, n)
        kind, real = converted.dtype.type, pixels.dtype.type
        low, high = real(-limit - 1), real(limit)
        for k in range(n):
            pixel = pixels[k]
            above = upper and pixel >= high
            pixel = pixel - high if above else pixel
            number = wide(pixel) if (low < pixel) & (pixel < high) else least
            converted[k] = kind(number ^ least if above else number)

    return primitive


truncate32 = _truncate(np.int32, upper=False)
truncate64, truncate_u64 = _truncate(np.int64, upper=False), _truncate(np.int64, upper=True)


def truth(a, b, c, out, n):
    """Set ``out`` to whether each pixel is nonzero."""
    pixels, converted = carray(a, n), carray(out, n)
    for k in range(n):
        converted[k] = pixels[k] != 0


def spread(a, b, c, out, n):
    """Fill ``out`` with one value."""
    repeated = carray(out, n)
    value = carray(a, 1)[0]
    for k in range(n):
        repeated[k] = value


def select(a, b, c, out, n):
    """Set ``out`` to the pixels of b where a is true, and of c elsewhere."""
    wanted, chosen = carray(a, n), carray(out, n)
    these, others = carray(b, n), carray(c, n)
    for k in range(n):
        x, y = these[k], others[k]  # load both, as a branch would prevent vectorising
        chosen[k] = x if wanted[k] else y


def _unary(ufunc):
    """Build a primitive of a unary ufunc, computed in the dtype of ``out``."""

    def primitive(a, b, c, out, n):
        pixels, results = carray(a, n), carray(out, n)
        kind = results.dtype.type
        for k in range(n):
            results[k] = ufunc(kind(pixels[k]))

    return primitive


def _binary(ufunc):
    """Build a primitive of a binary ufunc, computed in the dtype of ``out``."""

    def primitive(a, b, c, out, n):
        these, others, results = carray(a, n), carray(b, n), carray(out, n)
        kind = results.dtype.type
        for k in range(n):
            results[k] = ufunc(kind(these[k]), kind(others[k]))

    return primitive


sqrt, absolute = _unary(np.sqrt), _unary(np.absolute)
add, subtract, multiply = _binary(np.add), _binary(np.subtract), _binary(np.multiply)
divide = _binary(np.divide)


def look_up(a, b, c, out, n):
    """Set ``out`` to the entries of table b for pixels of one or two bytes."""
    pixels, results = carray(a, n), carray(out, n)
    size = 1 << (8 * pixels.itemsize)
    table = carray(b, size)
    for k in range(n):
        results[k] = table[pixels[k] & (size - 1)]


def add_row(a, b, c, out, n):
    """Add all pixels to one sum."""
    pixels, total = carray(a, n), carray(out, 1)
    added = total[0]
    for k in range(n):
        added += pixels[k]
    total[0] = added


def add_each(a, b, c, out, n):
    """Add each pixel to its own sum."""
    pixels, sums = carray(a, n), carray(out, n)
    for k in range(n):
        sums[k] += pixels[k]


def add_each_root(a, b, c, out, n):
    """Add the square root of each pixel, computed in the dtype of b, to its own sum."""
    pixels, sums = carray(a, n), carray(out, n)
    kind = carray(b, 1).dtype.type
    for k in range(n):
        sums[k] += np.sqrt(kind(pixels[k]))


def add_groups(a, b, c, out, n):
    """Add groups of adjacent pixels to one sum each; b is the size of a group."""
    size = carray(b, 1)[0]
    pixels, sums = carray(a, n * size), carray(out, n)
    kind = sums.dtype.type
    if size == 2:  # a constant size, or groups are not vectorised
        for k in range(n):
            sums[k] += kind(pixels[2 * k]) + kind(pixels[2 * k + 1])
    elif size == 4:
        for k in range(n):
            i = 4 * k
            first, second = kind(pixels[i]), kind(pixels[i + 1])
            sums[k] += first + second + kind(pixels[i + 2]) + kind(pixels[i + 3])
    else:
        for k in range(n):
            total = sums[k]
            for j in range(k * size, (k + 1) * size):
                total += pixels[j]
            sums[k] = total


def add_products(a, b, c, out, n):
    """Add the dot product of pixels and weights to one sum."""
    pixels, weights, total = carray(a, n), carray(b, n), carray(out, 1)
    kind = weights.dtype.type  # otherwise numba would promote to float64
    added = kind(0)
    for k in range(n):
        added += kind(pixels[k]) * weights[k]
    total[0] += added


def _moments_row(skips):
    """Build a primitive that adds differences of pixels from b to c, and their squares to out.

    If b is NaN, it becomes the first pixel; with ``skips`` the first number, and NaN pixels are
    ignored.
    """

    def primitive(a, b, c, out, n):
        pixels, shift, total, squares = carray(a, n), carray(b, 1), carray(c, 1), carray(out, 1)
        for k in range(n if skips else 1):
            if not isnan(shift[0]):
                break
            shift[0] = pixels[k]
        s, added, squared = shift[0], 0.0, 0.0
        for k in range(n):
            difference = 0.0 if skips and isnan(pixels[k]) else pixels[k] - s
            added += difference
            squared += difference * difference
        total[0] += added
        squares[0] += squared

    return primitive


def _moments_each(skips):
    """Build the same primitive for sums by pixel, each with its own shift."""

    def primitive(a, b, c, out, n):
        pixels, shift, total, squares = carray(a, n), carray(b, n), carray(c, n), carray(out, n)
        for k in range(n):
            shift[k] = pixels[k] if isnan(shift[k]) else shift[k]
            difference = 0.0 if skips and isnan(pixels[k]) else pixels[k] - shift[k]
            total[k] += difference
            squares[k] += difference * difference

    return primitive


moments_row, nanmoments_row = _moments_row(skips=False), _moments_row(skips=True)
moments_each, nanmoments_each = _moments_each(skips=False), _moments_each(skips=True)


def count(a, b, c, out, n):
    """Count each value, in four tables: equal neighbours do not wait for one another."""
    pixels = carray(a, n)
    size = 1 << (8 * pixels.itemsize)
    counts = carray(out, 4 * size)
    whole = n - n % 4
    for k in range(0, whole, 4):
        counts[pixels[k] & (size - 1)] += 1
        counts[size + (pixels[k + 1] & (size - 1))] += 1
        counts[2 * size + (pixels[k + 2] & (size - 1))] += 1
        counts[3 * size + (pixels[k + 3] & (size - 1))] += 1
    for k in range(whole, n):
        counts[pixels[k] & (size - 1)] += 1


def bins(a, b, c, out, n):
    """Add a histogram of the pixels; b has the number of bins and bins per unit, c the edges."""
    pixels, number, scale = carray(a, n), int(carray(b, 2)[0]), carray(b, 2)[1]
    edges, counts = carray(c, number + 1), carray(out, number)
    first, last = edges[0], edges[number]
    for k in range(n):
        pixel = np.float64(pixels[k])
        if first <= pixel <= last:
            i = min(int((pixel - first) * scale), number - 1)
            while pixel < edges[i]:
                i -= 1
            while i < number - 1 and pixel >= edges[i + 1]:
                i += 1
            counts[i] += 1


def argmax_each(a, b, c, out, n):
    """Keep each maximum in c, and its smallest position in out; b is the position that a has."""
    _keep_each(carray(a, n), carray(b, 1)[0], carray(c, n), carray(out, n), least=False)


def argmin_each(a, b, c, out, n):
    """Keep each minimum in c, and its smallest position in out; b is the position that a has."""
    _keep_each(carray(a, n), carray(b, 1)[0], carray(c, n), carray(out, n), least=True)


def argmax_row(a, b, c, out, n):
    """Keep the maximum of all pixels in c, and its smallest position in out; b has positions."""
    _keep_one(carray(a, n), carray(b, n), carray(c, 1), carray(out, 1), least=False)


def argmin_row(a, b, c, out, n):
    """Keep the minimum of all pixels in c, and its smallest position in out; b has positions."""
    _keep_one(carray(a, n), carray(b, n), carray(c, 1), carray(out, 1), least=True)


def argmax_row_of_whole(a, b, c, out, n):
    """Vectorise ``argmax_row`` for up to 65,535 integers."""
    _keep_whole(carray(a, n), carray(b, n), carray(c, 1), carray(out, 1), least=False)


def argmin_row_of_whole(a, b, c, out, n):
    """Vectorise ``argmin_row`` for up to 65,535 integers."""
    _keep_whole(carray(a, n), carray(b, n), carray(c, 1), carray(out, 1), least=True)


@inner
def is_better(x, y, earlier, least):
    """Return whether pixel x replaces y as in NumPy: NaN wins, and ties go to the earlier one."""
    return (
        (x < y if least else x > y) | ((x == y) & earlier) | ((x != x) & ((y == y) | earlier))  # noqa: PLR0124
    )


@inner
def _keep_each(pixels, place, best, places, least):
    for k in range(pixels.size):
        better = is_better(pixels[k], best[k], place < places[k], least)
        best[k] = pixels[k] if better else best[k]
        places[k] = place if better else places[k]


@inner
def _keep_one(pixels, places, best, place, least):
    if places[0] < place[0]:  # the first pixels of a row
        best[0], place[0] = pixels[0], places[0]
    extreme, at = best[0], place[0]
    for start in range(0, pixels.size, SEARCHED_PIXELS):
        part = pixels[start : start + SEARCHED_PIXELS]
        if _go_beyond(part, extreme, least):
            for k in range(part.size):
                if extreme == extreme and _is_beyond(part[k], extreme, least):  # noqa: PLR0124
                    extreme, at = part[k], places[start + k]
    best[0], place[0] = extreme, at


@inner
def _keep_whole(pixels, places, best, place, least):
    if places[0] < place[0]:  # the first pixels of a row
        best[0], place[0] = pixels[0], places[0]
    extreme = best[0]
    for k in range(pixels.size):
        pixel = pixels[k]
        extreme = pixel if (pixel < extreme if least else pixel > extreme) else extreme
    if extreme != best[0]:
        first = np.uint16(pixels.size)
        for k in range(pixels.size):
            at = np.uint16(k) if pixels[k] == extreme else np.uint16(pixels.size)
            first = min(first, at)
        best[0], place[0] = extreme, places[first]


@inner
def _go_beyond(pixels, extreme, least):
    """Return whether any pixel is beyond the extreme found so far; vectorised."""
    beyond = False
    for k in range(pixels.size):
        beyond |= _is_beyond(pixels[k], extreme, least)
    return beyond


@inner
def _is_beyond(pixel, extreme, least):
    """Return whether a pixel is less or greater than the extreme, or NaN."""
    return not (pixel >= extreme if least else pixel <= extreme)


@intrinsic
def call_loop(typingctx, address, args, dims, steps, data):
    """Call an inner loop of a NumPy ufunc."""
    numbers = types.void(*[types.int64] * 5)

    def codegen(context, builder, signature, values):
        pointer = ir.IntType(8).as_pointer()
        loop = ir.FunctionType(ir.VoidType(), [pointer] * 4).as_pointer()
        address, *rest = values
        function = builder.inttoptr(address, loop)
        builder.call(function, [builder.inttoptr(value, pointer) for value in rest])
        return context.get_dummy_value()

    return numbers, codegen


@intrinsic
def call_primitive(typingctx, address, a, b, c, out, n):
    """Call a primitive of this module."""
    numbers = types.void(*[types.int64] * 6)

    def codegen(context, builder, signature, values):
        pointer = ir.IntType(8).as_pointer()
        address, *operands, n = values
        shown = [builder.inttoptr(value, pointer) for value in operands]
        return call_address(context, builder, PRIMITIVE, [address, *shown, n])

    return numbers, codegen


@inlined
def fetch_runs(data, offsets, start, stop, first, nbytes, apart):
    """Prefetch lines of some frames, ``apart`` bytes from one another, from byte ``first`` on."""
    for i in range(start, smaller(stop, offsets.size)):
        for line in range(offsets[i] + first, offsets[i] + first + nbytes, apart):
            fetch(data, line)


def run_program(data, offsets, width, rows, first, pixels, program, header):
    """Run the steps of a program on the pixels of some frames, from number ``first`` on.

    Parameters
    ----------
    data, offsets, width
        Frames, as folds take them.
    rows : int64 array
        Numbers of the frames.
    first
        As folds take it.
    pixels
        Unused: the header has the bytes of a pixel, so that one function serves all types.
    program : 2D int64 array
        A step in each row: see ``dask_tiled.kernels.step_layout``. Without data, it is a primitive
        of this module.
    header : 2D int64 array
        Header of the program, and a second row as scratch memory.
    """
    columns, per_frame, vector = (
        header[0, layout.COLUMNS],
        header[0, layout.PER_FRAME],
        header[0, layout.VECTOR],
    )
    work = header[1]
    args, steps, dims = work[:4], work[4:8], work[8:9]
    begin, size = data.ctypes.data, header[0, layout.PIXEL_BYTES]
    only = program[0, layout.DATA] if program.shape[0] == 1 else layout.OWN
    # A short step keeps memory busy if each page is touched in time; others need all lines.
    apart = LINE_BYTES if only == layout.OWN else AHEAD
    if only == layout.FRAMES:
        _run_on_frames(data, offsets, width, rows, first, program[0], header)
        return
    piece = header[0, layout.PIECE] or width
    # Pieces of several frames come with their results.
    ahead = data.size > 0 and piece == width and only != layout.FETCHES
    for turn in range(offsets.size * -(-width // piece)):  # the same pixels of all frames
        part, i = divmod(turn, offsets.size)
        done, stop = part * piece, min((part + 1) * piece, width)
        line, column = divmod(first + done, columns)
        while done < stop:
            n = min(vector, columns - column, stop - done)
            if ahead:
                k, at = (i, done + n) if done + n < width else (i + 1, 0)
                fetch_runs(data, offsets, k, k + 1, at * size, n * size, apart)
            row = rows[i] * per_frame + line
            for s in range(program.shape[0]):
                step = program[s]
                group = step[layout.GROUP]  # a division takes as long as a short vector
                dims[0], start = (n // group, column // group) if group > 1 else (n, column)
                for k in range(step[layout.OPERANDS]):
                    place = step[
                        layout.PLACES + layout.PLACE_COLUMNS * k : layout.PLACES
                        + layout.PLACE_COLUMNS * (k + 1)
                    ]
                    args[k] = _address(place, begin + offsets[i] + done * size, row, start)
                    steps[k] = place[layout.STEP]
                if step[layout.DATA] < 0:
                    last = step[layout.OPERANDS] - 1
                    call_primitive(
                        step[layout.ADDRESS], args[0], args[1], args[2], args[last], dims[0]
                    )
                else:
                    call_loop(
                        step[layout.ADDRESS],
                        args.ctypes.data,
                        dims.ctypes.data,
                        steps.ctypes.data,
                        step[layout.DATA],
                    )
            done += n
            line, column = (line, column + n) if column + n < columns else (line + 1, 0)


@inlined
def _address(place, pixels, row, start):
    """Return the address of an operand, for pixels from ``start`` on of a row of a chunk."""
    if place[layout.MODE] == layout.TILE:
        return place[layout.BASE] + pixels
    if place[layout.MODE] == layout.FIXED:
        return place[layout.BASE]
    rows = _result_row(place, row) * place[layout.ROW_BYTES]
    return place[layout.BASE] + rows + start * place[layout.STEP]


@inlined
def _result_row(place, row):
    """Return the row of an array for the row of a chunk."""
    if place[layout.ROW_NUMBERS]:
        return carray(_numbers(place[layout.ROW_NUMBERS]), row + 1)[row]
    return row


@inner
def _run_on_frames(data, offsets, width, rows, first, step, header):
    """Run the primitive that adds several frames to one row of results, row after row."""
    out = step[layout.PLACES + layout.PLACE_COLUMNS * (step[layout.OPERANDS] - 1) :]
    vector, size, shape = header[0, layout.VECTOR], header[0, layout.PIXEL_BYTES], header[1, :2]
    shape[1] = step[layout.PLACES + layout.BASE + layout.PLACE_COLUMNS]
    start = stop = 0
    while start < offsets.size:
        row, most = _result_row(out, rows[start]), smaller(offsets.size, start + FRAMES_AT_ONCE)
        while stop < most and _result_row(out, rows[stop]) == row:
            stop += 1
        shape[0], pixels = stop - start, data.ctypes.data + offsets[start]
        results = out[layout.BASE] + row * out[layout.ROW_BYTES] + first * out[layout.STEP]
        for done in range(0, width, vector):
            call_primitive(
                step[layout.ADDRESS],
                pixels + done * size,
                offsets.ctypes.data + 8 * start,
                shape.ctypes.data,
                results + done * out[layout.STEP],
                smaller(vector, width - done),
            )
        start = stop


@intrinsic
def _numbers(typingctx, address):
    """Convert an address to a pointer to int64."""
    numbers = types.CPointer(types.int64)

    def codegen(context, builder, signature, values):
        return builder.inttoptr(values[0], context.get_value_type(numbers))

    return numbers(types.int64), codegen
