"""Random expressions have NumPy's values, and dask's types, shapes and chunks.

An expression is a few random lines of Python, evaluated with NumPy, opened arrays and plain dask
arrays. ``make fuzz-expressions`` tries many more than ``make test``.
"""

import warnings
from functools import wraps

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dask_tiled import open_dataset
from dask_tiled.graphs import rewriting
from dask_tiled.testing import write_mib
from expressions import opened_sources, programs

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (3, 4, 5, 16)
COUNTS = np.random.default_rng(0).integers(0, 60, SHAPE)
HALVES = COUNTS / 2 - 9
HOLES = np.where(COUNTS == 3, np.nan, np.where(COUNTS == 4, np.inf, HALVES))
STORED = {
    **{name: COUNTS.astype(name) for name in ("u1", ">u2", "u4", ">i4", "u8")},
    **{name: (COUNTS - 30).astype(name) for name in ("i1", "i2", ">i8")},
    **{name: HALVES.astype(name) for name in ("f2", "f4", ">f8")},
    **{f"{name} with holes": HOLES.astype(name) for name in ("f4", "f8")},
    "c8": (HALVES + 1j * COUNTS).astype("c8"),
    "?": COUNTS > 40,
    "volume": COUNTS[0].astype("u2"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return arrays of all kinds, and their pixels."""
    folder = tmp_path_factory.mktemp("sources")
    found = opened_sources(folder, STORED, COUNTS.astype("u2"), [5, 6], [7, 0, 3, 3, 11])
    bits = np.resize(COUNTS % 2, (3, 4, 2, 64)).astype("u1")
    found["1 bit"] = open_dataset(write_mib(folder / "1.mib", bits, kind="R64", depth=1)), bits
    return found


COUNTED = {"examples": 0, "rewritten": 0, "compared": 0}


def compare(values):
    for value in values:
        opened, plain = value.opened, value.plain
        assert (opened.dtype, opened.shape) == (plain.dtype, plain.shape), value.name
        assert opened.chunks == plain.chunks, value.name
    try:
        with dask.config.set(array_optimize=da.optimize):
            plain = dask.compute(*(value.plain for value in values))
    except Exception as error:  # noqa: BLE001 - whatever dask raises
        with pytest.raises(type(error)):
            dask.compute(*(value.opened for value in values))
        return
    found = dask.compute(*(value.opened for value in values))
    for value, result, other in zip(values, found, plain, strict=True):
        COUNTED["compared"] += 1
        assert np.asarray(result).dtype == np.asarray(other).dtype, value.name
        assert np.shape(result) == np.shape(other), value.name
        if not close(result, value.expected, value.error):
            wanted = value.expected if close(other, value.expected, value.error) else other
            np.testing.assert_allclose(result, wanted, 0, value.error, err_msg=value.name)


def close(result, expected, error):
    if np.shape(result) != expected.shape:
        return False
    # NumPy sums float16 in float16, which soon overflows; tiles do not.
    known = np.isfinite(expected) | (expected.dtype != np.float16)
    result = np.asarray(result)
    return np.allclose(result[known], expected[known], rtol=0, atol=error, equal_nan=True)


@pytest.mark.thorough
def test_random_expressions(sources, monkeypatch):
    """Several values of a random program are computed at once, most of them on tiles."""
    plain = rewriting.rewritten
    monkeypatch.setattr(rewriting, "rewritten", wraps(plain)(counting(plain)))
    COUNTED.update(dict.fromkeys(COUNTED, 0))

    few = {5: 20, 24: 60}.get(settings().max_examples)  # with --fast, and by default

    @settings(max_examples=few or settings().max_examples, derandomize=few is not None)
    @given(data=st.data())
    def tried(data):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = data.draw(programs(sources))
            others = st.lists(st.sampled_from(values), max_size=2)
            wanted = [values[-1], *data.draw(others)]
            note(f"computed: {[value.name for value in wanted]}")
            COUNTED["examples"] += 1
            compare(wanted)

    tried()
    assert COUNTED["rewritten"] > COUNTED["examples"] / 2


def counting(plain):
    def counted(graph, keys, *noted):
        found = plain(graph, keys, *noted)
        COUNTED["rewritten"] += found is not graph
        return found

    return counted
