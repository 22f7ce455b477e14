"""Corrections against a formula in numpy that knows neither tiles nor kernels."""

import copy
import itertools
import math
import os
import pickle
import subprocess
import sys

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import Corrections, DatasetError
from dask_tiled.reading.correction_plans import Plan

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
SINGLE = {"bool", "u1", "i1", "u2", "i2", "f2", "f4"}


def around(pixel, shape):
    """List the pixels of the box around a pixel, with itself, that lie in the frame."""
    axes = [range(max(c - 1, 0), min(c + 2, n)) for c, n in zip(pixel, shape, strict=True)]
    return list(itertools.product(*axes))


def good_neighbours(pixel, shape, excluded):
    return [p for p in around(pixel, shape) if p not in excluded]


def formula(frames, dark, gain, excluded, dtype):
    """Correct whole frames, and tell how far from it the means may be."""
    shape = frames.shape[1:]
    dark = np.zeros(shape) if dark is None else dark
    gain = np.ones(shape) if gain is None else gain
    out = (frames.astype(dtype) - dark.astype(dtype)) * gain.astype(dtype)
    expected, slack = out.astype("f8"), np.zeros(out.shape)
    for f, pixel in itertools.product(range(len(frames)), excluded):
        values = [float(out[(f, *p)]) for p in good_neighbours(pixel, shape, excluded)]
        mean = expected[(f, *pixel)] = math.fsum(values) / len(values)
        # Half a unit in the last place of the result, and roundings of a sum in float64.
        sums = len(values) * 2**-52 * max(map(abs, values))
        slack[(f, *pixel)] = np.finfo(dtype).eps / 2 * abs(mean) + sums
    return expected, slack


def parts(length, cuts):
    edges = [0, *sorted(cuts), length]
    return list(itertools.pairwise(edges))


def run(corrections, frames, sig, cuts, dtype):
    """Correct what a lattice shows, in tiles cut at any place of any axis."""
    shape = frames.shape[1:]
    lengths = [length for *_, length in sig]
    out = np.full((len(frames), *lengths), 12345.0, dtype)
    n_halos = 0
    for box in itertools.product(*map(parts, (len(frames), *lengths), cuts)):
        (first, last), *place = box
        tile_sig = [
            (start + step * a, step, b - a)
            for (start, step, _), (a, b) in zip(sig, place, strict=True)
        ]
        plan = Plan(corrections, tile_sig, shape)
        picked = np.ix_(*(start + step * np.arange(n) for start, step, n in tile_sig))
        tile = np.ascontiguousarray(frames[first:last][(slice(None), *picked)])
        tile.flags.writeable = False
        result = np.full(tile.shape, 54321.0, dtype)
        plan.apply(tile, result)
        for halo in plan.halos:
            block = frames[(slice(first, last), *(slice(*edges) for edges in halo.box))]
            halo.repair(np.ascontiguousarray(block), result)
        out[(slice(first, last), *(slice(*edges) for edges in place))] = result
        n_halos += len(plan.halos)
    return out, n_halos


def draw_frames(draw, native, n_frames, shape, rng):
    if native.kind == "b":
        return rng.random((n_frames, *shape)) < 0.5
    if native.kind == "f":
        scale = 10.0 ** draw(st.integers(-2, 4))
        return (rng.standard_normal((n_frames, *shape)) * scale).astype(native)
    info = np.iinfo(native)
    high = draw(st.sampled_from([int(info.max), 100]))
    low = max(int(info.min), -high)
    return rng.integers(low, high, (n_frames, *shape), native, endpoint=True)


@st.composite
def cases(draw):
    """Draw frames, corrections, a lattice of pixels, and places to cut it into tiles."""
    native = np.dtype(draw(st.sampled_from(DTYPES)))
    ndim = draw(st.integers(1, 3))
    most = (30, 9, 5)[ndim - 1]
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=ndim, max_size=ndim)))
    n_frames = draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    frames = draw_frames(draw, native, n_frames, shape, rng)

    def plane(values):
        kind = draw(st.sampled_from([None, "f4", "f8", "i2"]))
        return None if kind is None else values.astype(kind)

    dark = plane(rng.normal(20, 5, shape))
    gain = plane(rng.normal(1, 2, shape))
    # From a few scattered pixels to clusters that leave little between them.
    mask = rng.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.6]))
    excluded = {tuple(p) for p in np.argwhere(mask).tolist()}
    excluded = {p for p in excluded if good_neighbours(p, shape, excluded)}
    mask[...] = False
    for pixel in excluded:
        mask[pixel] = True
    if native.kind == "f" and draw(st.booleans()):
        frames[:, mask] = np.nan  # what an excluded pixel holds counts for nothing

    given_pixels = draw(st.sampled_from([mask, np.argwhere(mask), sorted(excluded)]))
    if ndim == 1 and draw(st.booleans()):
        given_pixels = np.flatnonzero(mask)

    sig, cuts = [], [draw(st.lists(st.integers(0, n_frames), max_size=2))]
    for size in shape:
        start = draw(st.integers(0, size - 1))
        step = draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2]))
        room = len(range(start, size if step > 0 else -1, step))
        length = room if draw(st.booleans()) else draw(st.integers(1, room))
        sig.append((start, step, length))
        cuts.append(draw(st.lists(st.integers(0, length), max_size=3)))
    if draw(st.booleans()):
        sig = [(0, 1, size) for size in shape]
    wide = draw(st.booleans())
    dtype = np.dtype("f8") if wide else np.result_type(native, "f4")
    return frames, dark, gain, excluded, given_pixels, sig, cuts, dtype


@given(case=cases())
def test_corrections_are_their_formula(case):
    """Whatever the type, the lattice and the tiles; good pixels to the last bit."""
    frames, dark, gain, excluded, pixels, sig, cuts, dtype = case
    corrections = Corrections(dark, gain, pixels)
    corrections.check(frames.shape[1:], "scan")
    expected, slack = formula(frames, dark, gain, excluded, dtype)
    picked = (slice(None), *np.ix_(*(start + step * np.arange(n) for start, step, n in sig)))

    result, _ = run(corrections, frames, sig, cuts, dtype)

    assert (np.abs(result - expected[picked]) <= slack[picked]).all()


@given(case=cases())
def test_tiles_of_any_cut_give_the_same_bits(case):
    frames, dark, gain, _, pixels, sig, cuts, dtype = case
    corrections = Corrections(dark, gain, pixels)
    whole, _ = run(corrections, frames, sig, [[] for _ in cuts], dtype)
    tiles, _ = run(corrections, frames, sig, cuts, dtype)
    np.testing.assert_array_equal(tiles, whole)


@given(case=cases())
def test_halos_are_the_pixels_with_neighbours_elsewhere(case):
    frames, dark, gain, excluded, pixels, sig, _, _ = case
    shape = frames.shape[1:]
    shown = set(itertools.product(*([s + t * k for k in range(n)] for s, t, n in sig)))
    boxes = set()
    for pixel in shown & excluded:
        if not shown.issuperset(good_neighbours(pixel, shape, excluded)):
            near = np.array(around(pixel, shape))
            boxes.add(tuple(zip(near.min(axis=0), near.max(axis=0) + 1, strict=True)))
    plan = Plan(Corrections(dark, gain, pixels), sig, shape)
    assert {halo.box for halo in plan.halos} == boxes


def test_the_whole_frame_has_no_halos():
    mask = np.zeros((5, 7), bool)
    mask[[0, 0, 4, 2, 2], [0, 6, 3, 2, 3]] = True
    assert Plan(Corrections(excluded_pixels=mask), [(0, 1, 5), (0, 1, 7)]).halos == ()


def test_means_are_summed_in_float64():
    """In float32, 2**24 + 1 is 2**24."""
    frame = np.ones((1, 3, 3), "f4")
    frame[0, 0, 0] = 2**24
    out = np.empty_like(frame)
    Plan(Corrections(excluded_pixels=[(1, 1)]), [(0, 1, 3), (0, 1, 3)], (3, 3)).apply(frame, out)
    assert out[0, 1, 1] == np.float32((2**24 + 7) / 8)


def test_a_halo_by_hand():
    """A pixel in the corner of a tile: one dead neighbour, the others on four tiles."""
    frame = np.arange(25, dtype="u2").reshape(1, 5, 5)
    corrections = Corrections(excluded_pixels=[(2, 2), (1, 1)])
    plan = Plan(corrections, [(2, 1, 3), (2, 1, 3)], (5, 5))
    out = np.empty((1, 3, 3), "f4")
    plan.apply(np.ascontiguousarray(frame[:, 2:, 2:]), out)
    (halo,) = plan.halos
    assert halo.box == ((1, 4), (1, 4))
    halo.repair(np.ascontiguousarray(frame[:, 1:4, 1:4]), out)
    expected = frame[0, 2:, 2:].astype("f4")
    expected[0, 0] = (7 + 8 + 11 + 13 + 16 + 17 + 18) / 7
    np.testing.assert_array_equal(out[0], expected)


@pytest.mark.parametrize("pixels", [None, [[300, 300]]])
@pytest.mark.parametrize("native", DTYPES)
def test_frames_larger_than_a_block_of_the_kernel(native, pixels):
    """Vector loops and what is left over of them, for every type."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 2, (3, 301, 307)).astype(native)
    dark, gain = rng.random(frames.shape[1:]), rng.random(frames.shape[1:])
    corrections = Corrections(dark, gain, pixels)
    dtype = corrections.dtype(np.dtype(native))
    expected, slack = formula(frames, dark, gain, {tuple(p) for p in pixels or ()}, dtype)
    result, _ = run(corrections, frames, [(0, 1, 301), (0, 1, 307)], [[], [], []], dtype)
    assert (np.abs(result - expected) <= slack).all()


@pytest.mark.parametrize("native", DTYPES)
def test_dtype(native):
    expected = np.dtype("f4" if native in SINGLE else "f8")
    assert Corrections(dark=[1]).dtype(np.dtype(native)) == expected
    assert expected == np.result_type(native, "f4")


@pytest.mark.parametrize("native", ["c8", "c16", "g", "O", "S3", "M8[s]", "i2, f4"])
def test_pixels_that_cannot_be_corrected(native):
    with pytest.raises(DatasetError, match="cannot be corrected") as caught:
        Corrections(dark=[1]).dtype(np.dtype(native))
    assert caught.value.expected
    assert caught.value.found == np.dtype(native)


def test_values_are_copied_and_cannot_be_written():
    dark, mask = np.ones((2, 3), "f4"), np.eye(2, 3, dtype=bool)
    corrections = Corrections(dark=dark, excluded_pixels=mask)
    before = hash(corrections)
    dark[...] = 7
    mask[...] = True
    assert (corrections.dark == 1).all()
    assert corrections.excluded_pixels.tolist() == [[0, 0], [1, 1]]
    for one in (corrections, pickle.loads(pickle.dumps(corrections)), copy.deepcopy(corrections)):
        for array in (one.dark, one.excluded_pixels):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(AttributeError):
            one.gain = dark
        assert hash(one) == before


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dark": np.ones((3, 3))},
        {"dark": [[0.1]], "gain": [[2]], "excluded_pixels": [[0, 0]]},
        {"excluded_pixels": np.eye(3, dtype=bool)},
    ],
    ids=["nothing", "dark", "all", "mask"],
)
def test_pickled_values_are_equal(options):
    corrections = Corrections(**options)
    again = pickle.loads(pickle.dumps(corrections))
    assert again == corrections == Corrections(**options)
    assert hash(again) == hash(Corrections(**options))
    assert again.sig_shape == corrections.sig_shape
    assert dask.base.tokenize(again) == dask.base.tokenize(Corrections(**options))


DIFFERENT = """[
    Corrections(),
    Corrections(dark=[1, 2]),
    Corrections(dark=[1, 3]),
    Corrections(dark=[[1, 2]]),
    Corrections(dark=[0.1, 2]),
    Corrections(gain=[1, 2]),
    Corrections(dark=[1, 2], gain=[1, 2]),
    Corrections(excluded_pixels=[1, 2]),
    Corrections(excluded_pixels=[[1, 2]]),
    Corrections(excluded_pixels=[False, True, True]),
    Corrections(excluded_pixels=[False, True, True, False]),
    Corrections(excluded_pixels=[False, False]),
]"""


def test_different_content_is_different():
    values = eval(DIFFERENT)  # noqa: S307 - the text above, which another process runs too
    assert len(set(values)) == len({dask.base.tokenize(v) for v in values}) == len(values)
    assert all(a != b for a, b in itertools.combinations(values, 2))
    assert Corrections() != ()


@pytest.mark.slow
def test_tokens_are_the_same_in_every_process():
    code = f"""
from dask.base import tokenize
from dask_tiled import Corrections
from dask_tiled.reading.correction_plans import Plan
print(*map(tokenize, {DIFFERENT}))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = " ".join(map(dask.base.tokenize, eval(DIFFERENT)))  # noqa: S307 - as above
    assert outputs == {here + "\n"}


def test_tokens_are_plain_values():
    """Dask hashes what an object says of itself, and does not look inside of that."""
    token = Corrections(np.ones((64, 64))).__dask_tokenize__()
    assert all(type(part) is str for part in token)


def test_the_same_content_is_the_same_however_given():
    by_float = Corrections(dark=np.arange(6.0).reshape(2, 3), excluded_pixels=[(1, 2), (0, 0)])
    by_int = Corrections(dark=np.arange(6).reshape(2, 3), excluded_pixels=[(0, 0), (1, 2), (0, 0)])
    fortran = Corrections(np.asfortranarray(np.arange(6).reshape(2, 3)), None, [(0, 0), (1, 2)])
    assert by_float == by_int == fortran
    assert fortran.dark.flags.c_contiguous
    assert Corrections(excluded_pixels=[]) == Corrections()
    assert Corrections(excluded_pixels=[3]) == Corrections(excluded_pixels=[[3]])


def test_type_of_stored_values():
    """Half the memory, and half of what a graph carries, where nothing is lost by it."""
    assert Corrections(dark=np.arange(3)).dark.dtype == "f4"
    assert Corrections(dark=[0.1]).dark.dtype == "f8"


def test_repr():
    text = repr(Corrections(gain=np.ones((9, 9)), excluded_pixels=[(1, 1)]))
    assert text == "<Corrections: gain, 1 excluded pixels>"
    assert repr(Corrections()) == "<Corrections: none>"


@pytest.mark.parametrize("name", ["dark", "gain"])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, np.nan],
        [1.0, -np.inf],
        [1e39, 1.0],
        [1j, 2.0],
        ["a", "b"],
        [None, 1],
        [[1], [1, 2]],
        np.array([1, 2], "M8[s]"),
        np.zeros(2, "i4, f4"),
        np.ma.masked_equal([1, 2], 2),
    ],
    ids=str,
)
def test_values_that_are_no_numbers(name, values):
    with pytest.raises(DatasetError, match=name) as caught:
        Corrections(**{name: values})
    assert caught.value.found is not None


def test_an_error_tells_the_pixel():
    dark = np.ones((4, 5))
    dark[2, 3] = np.nan
    with pytest.raises(DatasetError, match=r"nan at \(2, 3\), one of 1"):
        Corrections(dark=dark)


@pytest.mark.parametrize(
    "pixels",
    [
        [(0, -1)],
        [-1],
        [1.0, 2.0],
        3,
        "abc",
        [[[0, 1]]],
        [[0, 1], [2]],
        [None],
        np.array([[0, 2**63]], "u8"),
        np.ma.masked_equal([1, 2], 2),
    ],
    ids=str,
)
def test_excluded_pixels_that_are_none(pixels):
    with pytest.raises(DatasetError, match="excluded_pixels") as caught:
        Corrections(excluded_pixels=pixels)
    assert caught.value.found is not None


@pytest.mark.parametrize(
    ("corrections", "problem"),
    [
        (Corrections(dark=np.ones((4, 5))), "dark does not have the shape"),
        (Corrections(gain=np.ones((5, 4, 1))), "gain does not have the shape"),
        (Corrections(np.ones((5, 4)), np.ones((4, 5))), "gain does not have the shape"),
        (Corrections(excluded_pixels=np.eye(4, 5, dtype=bool)), "mask of excluded pixels does"),
        (Corrections(excluded_pixels=True), "mask of excluded pixels does"),
        (Corrections(excluded_pixels=[(0, 0, 0)]), "as many coordinates"),
        (Corrections(excluded_pixels=np.eye(5, 4, dtype="u1")), "as many coordinates"),
        (Corrections(excluded_pixels=(3, 2)), "as many coordinates"),
        (Corrections(excluded_pixels=[(0, 0), (4, 4)]), "outside"),
        (Corrections(excluded_pixels=[(5, 0)]), "outside"),
        (Corrections(excluded_pixels=np.ones((5, 4), bool)), "no good neighbour"),
        (Corrections(excluded_pixels=[(0, 0), (0, 1), (1, 0), (1, 1)]), "no good neighbour"),
    ],
)
def test_corrections_that_do_not_suit_the_frames(corrections, problem):
    with pytest.raises(DatasetError, match=problem) as caught:
        corrections.check((5, 4), "scan.mib")
    assert caught.value.path == "scan.mib"
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize(
    "corrections",
    [
        Corrections(),
        Corrections(np.ones((5, 4)), np.ones((5, 4)), np.eye(5, 4, dtype=bool)),
        Corrections(excluded_pixels=[(4, 3), (0, 0), (0, 1), (1, 0)]),
    ],
)
def test_corrections_that_suit_the_frames(corrections):
    corrections.check((5, 4), "scan.mib")


def test_which_pixel_is_wrong():
    with pytest.raises(DatasetError) as caught:
        Corrections(excluded_pixels=[(1, 1), (2, 9), (3, 1)]).check((5, 4), "scan.mib")
    assert caught.value.found == (2, 9)
    with pytest.raises(DatasetError) as caught:
        Corrections(excluded_pixels=[0, 2, 3, 4]).check((5,), "scan.mib")
    assert caught.value.found == (3,)


def test_coordinates_need_the_shape_of_the_frame():
    """Where the frame ends decides what a pixel's neighbours are."""
    corrections = Corrections(excluded_pixels=[(2, 2)])
    assert corrections.sig_shape is None
    with pytest.raises(DatasetError, match="where the frame ends"):
        Plan(corrections, [(0, 1, 3), (0, 1, 3)])
    assert Plan(corrections, [(0, 1, 3), (0, 1, 3)], (3, 3)).halos == ()
    assert Plan(corrections, [(0, 1, 3), (0, 1, 3)], (4, 4)).halos[0].box == ((1, 4), (1, 4))
    shaped = Corrections(gain=np.ones((3, 3)), excluded_pixels=[(2, 2)])
    assert Plan(shaped, [(0, 1, 3), (0, 1, 3)]).halos == ()


def test_one_position_of_an_axis_may_have_any_step():
    frame = np.arange(20, dtype="u2").reshape(1, 4, 5)
    corrections = Corrections(dark=frame[0], excluded_pixels=[(1, 1)])
    plan = Plan(corrections, [(1, 0, 1), (1, -7, 1)])
    out = np.full((1, 1, 1), 9.0, "f4")
    plan.apply(frame[:, 1:2, 1:2].copy(), out)
    (halo,) = plan.halos
    halo.repair(np.ascontiguousarray(frame[:, 0:3, 0:3]), out)
    assert out.item() == 0


def test_kernels_release_the_interpreter():
    import importlib

    kernels = importlib.import_module("dask_tiled.kernels.corrections")
    single = np.dtype("f4")
    for kernel in (kernels.correct_kernel(np.dtype("u2"), single), kernels.repair_kernel(single)):
        assert kernel.targetoptions["nogil"]
        assert not kernel.targetoptions.get("parallel")
        assert len(kernel.signatures) == 1


@pytest.mark.slow
def test_making_corrections_and_plans_compiles_nothing():
    code = """
import sys
from dask_tiled import Corrections
from dask_tiled.reading.correction_plans import Plan
Plan(Corrections([[1, 2]], [[1, 2]], [[0, 1]]), [(0, 1, 1), (0, 1, 2)])
print("dask_tiled.kernels.decoding" in sys.modules, "dask_tiled.kernels.corrections" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_a_cache_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()  # no folder can be made below a file, not even by root
    code = """
import numpy as np
from dask_tiled import Corrections
from dask_tiled.reading.correction_plans import Plan
tile, out = np.full((1, 3), 9, "u2"), np.empty((1, 3), "f4")
Plan(Corrections(dark=[1, 2, 3], excluded_pixels=[1]), [(0, 1, 3)]).apply(tile, out)
print(*out[0])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["8.0", "7.0", "6.0"]
