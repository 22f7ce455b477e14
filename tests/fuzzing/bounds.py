"""Check that every call of a compiled kernel stays inside of its arrays."""

import ctypes
import importlib
import inspect
import pkgutil
import sys
import weakref
from functools import cache, partial, wraps

import numpy as np
from numba.np.numpy_support import as_dtype

from dask_tiled import kernels
from dask_tiled.codecs.byte_codecs import PACKED_BYTES, most_encoded
from dask_tiled.engine import evaluation, vectors
from dask_tiled.kernels import decoding, fold_functions, fold_layout, frame_reads, step_layout
from dask_tiled.kernels.events import NEXT_PIXEL
from dask_tiled.kernels.limits import COMPRESSED_BYTES, INDEXED_BYTES
from dask_tiled.kernels.packing import GROUP, HASH_BITS, SLACK
from dask_tiled.kernels.tpx3 import ROW
from dask_tiled.model.requests import ALIGN, DEPTH, DONE, FD, HIGH, LOW, NEAR

DECODERS = {
    **dict.fromkeys(("copy", "truth", "biased", "conjugate", "real"), 1),
    "swap2": 2,
    "swap4": 4,
    "unpack12": 24,
    **dict.fromkeys(("swap8", "bits", "bits_reversed", "join24", "join24_reversed"), 8),
}
"""Bytes of a decoder's words; units are whole words."""
WIDTHS = {
    **dict.fromkeys(("bits", "bits_reversed"), (8, 1)),
    **dict.fromkeys(("join24", "join24_reversed", "real"), (2, 1)),
    "unpack12": (4, 3),
}
"""Bytes of output for bytes of input, where they differ."""

NONE, ONE, PAIR, ALL, GROUPS, VALUES, TABLES, EDGES, BINS, ROWS = range(10)
FOLDS = {"sum_packed_frames", "dot_frames", "dots_frames", "shifted_frames"}
"""Kernels with the arguments of a fold."""
PRIMITIVES = {
    name: operands
    for operands, some in {
        (ALL, NONE, NONE, ALL): (
            "cast truncate32 truncate64 truncate_u64 truth sqrt absolute add_each add_each_root "
            "add_frames min_frames max_frames"
        ),
        (ONE, NONE, NONE, ALL): "spread",
        (ALL, ALL, ALL, ALL): "select moments_each nanmoments_each",
        (ALL, ALL, NONE, ALL): "add subtract multiply divide",
        (ALL, VALUES, NONE, ALL): "look_up",
        (ALL, NONE, NONE, ONE): "add_row add_words min_row max_row",
        (ALL, ONE, NONE, ONE): "count_above count_below",
        (ALL, NONE, NONE, ROWS): "moments_frames",
        (GROUPS, ONE, NONE, ALL): "add_groups",
        (ALL, ALL, NONE, ONE): "add_products",
        (ALL, ONE, ONE, ONE): "moments_row nanmoments_row",
        (ALL, NONE, NONE, TABLES): "count",
        (ALL, PAIR, EDGES, BINS): "bins",
        (ALL, ONE, ALL, ALL): "argmax_each argmin_each",
        (ALL, ALL, ONE, ONE): "argmax_row argmin_row argmax_row_of_whole argmin_row_of_whole",
    }.items()
    for name in some.split()
}
"""Pixels of each operand that a primitive touches."""

called: dict[int, tuple[str, list]] = {}
"""Kernels called by address: their names, and the item sizes of their operands."""
loops: dict[tuple[int, int], list[int]] = {}
"""Item sizes of the operands of NumPy's loops, by address and data."""
workers = weakref.WeakValueDictionary()
"""Owners of the memory that programs work in, by the address of the program's header."""
violations: list[str] = []
"""Problems of calls, kept because callers may turn the exception into another one."""


class OutOfBoundsError(AssertionError):
    """A kernel would have read or written outside of its arrays."""


class Checked:
    """A kernel whose arguments are checked before each call."""

    def __init__(self, kernel, name):
        self._kernel, self.name, self._check = kernel, name, check_of(name)

    def __call__(self, *args):
        problem = self._check(*args)
        if problem:
            violations.append(f"{self.name}: {problem}")
            raise OutOfBoundsError(violations[-1])
        return self._kernel(*args)

    def __getattr__(self, name):
        return getattr(self._kernel, name)


def kernel_names():
    """Return the names of all kernels: the only functions there without annotations."""
    modules = [
        importlib.import_module(f"{kernels.__name__}.{found.name}")
        for found in pkgutil.iter_modules(kernels.__path__)
        if found.name != "words"  # inlined into kernels
    ]
    return {
        name
        for module in modules
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
        if not one.__annotations__
    }


def check_of(name):
    """Return the check of a kernel, or raise a LookupError."""
    if name in CHECKS:
        return CHECKS[name]
    if of_native(name) in FOLDS:
        return partial(check_fold, name)
    if name in DECODERS:
        return partial(check_decoder, name)
    if of_native(name) in PRIMITIVES:  # only programs call them
        return lambda *_: "called outside of a program"
    raise LookupError(f"the kernel {name} has no check")


def of_native(name):
    """Name the kernel whose twin for pixels in reversed byte order has a name."""
    return name.replace("_reversed", "")


def watch():
    """Check every kernel that is compiled from now on, in this process."""
    kernel_names()  # imports all modules
    evaluation.SHARED.clear()
    compiled, address_of, loop_of = decoding.compiled, decoding.address_of, vectors.loop_of

    @cache
    def watched(name, *args, **options):
        return Checked(compiled(name, *args, **options), name.rpartition(":")[2])

    @wraps(address_of)
    def recorded_address(kernel):
        address = address_of(kernel)
        (types,) = kernel.overloads
        called[address] = (
            kernel.name,
            [as_dtype(getattr(one, "dtype", one)).itemsize for one in types],
        )
        return address

    @wraps(loop_of)
    def recorded_loop(*args):
        loop = loop_of(*args)
        if loop is not None:
            loops[loop.address, loop.data] = [dtype.itemsize for dtype in loop.dtypes]
        return loop

    for module in list(sys.modules.values()):
        if vars(module).get("compiled") is compiled:
            module.compiled = watched
            for one in vars(module).values():  # caches of unchecked kernels
                if one is not watched and hasattr(one, "cache_clear"):
                    one.cache_clear()
    for module in (fold_functions, frame_reads):
        module.address_of = recorded_address
    vectors.loop_of = recorded_loop
    watch_memory()


def watch_memory():
    """Record the memory that programs work in."""
    begin, run = vectors.BoundVectors.__init__, evaluation.StageSink._run
    join, move = evaluation.VectorSink.work_for, vectors.BoundVectors.moved

    @wraps(begin)
    def recorded(self, *args, **options):
        begin(self, *args, **options)
        workers[self.header.ctypes.data] = self

    @wraps(run)
    def recorded_tiles(self, steps, places, values, start, tile):
        self._bound._tiles = [np.asarray(values[register]) for *_, register in places]
        run(self, steps, places, values, start, tile)

    @wraps(join)
    def recorded_others(self, others):
        join(self, others)
        self._bound._others = [one._bound for one in others]

    @wraps(move)
    def recorded_columns(self, steps, columns):
        self._moved = [columns]
        return move(self, steps, columns)

    vectors.BoundVectors.__init__, evaluation.StageSink._run = recorded, recorded_tiles
    vectors.BoundVectors.moved = recorded_columns
    evaluation.VectorSink.work_for = recorded_others


def outside(what, size, first, stop):
    """Describe a range that is not inside of ``size``; None if it is."""
    if first >= 0 and stop <= size:
        return None
    return f"{what} {first} to {stop} of {size}"


def extent(starts, step, count, reach):
    """Return the first byte of all runs, and the end of the last, as integers without overflow."""
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


def check_fold(name, data, offsets, width, rows, first, pixels, results, weights):
    if len(rows) != len(offsets):
        return f"{len(rows)} rows for {len(offsets)} frames"
    low, high = extent(rows, 0, len(rows) and 1, 1)
    columns = weights.shape[1] if name.startswith("dot") else first + width
    if name == "shifted_frames":
        masks, (lines, width) = results.shape[1] - 2, weights.shape
        spans = weights if weights.itemsize == 2 else weights.view(f"f{weights.itemsize}")
        spans, columns = spans[:, :2], lines // masks * (width - 2)  # pixels of a frame
        if masks < 1 or lines % masks or spans.min() < 0 or spans.max() > width - 2:
            return f"{lines} rows of {masks} masks, spans up to {spans.max()}"
    return (
        outside("bytes", len(data), *extent(offsets, 0, 1, width * pixels.itemsize))
        or outside("rows", results.shape[0], low, high)
        or outside("pixels", columns, first, first + width)
    )


def check_request(request, size, offsets, low, high):
    """Check that frames lie in memory, or that the buffer has room for each batch of reads."""
    if request[FD] < 0:
        return outside("bytes", size, *extent(offsets + low, 0, 1, high - low))
    if (
        request[DEPTH] < 1
        or low < request[LOW]
        or high > request[HIGH]
        or (offsets + low < 0).any()
    ):
        return f"{request[DEPTH]} frames of {request[LOW]} to {request[HIGH]}, not {low} to {high}"
    for first in range(request[DONE], len(offsets), request[DEPTH]):
        some = offsets[first : first + request[DEPTH]]
        apart = np.flatnonzero(np.abs(np.diff(some)) > request[NEAR]) + 1
        groups = np.split(some, apart)
        align = request[ALIGN]
        starts = [(group.min() + request[LOW]) // align * align for group in groups]
        stops = [-(-(group.max() + request[HIGH]) // align) * align for group in groups]
        room = np.subtract(stops, starts).sum()
        if room > size:
            return outside("room", size, 0, room)
    return None


def check_fold_units(
    decode, fold, request, src, offsets, rows, starts, step, firsts, count, nbytes, out_nbytes,
    lag, block, group, depth, scratch,
):  # fmt: skip
    if len(rows) != len(offsets) or len(starts) != len(firsts):
        return f"{len(offsets)} frames, {len(rows)} rows, {len(starts)} runs, {len(firsts)} places"
    if min(block, group, depth) < 1 or (group > 1 and block != count):
        return f"blocks of {depth} frames, {group} runs, {block} of {count} units"
    low, high = extent(starts, step, count, nbytes + lag)
    room = depth * group * min(block, count) * out_nbytes
    width = count * out_nbytes // fold[fold_layout.PIXEL_BYTES]
    return (
        check_request(request, len(src), offsets, low, high)
        or outside("room", scratch.nbytes, 0, room)
        or check_decoded(decode, nbytes, out_nbytes)
        or check_folded(fold, rows, firsts, width, group)
    )


def check_fold_in_place(fold, request, src, offsets, rows, starts, firsts, width, depth):
    if depth < 1:
        return f"{depth} frames at a time"
    if len(rows) != len(offsets) or len(starts) != len(firsts):
        return f"{len(offsets)} frames, {len(rows)} rows, {len(starts)} runs, {len(firsts)} places"
    low, high = extent(starts, 0, 1, width * fold[fold_layout.PIXEL_BYTES])
    return check_request(request, len(src), offsets, low, high) or check_folded(
        fold, rows, firsts, width, 1
    )


def check_decoded(decode, nbytes, out_nbytes):
    """Check a decoder called by address."""
    name, _ = called[decode]
    more, less = WIDTHS.get(name, (1, 1))
    if nbytes % DECODERS[name] or out_nbytes != nbytes * more // less:
        return f"units of {nbytes} bytes that become {out_nbytes}"
    return None


def check_folded(fold, rows, firsts, width, group):
    """Check a call of a fold by address, for all runs of some frames."""
    address, nbytes, *arrays = fold[: fold_layout.ROWS].tolist()
    dtype = np.dtype(f"V{nbytes}")
    results, weights = memory_at(*arrays[:4]), memory_at(*arrays[4:])
    # A group is folded as one run: its runs must adjoin, unless their places are unused (all 0).
    if group > 1 and firsts.any() and (np.diff(firsts) != width).any():
        return f"runs of {width} pixels begin at {firsts}"
    first, last = extent(firsts, 0, 1, width)
    if first < 0:
        return outside("pixels", last, first, last)
    nbytes = (last - first) * dtype.itemsize
    data = np.broadcast_to(np.zeros(1, np.uint8), max(1, len(rows)) * nbytes)
    frames = data, np.arange(len(rows)) * nbytes, last - first, rows, first, np.empty(0, dtype)
    name, _ = called[address]
    if name in ("run_program", "fold_each"):
        return CHECKS[name](*frames, results, weights)
    return check_fold(name, *frames, results, weights)


def check_fold_each(data, offsets, width, rows, first, pixels, folds, weights):
    """Check several folds, whose arrays are given by address."""
    for fold in folds:
        own = memory_at(fold[fold_layout.ROWS], 1, rows.max(initial=-1) + 1, 8)[0, rows]
        nbytes = width * fold[fold_layout.PIXEL_BYTES]
        found = check_folded(fold, own, np.array([first]), width, 1) or outside(
            "bytes", len(data), *extent(offsets, 0, 1, nbytes)
        )
        if found:
            return found
    return None


def memory_at(address, rows, columns, itemsize):
    """View memory at an address as a matrix of integers."""
    memory = (ctypes.c_char * (rows * columns * itemsize)).from_address(address)
    return np.frombuffer(memory, f"i{itemsize}").reshape(rows, columns)


def check_add_packed(
    request, src, offsets, rows, starts, step, firsts, count, nbytes, results
):  # fmt: skip
    if nbytes % 24:
        return f"units of {nbytes} bytes"
    low, high = extent(starts, step, count, nbytes)
    places = extent(firsts, nbytes // 24 * 16, count, nbytes // 24 * 16)
    return check_request(request, len(src), offsets, low, high) or outside(
        "pixels", results.size, *places
    )


def check_decode_frames(
    decode, request, src, offsets, places, starts, step, out, dests, out_step, count, nbytes, lag
):
    if len(places) != len(offsets) or len(starts) != len(dests):
        return f"{len(offsets)} frames, {len(places)} places, {len(starts)} runs, {len(dests)}"
    name, _ = called[decode]
    low, high = extent(starts, step, count, nbytes + lag)
    everywhere = np.add.outer(places, dests).ravel()
    more, less = WIDTHS.get(name, (1, 1))
    if nbytes % DECODERS[name]:
        return f"units of {nbytes} bytes"
    return check_request(request, len(src), offsets, low, high) or outside(
        "room", len(out), *extent(everywhere, out_step, count, nbytes * more // less)
    )


def check_unblosc(src, starts, sizes, out, dests, nbytes):
    return check_unbitshuffle(src, starts, sizes, 1, 0, out, dests, nbytes)


def check_unbitshuffle(src, starts, sizes, itemsize, block, out, dests, nbytes):
    if not len(starts) == len(sizes) == len(dests) or min(nbytes, block) < 0 or itemsize < 1:
        return f"{len(starts)} chunks, {len(sizes)} sizes, {len(dests)} places of {nbytes} bytes"
    ends = starts + sizes
    return (
        outside("bytes", len(src), *extent(starts, 0, 1, 0))
        or outside("bytes", len(src), *extent(ends, 0, 1, 0))
        or outside("room", len(out), *extent(dests, 0, 1, nbytes))
    )


def check_pack(src, itemsize, lanes, stride, size, tail, planes, table, scratch, out):
    if len(planes) < 64 or len(table) < 1 << HASH_BITS or len(scratch) < COMPRESSED_BYTES + SLACK:
        return f"room for {len(planes)} planes, {len(table)} places and {len(scratch)} bytes"
    if itemsize not in (1, 2, 4, 8) or src.size % itemsize or stride < 1:
        return f"{src.size} bytes of pixels of {itemsize}, in steps of {stride}"
    if not 0 < size <= COMPRESSED_BYTES or size % GROUP or len(tail) < src.size % GROUP:
        return f"blocks of {size} bytes, and a tail of {len(tail)}"
    if np.may_share_memory(src, out):
        return "the chunk lies where it is packed to"
    return outside("bytes", src.size, 0, PACKED_BYTES.start) or outside(
        "room", len(out), 0, most_encoded("blosc", {"cname": "lz4"}, src.size)
    )


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


def check_halve(pixels, out, step_z, step_y, sums, *, needs_row=True):
    halves = [-(-n // step) for n, step in zip(pixels.shape, (1, step_z, step_y, 2), strict=True)]
    if out.shape != (*halves,) or not {step_z, step_y} <= {1, 2}:
        return f"{pixels.shape} into {out.shape}, by {step_z} and {step_y}"
    return outside("sums", len(sums), 0, pixels.shape[3] * needs_row)


def check_program(data, offsets, width, rows, first, pixels, program, header):
    """Check where all steps of a program read and write, for all pixels of some frames."""
    worker = workers.get(header.ctypes.data)
    if worker is None:
        return "unknown memory of a program"
    columns, per_frame, vector, piece = header[0, :4].tolist()
    if len(rows) != len(offsets) or min(columns, per_frame, vector) < 1 or header.shape < (2, 9):
        return f"{len(rows)} rows for {len(offsets)} frames, {header[0, :4]}"
    parts = [*segments(first, width, columns, vector, piece or max(1, width))]
    if not parts or not len(rows):
        return None
    own = [*getattr(worker, "_tiles", ()), *getattr(worker, "_moved", ())]
    for one in (worker, *getattr(worker, "_others", ())):
        own += one.arrays
    size = int(header[0, step_layout.PIXEL_BYTES])
    work = Work(data, offsets, size, rows, np.array(parts), per_frame, own)
    return next(filter(None, map(work.check, program)), None)


def segments(first, width, columns, vector, piece):
    """Yield the vectors of a frame: pixel of the tile, length, line and column."""
    for begin in range(0, width, piece):
        done, stop = begin, min(begin + piece, width)
        while done < stop:
            line, column = divmod(first + done, columns)
            n = min(vector, columns - column, stop - done)
            yield done, n, line, column
            done += n


class Work:
    """Vectors of frames that a program works on, and the ``memory`` that it may touch."""

    def __init__(self, data, offsets, size, rows, parts, per_frame, memory):
        self.data, self.offsets, self.size, self.memory = data, offsets, size, memory
        self.rows = rows[:, None] * per_frame + parts[:, 2]
        self.done, self.n, _, self.column = parts.T

    def check(self, step):
        address, data, count, group = step[: step_layout.PLACES].tolist()
        if (self.n % group).any() or (self.column % group).any():
            return f"vectors of {self.n} pixels from {self.column} on, in groups of {group}"
        call = called.get(address, ("", ())) if data < 0 else ("loop", loops.get((address, data)))
        name, sizes = call
        if not sizes or count != (4 if data < 0 else len(sizes)):
            return f"unknown function with {count} operands"
        places = step[step_layout.PLACES :].reshape(-1, step_layout.PLACE_COLUMNS)[:count]
        is_of_frames = data == step_layout.FRAMES
        bins = int(places[1, step_layout.BASE]) if is_of_frames else 0
        for k, (size, place) in enumerate(zip(sizes, places.tolist(), strict=False)):
            if name == "loop":
                reach = (self.n // group - 1) * place[step_layout.STEP] + size
            else:
                reach = size * touched(name, k, self.n // group, group, sizes[0], bins)
            if np.any(reach):
                found, problem = self.operand(f"operand {k} of {name}", place, reach, group)
                if problem:
                    return problem
                bins = int(found.reshape(-1)[0]) if name == "bins" and k == 1 else bins
        return None

    def operand(self, what, place, reach, group):
        """Return the memory of an operand, and the problem if ``reach`` bytes of it lie outside."""
        mode, base, row_bytes, numbers, step = place
        if mode == step_layout.TILE:
            at = base + self.offsets[:, None] + self.done * self.size
            return self.data, outside(what, self.data.nbytes, at.min(), (at + reach).max())
        at = np.full(1, base)
        if mode == step_layout.ARRAY:
            row = self.rows
            if numbers:
                stop = numbers + 8 * (int(row.max()) + 1)
                table, problem = self.inside(f"rows of {what}", numbers + 8 * row.min(), stop)
                if problem:
                    return None, problem
                row = table.reshape(-1)[row + (numbers - table.ctypes.data) // 8]
            at = base + row * row_bytes + self.column // group * step
        return self.inside(what, at.min(), (at + reach).max())

    def inside(self, what, first, stop):
        """Return the array that holds some bytes, and the problem if none does."""
        for array in self.memory:
            if array.ctypes.data <= first and stop <= array.ctypes.data + array.nbytes:
                return array, None
        return None, f"{what}: bytes {first} to {stop} outside of all arrays"


def touched(name, k, n, group, size, bins):
    """Return how many pixels of an operand a primitive touches; ``size`` is the first item size.

    ``bins`` are those of a histogram, or pixels from one row of results to the next.
    """
    several = {ALL: n, ONE: 1, PAIR: 2, GROUPS: n * group}
    several |= {VALUES: 1 << 8 * size, TABLES: 4 << 8 * size, ROWS: 2 * bins + n}
    return {**several, BINS: bins, EDGES: bins + 1, NONE: 0}[PRIMITIVES[of_native(name)][k]]


def check_weighted(frames, places, masks, weights, sums):
    if not len(places) == len(masks) == len(weights) or len(frames) != len(sums):
        return f"{len(places)} places, {len(masks)} masks, {len(frames)} frames, {len(sums)} sums"
    if not len(places):
        return None
    ends = (places, frames.shape[1], "pixels"), (masks, sums.shape[1], "masks")
    found = (outside(what, size, int(x.min()), int(x.max()) + 1) for x, size, what in ends)
    return next(filter(None, found), None)


def check_index_words(src, at, rows, times, kinds, state):
    count = len(src) // 8
    least = state[ROW] + 3 + len(src) // INDEXED_BYTES
    return outside("rows", len(rows), 0, least) or outside(
        "edges", min(len(times), len(kinds)), 0, count
    )


def check_whole_bytes(src):
    return f"{len(src)} bytes" if len(src) % 8 else None


def check_decode_hits(src, time, wide, hits):
    return f"{len(src)} bytes" if len(src) % 8 else None


def check_add_hits(
    hits, marks, per_mark, step, width, with_tot, numbers, places, columns, apart, out
):  # fmt: skip
    if not len(marks) or len(numbers) != len(places) or per_mark < 1 or step < 1:
        return f"{len(marks)} marks, {len(numbers)} frames at {len(places)} places"
    pixels = hits["y"].astype("i8") * width + hits["x"]
    columns = columns if len(columns) else apart * np.arange(width**2)
    return outside("pixels", len(columns), *extent(pixels, 0, 1, 1)) or check_places(
        places, columns, out
    )


def check_index_lines(data, width, starts, state):
    return f"state {state}" if (state < 0).any() or state[2] > len(starts) else None


def check_add_lines(data, at, lines, width, rows, columns, out, most):
    if min(at, lines, width) < 0 or most > np.iinfo(out.dtype).max:
        return f"{lines} lines of {width} pixels, from byte {at}, up to {most}"
    return outside("rows", len(rows), 0, lines * width) or check_places(rows, columns, out)


def check_index_scan(data, offset, nbytes, rows):
    if nbytes < 2 or len(data) % 2 or rows[0, 0] > offset:
        return f"{len(data)} bytes from {offset}, after a piece at {rows[0, 0]}, of {nbytes} bytes"
    return outside("pieces", len(rows), 0, len(data) // 2 + 1)


def check_add_scan(
    data, places, sizes, starts, states, shift, first, rows, words, by_pixel, out
):  # fmt: skip
    if not len(places) == len(sizes) == len(starts) == len(states) or not 0 <= shift < 12:
        return f"{len(places)} pieces, {len(sizes)} sizes, {len(states)} states, {shift} bits"
    return (
        outside("words", len(words), 0, NEXT_PIXEL + 1)
        or outside("bytes", len(data), *extent(places, 0, 1, 0))
        or outside("bytes", len(data), *extent(places + sizes, 0, 1, 0))
        or check_places(rows, words, out)
    )


def check_add_channels(data, places, sizes, starts, first, rows, words, channels, out):
    if not len(places) == len(sizes) == len(starts) or len(words) <= NEXT_PIXEL or not len(rows):
        return f"{len(places)} pieces, {len(sizes)} sizes, {len(words)} words, {len(rows)} rows"
    return (
        outside("bytes", len(data), *extent(places, 0, 1, 0))
        or outside("bytes", len(data), *extent(places + sizes, 0, 1, 0))
        or outside("rows", len(rows), *extent(starts - first, 0, 1, 0))
        or check_places(rows, words, out)
    )


def check_count_words(data, places, sizes, numbers):
    if len(places) != len(sizes) or len(numbers) != 2 * (NEXT_PIXEL + 1):
        return f"{len(places)} pieces, {len(sizes)} sizes, {len(numbers)} numbers"
    return outside("bytes", len(data), *extent(places, 0, 1, 0)) or outside(
        "bytes", len(data), *extent(places + sizes, 0, 1, 0)
    )


def check_count_pixels(data, places, sizes, counts, ends):
    if not len(places) == len(sizes) == len(counts) == len(ends) or (sizes < 2).any():
        return f"{len(places)} pieces, {len(sizes)} sizes, {len(counts)} counts, {len(ends)} ends"
    return outside("bytes", len(data), *extent(places, 0, 1, 0)) or outside(
        "bytes", len(data), *extent(places + sizes, 0, 1, 0)
    )


def check_places(rows, columns, out):
    """Check that pixels of events lie inside of the output."""
    if not len(rows) or not len(columns):
        return None
    return outside("room", len(out), 0, int(rows.max()) + int(columns.max()) + 1)


CHECKS = {
    "run_program": check_program,
    **dict.fromkeys(("add_channels", "add_pixels"), check_add_channels),
    "count_words": check_count_words,
    "count_pixels": check_count_pixels,
    "index_words": check_index_words,
    "whole_bytes": check_whole_bytes,
    "decode_hits": check_decode_hits,
    "add_hits": check_add_hits,
    "index_lines": check_index_lines,
    "add_lines": check_add_lines,
    "index_scan": check_index_scan,
    "add_scan": check_add_scan,
    "halve_counts": partial(check_halve, needs_row=False),
    "halve_floats": check_halve,
    "halve_long": partial(check_halve, needs_row=False),
    "halve_modes": partial(check_halve, needs_row=False),
    "fold_units": check_fold_units,
    "fold_in_place": check_fold_in_place,
    "fold_each": check_fold_each,
    "add_packed": check_add_packed,
    "decode_frames": check_decode_frames,
    "unbitshuffle": check_unbitshuffle,
    "unblosc": check_unblosc,
    "pack": check_pack,
    "correct": check_correct,
    "repair": check_repair,
    "weighted_sums": check_weighted,
}
