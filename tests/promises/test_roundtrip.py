"""Random files are read bit for bit: shapes, types, gaps, series, chunks and slices."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import basic_indices

from dask_tiled import open_dataset
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_npy, write_raw
from dask_tiled.testing.mib_pixels import WORD_PIXELS

pytestmark = [pytest.mark.usefixtures("synchronous"), pytest.mark.thorough]

NATIVE = [
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"),
    *("M8[ns]", "m8[s]"),
]
DTYPES = [np.dtype(order + name) for name in NATIVE for order in "<>"] + [
    np.dtype("S3"),
    np.dtype("<U2"),
    np.dtype(">U2"),
    np.dtype("V5"),
    np.dtype([("a", "<u2"), ("b", ">f4"), ("c", "?")]),
    np.dtype({"names": ["x", "y"], "formats": [">i2", "<c8"], "offsets": [3, 8], "itemsize": 19}),
    np.dtype([("v", "<f4", (2, 3)), ("n", [("m", ">u2")])]),
]


def native(dtype):
    """Return the dtype of opened pixels; records and strings keep the dtype of the file."""
    return dtype.newbyteorder("=") if dtype.kind in "biufcmM" else dtype


def random_pixels(shape, dtype, seed):
    """Make pixels of any type from random bytes, which include NaN with payloads and NaT."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "U":
        code_points = rng.integers(1, 0xD800, (*shape, dtype.itemsize // 4))
        texts = code_points.astype(dtype.str[0] + "u4")
        return texts.view(dtype).reshape(shape)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


def in_native_order(pixels):
    """Swap bytes without a conversion, which could change the payload of a NaN."""
    if pixels.dtype == native(pixels.dtype):
        return pixels
    return pixels.byteswap().view(native(pixels.dtype))


def assert_same(arr, expected):
    """Compare type, shape and every bit."""
    found = arr.compute()
    if isinstance(found, bytes | str):  # scalars have lost their trailing zeros
        found = np.asarray(found, arr.dtype)
    assert found.dtype == arr.dtype == expected.dtype
    assert found.shape == arr.shape == expected.shape
    if expected.dtype.names is None:
        assert found.tobytes() == expected.tobytes()
    else:  # NumPy copies fields only, not the bytes between them
        for name in expected.dtype.names:
            field = expected[name][()]  # numpy's scalars have native fields
            assert found[name].tobytes() == field.tobytes()


def sizes(total, pieces=5):
    """Draw positive sizes that add up to a total."""
    if total == 1:
        return st.just((1,))
    edges = st.sets(st.integers(1, total - 1), max_size=pieces - 1)
    return edges.map(lambda e: tuple(np.diff([0, *sorted(e), total]).tolist()))


def chunks_of(shape):
    """Draw dask chunks, or None for negotiated ones."""
    return st.none() | st.tuples(*map(sizes, shape))


def forward(n):
    """Draw slices with a positive step, often beyond the ends of the axis, and empty at times."""
    if n == 0:
        return st.just(slice(None))
    bound = st.none() | st.integers(-n - 2, n + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, n + 1))


def backward(n):
    """Draw slices with a negative step: within the axis, as dask errs beyond its ends."""
    start, stop = st.integers(0, n - 1), st.none() | st.integers(0, n - 1)
    return st.builds(slice, start, stop, st.integers(-n, -1)).filter(
        lambda s: len(range(*s.indices(n)))
    )


@st.composite
def other_indices(draw, shape):
    """Draw an index that is left to dask: negative steps, new axes, a list of positions.

    Lists and new axes are not combined, which dask cannot always compute.
    """
    items = [draw(forward(n) | backward(n)) for n in shape]
    if draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        n = shape[axis]
        items[axis] = draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=2 * n))
    else:
        for _ in range(draw(st.integers(0, 2))):
            items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


def part(expected, index):
    """Index an array, and return an array where NumPy would return a scalar."""
    items = index if isinstance(index, tuple) else (index,)
    return expected[items if Ellipsis in items else (*items, Ellipsis)]


def check(data, arr, expected):
    """Compare an array, slices of it, slices of slices, and indices that are left to dask."""
    assert_same(arr, expected)
    index = data.draw(basic_indices(expected.shape), label="index")
    first = part(expected, index)
    assert_same(arr[index], first)
    again = data.draw(basic_indices(first.shape), label="index of the part")
    assert_same(arr[index][again], part(first, again))
    if expected.ndim:
        other = data.draw(other_indices(expected.shape), label="other index")
        lazy = arr[other]
        if expected.dtype.kind in "UV":  # NumPy concatenates strings in native order
            lazy = lazy.map_blocks(np.ndarray.astype, expected.dtype, dtype=expected.dtype)
        assert_same(lazy, expected[other])


def shapes(ndim, largest):
    return st.lists(st.integers(1, largest), min_size=ndim[0], max_size=ndim[1]).map(tuple)


backends = st.sampled_from(["auto", *BACKENDS])
bytes_between = st.just(0) | st.integers(0, 40)


@given(data=st.data())
def test_raw_files(tmp_path_factory, data):
    """Every bit is right for any dtype, byte order, gaps, split into files and chunks."""
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    nav = draw(shapes((1, 3), 4), label="nav")
    sig = draw(shapes((1, 3), 7), label="sig")
    gaps = {
        name: draw(bytes_between, label=name)
        for name in ("file_header", "frame_header", "frame_footer")
    }
    count = math.prod(nav)
    split = draw(sizes(count), label="frames per file")
    frames = random_pixels((count, *sig), dtype, draw(st.integers(0, 9), label="seed"))
    folder = tmp_path_factory.mktemp("raw")
    paths = []
    for i, (stop, n) in enumerate(zip(itertools.accumulate(split), split, strict=True)):
        part = frames[stop - n : stop]
        paths.append(write_raw(folder / f"{i}.bin", part, sig_dims=len(sig), **gaps))
    shown = draw(st.sampled_from([nav, (count,), (max(1, count - 1),)]), label="nav_shape")
    expected = in_native_order(frames)[: math.prod(shown)].reshape(shown + sig)
    arr = open_dataset(
        paths if len(paths) > 1 else paths[0],
        "raw",
        dtype=dtype,
        nav_shape=shown if draw(st.booleans()) or shown != (count,) else None,
        sig_shape=sig,
        chunks=draw(chunks_of(expected.shape), label="chunks"),
        io=draw(backends, label="io"),
        **gaps,
    )
    check(data, arr, expected)


@given(data=st.data())
def test_npy_files(tmp_path_factory, data):
    """Every bit is right for any dtype, version, order and number of axes."""
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    shape = draw(shapes((0, 5), 5), label="shape")
    array = random_pixels(shape, dtype, draw(st.integers(0, 9), label="seed"))
    path = write_npy(
        tmp_path_factory.mktemp("npy") / "array.npy",
        array,
        version=draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]), label="version"),
        order=draw(st.sampled_from("CF"), label="order"),
    )
    options = {}
    sig_dims = draw(st.none() | st.integers(0, len(shape) + 1), label="sig_dims")
    if sig_dims is not None:
        options["sig_dims"] = sig_dims
    arr = open_dataset(
        path,
        chunks=draw(chunks_of(shape), label="chunks"),
        io=draw(backends, label="io"),
        **options,
    )
    dims = min(2 if sig_dims is None else sig_dims, len(shape))
    assert arr.description.nav_shape == shape[: len(shape) - dims]
    assert arr.description.sig_shape == shape[len(shape) - dims :]
    check(data, arr, in_native_order(np.load(path)))


@given(data=st.data())
def test_npy_files_in_other_shapes(tmp_path_factory, data):
    """Frames may have another navigation shape, and in C order another signal shape."""
    draw = data.draw
    nav = draw(shapes((0, 3), 4), label="nav")
    sig = draw(shapes((1, 2), 5), label="sig")
    order = draw(st.sampled_from("CF"), label="order")
    array = counting_frames(nav + sig, draw(st.sampled_from(["u1", ">u2", "<f4"]), label="dtype"))
    path = write_npy(tmp_path_factory.mktemp("npy") / "array.npy", array, order=order)
    options = {"sig_dims": len(sig)}
    elements = in_native_order(array).ravel()
    if order == "C" and draw(st.booleans(), label="other frames"):
        sig = (draw(st.integers(1, array.size), label="frame size"),)
        options = {"sig_shape": sig}
    count = elements.size // math.prod(sig)
    first = draw(st.integers(1, count), label="frames shown")
    new = draw(st.sampled_from([(first,), (1, first), (first, 1, 1)]), label="nav_shape")
    expected = elements[: first * math.prod(sig)].reshape(new + sig)
    chunks = draw(chunks_of(expected.shape), label="chunks")
    check(data, open_dataset(path, nav_shape=new, chunks=chunks, **options), expected)


@st.composite
def captures(draw):
    """Draw frames of a Merlin camera, and options of the writer."""
    kind = draw(st.sampled_from(["U08", "U16", "U32", "R64", "R64", "R64", "R64"]))
    quad = draw(st.booleans())
    depth, bits = None, {"U08": 8, "U16": 16, "U32": 32}.get(kind, 0)
    height, width = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    if kind == "R64":
        depth = bits = draw(st.sampled_from([1, 6, 12, 24]))
        across = WORD_PIXELS[depth] * (2 if quad else 1)
        width = across * draw(st.integers(1, 3 if depth > 1 else 2))
        height *= 2 if quad else 1
    dtype = {1: "u1", 6: "u1", 8: "u1", 12: "u2", 16: "u2", 24: "u4", 32: "u4"}[bits]
    nav = draw(shapes((1, 3), 4))
    dacs = draw(st.booleans())
    shortest = 700 if dacs and quad else 360 if dacs else 220
    options = {
        "kind": kind,
        "depth": depth,
        "quad": quad,
        "dacs": dacs,
        "header_size": draw(st.none() | st.integers(shortest, 5000)),
        "first_sequence": draw(st.integers(1, 2_000_000)),
        "hdr": draw(st.booleans()),
        "scan_keys": len(nav) == 2 and draw(st.booleans()),
    }
    return counting_frames((*nav, height, width), dtype, bits=bits), options


def hdr_shape(nav, *, scan_keys):
    """Return the scan shape that a .hdr file can express."""
    if scan_keys:
        return nav
    scan = tuple(n for n in (math.prod(nav[:-1]), nav[-1]) if n > 1)
    return scan or (1,)


@given(data=st.data())
def test_mib_files(tmp_path_factory, data):
    """Every pixel type, counter depth and layout is read, from one file or a series."""
    draw = data.draw
    frames, options = draw(captures(), label="capture")
    nav, sig = frames.shape[:-2], frames.shape[-2:]
    count = math.prod(nav)
    folder = tmp_path_factory.mktemp("mib")
    per_file = draw(st.none() | st.integers(1, count), label="frames per file")
    if per_file is None:
        paths = [write_mib(folder / "scan.mib", frames, **options)]
    else:
        digits = draw(st.integers(1, 3), label="digits")
        paths = write_mib_series(
            folder / "scan", frames, frames_per_file=per_file, digits=digits, **options
        )
    ways = ["member", "list"] + ["hdr"] * options["hdr"]
    way = draw(st.sampled_from(ways), label="way")
    target = {
        "member": lambda: draw(st.sampled_from(paths), label="member"),
        "list": lambda: draw(st.permutations(paths), label="list"),
        "hdr": lambda: folder / "scan.hdr",
    }[way]()
    shape = (count,)
    if options["hdr"] and (way != "list" or len(paths) == 1):
        shape = hdr_shape(nav, scan_keys=options["scan_keys"])
    shown = draw(st.sampled_from([None, nav, (count,), (max(1, count - 1),)]), label="nav_shape")
    if shown is not None:
        shape = shown
    elif way == "list":  # this is no test of whether a .hdr is found
        shape = shown = (count,)
    expected = frames.reshape(-1, *sig)[: math.prod(shape)].reshape(shape + sig)
    arr = open_dataset(
        target,
        nav_shape=shown,
        chunks=draw(chunks_of(expected.shape), label="chunks"),
        io=draw(backends, label="io"),
    )
    check(data, arr, expected)
