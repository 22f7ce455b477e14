"""Decoding kernels equal formulas in NumPy, and are compiled once and on demand."""

import importlib
from fractions import Fraction

import numpy as np
import pytest
from checks import ran
from hypothesis import given, settings
from hypothesis import strategies as st

kernels = importlib.import_module("dask_tiled.kernels.decoding")
GUARD = 0x5A


def swapped(size):
    return lambda unit: unit.reshape(-1, size)[:, ::-1]


def lanes(*, lowest_first):
    """Decode a word: the 16-bit lanes of a big-endian number."""
    return lambda unit: unit.view(">u2")[:: -1 if lowest_first else 1].astype("u4")


def joined(*, lowest_first):
    pixels = lanes(lowest_first=lowest_first)
    return lambda unit: pixels(unit[:8]) * 4096 + pixels(unit[8:])


def unpacked(unit):
    """Decode pixels of 12 bits, lowest bits first."""
    bits = np.unpackbits(unit, bitorder="little").reshape(-1, 12)
    return (bits * (1 << np.arange(12))).sum(axis=1).astype("u2")


def conjugated(unit):
    """Flip the last bit of a little-endian number: the sign of the imaginary part."""
    return unit ^ (0x80 * (np.arange(unit.size) == unit.size - 1)).astype("u1")


def moved(unit):
    """Shift a signed big-endian number to an unsigned one."""
    dtype = f">i{unit.size}"
    number = int(unit.view(dtype)[0]) + (1 << (8 * unit.size - 1))
    return np.frombuffer(number.to_bytes(unit.size, "little"), "u1")


# By kernel: unit sizes, ratio of output to input, and the formula for a unit (joined with the unit
# behind the lag, if any).
FORMULAS = {
    "copy": (range(1, 41), 1, lambda unit: unit),
    "truth": (range(1, 41), 1, lambda unit: unit != 0),
    "swap2": (range(2, 41, 2), 1, swapped(2)),
    "swap4": (range(4, 41, 4), 1, swapped(4)),
    "swap8": (range(8, 41, 8), 1, swapped(8)),
    "biased": ([1, 2, 4, 8], 1, moved),
    "unpack12": ([24, 48], Fraction(4, 3), unpacked),
    "bits": ([8], 8, lambda unit: np.unpackbits(unit)[::-1]),
    "bits_reversed": ([8], 8, np.unpackbits),
    "join24": ([8], 2, joined(lowest_first=True)),
    "conjugate": ([8, 16], 1, conjugated),
    "real": ([4, 8], 2, lambda unit: np.append(unit, np.zeros_like(unit))),
    "join24_reversed": ([8], 2, joined(lowest_first=False)),
}


@st.composite
def calls(draw, sizes, scale, *, lag):
    """Draw the arguments of a kernel: output units are disjoint, input units may overlap."""
    nbytes = draw(st.sampled_from(list(sizes)))
    size = int(nbytes * scale)
    count = draw(st.integers(1, 9))
    n_runs = draw(st.integers(1, 6))
    step = draw(st.sampled_from([nbytes, nbytes, -nbytes, 0]) | st.integers(-60, 60))
    hop = draw(st.sampled_from([size, size, size + draw(st.integers(0, 11)), n_runs * size]))
    sign = draw(st.sampled_from([1, 1, -1]))
    order = np.array(draw(st.permutations(range(n_runs))), dtype=np.int64)
    interleaved = hop == n_runs * size
    dests = order * (size if interleaved else count * hop) + draw(st.integers(0, 9))
    if sign < 0:
        dests += (count - 1) * hop
    delay = draw(st.integers(8, 40)) if lag else 0
    low = max(0, -step * (count - 1))
    starts = np.array(
        draw(st.lists(st.integers(low, low + 70), min_size=n_runs, max_size=n_runs)), dtype=np.int64
    )
    src_size = int(starts.max()) + max(0, step * (count - 1)) + nbytes + delay
    out_size = int(dests.max()) + max(0, sign * hop * (count - 1)) + size + draw(st.integers(0, 9))
    src = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, src_size, "u1")
    src.flags.writeable = draw(st.booleans())
    return src, starts, step, out_size, dests, sign * hop, count, nbytes, delay


@pytest.mark.parametrize("name", FORMULAS)
@settings(deadline=None)  # the first call compiles
@given(data=st.data())
def test_kernels_equal_their_formulas(name, data):
    sizes, scale, formula = FORMULAS[name]
    src, starts, step, out_size, dests, out_step, count, nbytes, lag = data.draw(
        calls(sizes, scale, lag=name.startswith("join"))
    )
    out = np.full(out_size, GUARD, "u1")
    expected = out.copy()
    for start, dest in zip(starts.tolist(), dests.tolist(), strict=True):
        for k in range(count):
            at = start + k * step
            unit = src[at : at + nbytes]
            if lag:
                unit = np.concatenate([unit, src[at + lag : at + lag + nbytes]])
            pixels = np.ascontiguousarray(formula(unit)).view("u1").reshape(-1)
            place = dest + k * out_step
            expected[place : place + len(pixels)] = pixels

    kernel = kernels.compiled(name)
    kernel(src, starts, step, out, dests, out_step, count, nbytes, lag)

    np.testing.assert_array_equal(out, expected)  # the guard bytes too


@pytest.mark.parametrize("name", FORMULAS)
def test_runs_longer_than_vector_loops(name):
    """A thousand adjacent units are decoded from an odd address to an odd address."""
    sizes, scale, formula = FORMULAS[name]
    nbytes = 8 if 8 in sizes else min(sizes)
    count = 1000
    lag = nbytes * count if name.startswith("join") else 0
    src = np.random.default_rng(0).integers(0, 256, nbytes * 2 * count + 1, "u1")
    width = int(nbytes * scale)
    out, none = np.full(width * count + 2, GUARD, "u1"), np.zeros(0, "i8")
    kernel = kernels.compiled(name)
    kernel(src, none, nbytes, out, none, width, count, nbytes, lag)  # no runs at all
    assert (out == GUARD).all()
    kernel(src, np.array([1]), nbytes, out, np.array([1]), width, count, nbytes, lag)

    units = src[1 : 1 + nbytes * count].reshape(count, nbytes)
    if lag:
        units = np.hstack([units, src[1 + lag : 1 + lag + nbytes * count].reshape(count, nbytes)])
    expected = [np.ascontiguousarray(formula(unit)).view("u1").reshape(-1) for unit in units]
    np.testing.assert_array_equal(out[1:-1], np.concatenate(expected))
    assert out[0] == out[-1] == GUARD


def test_every_kernel_has_a_formula():
    parameters = ("src", "starts", "step", "out", "dests", "out_step", "count", "nbytes", "lag")
    found = {
        name
        for name, value in vars(kernels).items()
        if getattr(value, "__module__", None) == kernels.__name__
        and getattr(getattr(value, "__code__", None), "co_varnames", ())[:9] == parameters
    }
    assert found == set(FORMULAS)


def test_kernels_release_the_gil():
    corrections = importlib.import_module("dask_tiled.kernels.corrections")
    single = np.dtype("f4")
    corrected = corrections.correct_kernel(np.dtype("u2"), single)
    for kernel in (kernels.compiled("copy"), corrected, corrections.repair_kernel(single)):
        assert kernel.targetoptions["nogil"]
        assert not kernel.targetoptions.get("parallel")
    assert kernels.compiled("copy") is kernels.compiled("copy")


def test_each_kernel_is_compiled_once():
    kernel = kernels.compiled("swap2")
    zero, out, src = np.zeros(1, "i8"), np.zeros(8, "u1"), np.zeros(8, "u1")
    for writeable in (True, False):
        src.flags.writeable = writeable
        kernel(src, zero, 8, out, zero, 8, 1, 8, 0)
    assert len(kernel.signatures) == 1


@pytest.mark.slow
def test_importing_and_opening_compile_nothing(tmp_path):
    (tmp_path / "a.raw").write_bytes(bytes(range(64)))
    code = f"""
import sys, dask_tiled
raw = dict(dtype=">u2", sig_shape=(4, 4), nav_shape=-1)
arr = dask_tiled.open_dataset({str(tmp_path / "a.raw")!r}, "raw", **raw)
arr[0].dask, repr(arr), arr.description._repr_html_()
print("dask_tiled.kernels.decoding" in sys.modules)
arr.compute()
print("dask_tiled.kernels.decoding" in sys.modules)
"""
    assert ran(code, PYTHONWARNINGS="error").split() == ["False", "True"]
