"""What tasks compute of whole chunks is known beforehand, for all dtypes and operations."""

import re
import warnings
from collections import Counter

import dask.array as da
import numpy as np
import pytest

from dask_tiled import explain, map_tiles, open_dataset
from dask_tiled.graphs.rewriting import planned
from dask_tiled.plans.recipes import Recipe
from dask_tiled.plans.tree import words_of
from dask_tiled.testing import write_npy
from dask_tiled.tiles import center_of_mass

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE, CHUNKS = (2, 3, 6, 64), (1, 3, 6, 64)
FRAME = SHAPE[2:]
MASKED = "an operand may be masked or sparse, as a function of the user or a library makes it"
DTYPES = "?", "u2", "f2", "f4", "c8"


def column(dtype):
    return da.from_array((np.arange(64) % 5).astype(dtype), chunks=-1)


def frame(dtype):
    return da.from_array(np.ones(FRAME, dtype), chunks=-1)


ELEMENTWISE = {
    "number": lambda a: a * 2.5,
    "imaginary": lambda a: a * 1j,
    "negative": lambda a: -a,
    "abs": abs,
    "square": lambda a: a**2,
    "power of array": lambda a: a**a,
    "power of signed": lambda a: a ** column("i8"),
    "power of unsigned": lambda a: a ** column("u1"),
    "floor": lambda a: a // 2,
    "modulo": lambda a: a % column("i2"),
    "divmod": lambda a: da.divmod(a, 2)[1],
    "shift": lambda a: a << 1,
    "shift by array": lambda a: a >> column("u1"),
    "and": lambda a: a & 3,
    "invert": lambda a: ~a,
    "compare": lambda a: a > 3,
    "equal": lambda a: a == a.rechunk(CHUNKS),
    "logical": lambda a: da.logical_xor(a, column("f4")),
    "round": lambda a: a.round(),
    "round to 1": lambda a: a.round(1),
    "round to -1": lambda a: a.round(-1),
    "clip": lambda a: a.clip(1, 3),
    "clip by array": lambda a: da.clip(a, column("u1"), 5),
    "where": lambda a: da.where(a > 2, a, 0),
    "where by array": lambda a: da.where(column("?"), a, column("f4")),
    "sqrt": da.sqrt,
    "sin": da.sin,
    "log1p": da.log1p,
    "arctan2": lambda a: da.arctan2(a, column("f8")),
    "ldexp": lambda a: da.ldexp(a, 1),
    "gcd": lambda a: np.gcd(a, 2),
    "nan_to_num": da.nan_to_num,
    "isnan": da.isnan,
    "conj": da.conj,
    "angle": da.angle,
    "masked": lambda a: da.ma.masked_equal(a, 2),
    "transposed": lambda a: (a + 1).T,
    "slice": lambda a: (a + 1)[:, :, ::2, 3],
    **{
        f"as {dtype}": lambda a, dtype=dtype: a.astype(dtype)
        for dtype in ("?", "u1", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[s]", "S8")
    },
}
REDUCED = {
    "sum of frames": lambda x: x.sum((2, 3)),
    "sum of scan": lambda x: x.sum((0, 1)),
    "sum of rows": lambda x: x.sum(3),
    "sum as f4": lambda x: x.sum((2, 3), dtype="f4"),
    "sum as i4": lambda x: x.sum((2, 3), dtype="i4"),
    "sum as c16": lambda x: x.sum((0, 1), dtype="c16"),
    "mean": lambda x: x.mean((2, 3)),
    "mean as i8": lambda x: x.mean((0, 1), dtype="i8"),
    "std": lambda x: x.std((0, 1)),
    "var": lambda x: x.var((2, 3)),
    "max": lambda x: x.max((2, 3)),
    "min": lambda x: x.min((0, 1)),
    "any": lambda x: x.any(),
    "prod": lambda x: x.prod(0),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(3),
    "nansum": lambda x: da.nansum(x, (2, 3)),
    "nanmean": lambda x: da.nanmean(x, (0, 1)),
    "nanstd": da.nanstd,
    "nanmax": lambda x: da.nanmax(x, (2, 3)),
    "histogram": lambda x: da.histogram(x, 8, (0, 9))[0],
    "uneven bins": lambda x: da.histogram(x, [0, 1, 4, 90])[0],
    "masks": lambda x: da.tensordot(x, frame("f4"), ((2, 3), (0, 1))),
    "masks of integers": lambda x: da.tensordot(x, frame("i2"), ((2, 3), (0, 1))),
    "product": lambda x: x @ np.ones((64, 2)),
    "weighted": lambda x: (x * frame("f8")).sum((2, 3)),
    "binned": lambda x: da.coarsen(np.sum, x, {2: 2, 3: 2}),
    "means of bins": lambda x: da.coarsen(np.mean, x, {3: 4}),
    "tiles": lambda x: map_tiles(np.positive, x, dtype=x.dtype),
}
OF = {
    "pixels": lambda a: a,
    "imaginary": ELEMENTWISE["imaginary"],
    "as f2": ELEMENTWISE["as f2"],
}
CASES = {
    **ELEMENTWISE,
    **{
        f"{name} of {of}": lambda a, reduce=reduce, make=make: reduce(make(a))
        for of, make in OF.items()
        for name, reduce in REDUCED.items()
    },
}


@pytest.fixture
def whole(monkeypatch):
    """Count the chunks that tasks compute whole, or reduce from all their pixels."""
    counts = Counter()
    pixels, make = Recipe.pixels, Recipe.make

    def counting_pixels(self, *args):
        counts[self.words] += 1
        return pixels(self, *args)

    def counting_make(self, *args):
        counts[self.words] += self.reduces
        return make(self, *args)

    monkeypatch.setattr(Recipe, "pixels", counting_pixels)
    monkeypatch.setattr(Recipe, "make", counting_make)
    return counts


def obstacles(result):
    """Return the operations that the plan does not expect on tiles."""
    plans = planned(result.dask, result.__dask_keys__()).plans
    return {x.recipe.words for plan in plans for x in plan.parts if x.obstacle is not None}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_chunks_are_known_beforehand(tmp_path, whole, dtype):
    """Operations on whole chunks, as counted in tasks, are those that `explain` lists."""
    pixels = np.random.default_rng(0).integers(1, 9, SHAPE)
    pixels = pixels > 4 if dtype == "?" else pixels.astype(dtype)
    arr = open_dataset(write_npy(tmp_path / "scan.npy", pixels)).with_chunks(CHUNKS)
    tried = Counter()
    for name, make in CASES.items():
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole.clear()
            try:
                result = make(arr)
                result.compute()
            except Exception:  # noqa: BLE001, S112 - whatever NumPy and dask raise
                continue
            counted = {what for what, count in whole.items() if count}
            listed = dict(explain(result).left)
        assert counted <= {*listed}, (name, counted, listed)
        assert not any("in chunks of" in why for why in listed.values()), (name, listed)
        assert counted == obstacles(result), (name, counted)
        tried["whole" if counted else "left" if listed else "on tiles"] += 1
    assert min(tried["whole"], tried["on tiles"]) > 5, tried


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda a: a.round(-20).sum((2, 3)), ("sum", "no kernel for round of uint16")),
        (
            lambda a: (a.astype("i8") ** a.astype("i8")).max(),
            ("max", "integer powers raise an error for negative exponents"),
        ),
        (
            lambda a: (a.astype("c8") * 1j).argmax(0),
            ("argmax", "no kernel for maximum of complex64 pixels"),
        ),
        (lambda a: (a / 3).astype("f2").max((2, 3)), ("max", "no kernel for float16 pixels")),
        (
            lambda a: a * da.ones(SHAPE, "u1", chunks=CHUNKS).map_blocks(lambda x: x, dtype="u1"),
            ("mul", MASKED),
        ),
        (
            lambda a: a * da.ma.masked_equal(da.ones(SHAPE, "u1", chunks=CHUNKS), 0),
            ("mul", MASKED),
        ),
        (
            lambda a: a[:, :, :1] * da.ones(SHAPE, "u1", chunks=(1, 3, 3, 64)),
            ("mul", "the pixels would be broadcast against several chunks of an operand"),
        ),
    ],
)
def test_reasons(tmp_path, make, left):
    """The text names what runs on whole chunks, and does not say that it runs on tiles."""
    arr = open_dataset(write_npy(tmp_path / "scan.npy", np.ones(SHAPE, "u2"))).with_chunks(CHUNKS)
    found = explain(make(arr))
    assert found.left == (left,)
    assert ": ".join(left) in str(found)
    assert not found.plans
    assert "on tiles" not in str(found)


def test_parts_that_run_on_tiles_are_told_from_others(tmp_path):
    arr = open_dataset(write_npy(tmp_path / "scan.npy", np.ones(SHAPE, "u2"))).with_chunks(CHUNKS)
    found = explain(arr.sum((2, 3)), arr.round(-20).sum((2, 3)))
    (plan,) = found.plans
    assert plan.splitlines()[1:] == ["  reduce sum", "    read scan.npy (2, 3, 6, 64)"]
    assert found.left == (("sum", "no kernel for round of uint16"),)


def test_chunks_of_other_shapes_are_listed(tmp_path, whole):
    """Of two chunks, the narrow one is computed whole: one of two tasks runs on tiles."""
    arr = open_dataset(write_npy(tmp_path / "scan.npy", np.ones((6, 64), "u2")))
    arr = arr.with_chunks((6, (40, 24)))
    found = explain(arr.argmax(1))
    assert [what for what, _ in found.left] == ["argmax"]
    short = "no kernel for argmin and argmax along axes or bins of 32 pixels or fewer"
    assert found.left[0][1] == f"{short}, in chunks of (6, 24) pixels"
    (plan,) = found.plans
    assert plan.splitlines()[:2] == [
        "2 tasks, for chunks of (6, 40) pixels:",
        "  reduce argmax, in 1 of the tasks",
    ]
    arr.argmax(1).compute()
    assert whole["argmax"] == 1


NARROW = {
    "all on tiles": (lambda a: [a + 1], (4, 2, 20), [2]),
    "all whole": (lambda a: [(a / 3).astype("f2").max(2)], (4, 2, 20), []),
    "narrow": (lambda a: [(a * 2.5).astype("u1")], (4, 2, (10, 4, 6)), [6, 2]),
    "narrow, reduced": (lambda a: [da.nanmax(a / 3, 2)], (4, 2, (14, 6)), [4, 2]),
    "narrow first": (lambda a: [a.clip(1, 3)], (4, 2, (6, 14)), [4, 2]),
    "together": (lambda a: [a + 1, a.astype("f2")], (4, 2, (14, 6)), [4, 2, 2]),
    "three rows": (lambda a: [(a + 1)[:3]], (4, 2, (14, 6)), [2, 1]),
}


@pytest.mark.parametrize("name", NARROW)
def test_tasks_on_tiles_are_counted(tmp_path, monkeypatch, name):
    """The text has the numbers of all tasks, and of those that compute no chunk as a whole."""
    make, chunks, expected = NARROW[name]
    path = write_npy(tmp_path / "scan.npy", np.ones((8, 2, 20), "u2"))
    results = make(open_dataset(path, chunks=chunks))
    found, computed, pixels = explain(*results), [], Recipe.pixels

    def noting(self, box, *args):
        computed.append(tuple(b - a for a, b in box))
        return pixels(self, box, *args)

    monkeypatch.setattr(Recipe, "pixels", noting)
    da.compute(*results)
    numbers = re.findall(r"(?:in |^)(\d+) (?:of the )?task", "\n".join(found.plans))
    assert [*map(int, numbers)] == expected
    tasks, tiled = expected[0] if expected else 2, sum(expected[1:] or expected)
    assert len(computed) == tasks * len(results) - tiled
    reasons = [why for _, why in found.left]
    shapes = {f"in chunks of {shape} pixels" for shape in computed} if tiled else set()
    assert shapes == {f"in{why.rpartition(' in')[2]}" for why in reasons if "in chunks" in why}


def test_large_whole_chunks_are_not_merged(tmp_path, monkeypatch):
    """A task would take the memory of all; small chunks are merged in any case."""
    monkeypatch.setattr("dask_tiled.plans.plan.MOST_REDUCED_CHUNKS", 1)
    path = write_npy(tmp_path / "scan.npy", np.ones((8, 6, 64), "u2"))
    arr = open_dataset(path, chunks=(1, 6, 64))
    on_tiles, whole = arr.max, (lambda: arr.round(-20).max())
    assert explain(on_tiles()).tasks == explain(whole()).tasks < 8
    monkeypatch.setattr("dask_tiled.plans.plan.CUT_PART_BYTES", 1 << 10)
    assert explain(on_tiles()).tasks < 8 <= explain(whole()).tasks


@pytest.mark.thorough
def test_names_are_those_of_users(tmp_path):
    """No name of a private function of dask, or of this package."""
    arr = open_dataset(
        write_npy(tmp_path / "scan.npy", np.ones((9, 9, 6, 64), "c8")), chunks=(1, 1, 6, 64)
    )
    for result, names in (
        (arr.std((0, 1)), {"sqrt", "var"}),
        (da.nanmin(arr.real), {"nanmin", "real"}),
        (da.topk(arr.real, 2, axis=0), {"topk", "real"}),
        (center_of_mass(arr.real), {"center_of_mass", "real"}),
    ):
        left = {what for what, _ in explain(result).left}
        assert not any(what.startswith("_") or "partial" in what or "agg" in what for what in left)
        assert names <= left, left


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (f"mean_combine-partial-{'0a' * 16}", "mean"),
        (f"_trim-{'1b' * 16}", "trim"),
        (f"my_chunk-{'1b' * 16}", "my_chunk"),
        (f"sort-along-axis-{'2c' * 16}-{'0a' * 16}", "sort-along-axis"),
        ("spectra", "spectra"),
        ("3d" * 16, "tasks"),
    ],
)
def test_words_of_layers(layer, words):
    assert words_of(layer) == words
