"""Casts of floats to integers equal NumPy's, in any chunks and at any position."""

import numpy as np
import pytest
from checks import on_tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chunked

import dask_tiled
from dask_tiled.engine import casts, evaluation
from dask_tiled.engine.casts import ODD
from dask_tiled.testing import write_npy

pytestmark = [
    pytest.mark.usefixtures("synchronous"),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
    pytest.mark.thorough,
]

FLOATS = ("f2", "f4", "f8")
WHOLE = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
LIMITS = [sign * 2.0**bits + more for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for sign in (-1, 1)
          for more in (-1, -0.5, 0, 0.5, 1)]  # fmt: skip
VALUES = np.array([*ODD, *LIMITS, 0.5, -0.5, -0.0, -1.7, 255.9, 1e30, -1e30])

EXPRESSIONS = {
    "cast": lambda a, to: a.astype(to),
    "difference": lambda a, to: (a - a.dtype.type(1)).astype(to),
    "longer": lambda a, to: (a * 1).astype(to) // 3 + 1,
    "sum of frames": lambda a, to: a.astype(to).sum((1, 2)),
    "sum": lambda a, to: a.astype(to).sum(0),
    "sum in a type": lambda a, to: a.sum((1, 2), dtype=to),
    "max": lambda a, to: a.astype(to).max((1, 2)),
    "groups": lambda a, to: a.astype(to).min(2),
    "where": lambda a, to: np.where(a > 100, a.astype(to), np.dtype(to).type(3)),
    "two casts": lambda a, to: a.astype(to).astype("i4").max(0),
}


def is_cast_alike(value, to):
    """Return whether NumPy casts a float to the same integer at every position."""
    return len({*np.full(97, value).astype(to).tolist(), int(np.array([value]).astype(to)[0])}) == 1


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("floats") / "floats.npy"


def check(path, data, dtype, to, names):
    """Compare expressions of random floats, in random chunks."""
    shape = (*data.draw(st.sampled_from([(2, 3), (1, 1), (4, 2)])), data.draw(st.integers(1, 300)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pixels = rng.choice([x for x in VALUES.astype(dtype) if is_cast_alike(x, to)], shape)
    pixels[rng.random(shape) < data.draw(st.sampled_from([0, 0.5, 0.95]))] = 7
    write_npy(path, pixels)
    arr = dask_tiled.open_dataset(path, chunks=data.draw(chunked(shape)))
    for name in names:
        found, expected = (EXPRESSIONS[name](x, to) for x in (arr, pixels))
        np.testing.assert_array_equal(found.compute(), expected, f"{name} {arr.chunks}")


@given(dtype=st.sampled_from(FLOATS), to=st.sampled_from(WHOLE), data=st.data())
def test_floats_that_do_not_fit(path, dtype, to, data):
    check(path, data, dtype, to, ["cast"])


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
@pytest.mark.parametrize(("dtype", "to"), [("f4", "u2"), ("f8", "i8")])
def test_casts_in_expressions(path, dtype, to, data):
    check(path, data, dtype, to, EXPRESSIONS)


@pytest.mark.parametrize("to", ["u2", "u8"])
def test_casts_of_an_unknown_machine(tmp_path, monkeypatch, to):
    """NumPy is called tile by tile on machines where its casts differ."""
    pixels = np.resize(VALUES.astype("f4"), (3, 4, 50))
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "floats.npy", pixels))
    monkeypatch.setattr(casts, "_is_as_here", lambda *_: False)
    monkeypatch.setattr(evaluation, "SHARED", {})
    total = (arr + 0).astype(to).sum((1, 2))
    assert on_tiles(total)
    np.testing.assert_array_equal(total.compute(), pixels.astype(to).sum((1, 2)))
