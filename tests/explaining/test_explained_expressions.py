"""explain predicts the bytes and the peak memory of random expressions of tens of MB.

Bytes read are exact. Unless functions are named whose memory is unknown, memory never exceeds the
prediction, and one thread mostly reaches half of it; how much two threads reach depends on which
tasks overlap.
``make fuzz-expressions`` tries many more than ``make test``.
"""

import warnings
from functools import partial

import dask
import h5py
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dask_tiled import explain, open_dataset
from expressions import opened_sources, programs

SHAPE = (6, 8, 64, 1024)
MOST_PIXELS = 13_000_000
LEAST_SHARE = 0.9
"""Share of the examples of one thread whose peak is at least half of the prediction."""
LEAST_BOUNDED = 0.75
"""Share of the examples whose memory has an upper limit, as all of their functions are known."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return large arrays of several kinds, and their pixels."""
    opened = partial(open_dataset, io="buffered")  # with a lease, no buffer would be needed
    folder = tmp_path_factory.mktemp("large")
    counts = np.random.default_rng(0).integers(0, 60, SHAPE, "u2")
    stored = {name: counts.astype(name) for name in ("u1", ">u2", "i4", "f4", "f8")}
    places = [7, 0, 3, 3, 11, *range(20, 40)]
    found = opened_sources(folder, stored, counts, [15, 18], places, opened)
    with h5py.File(folder / "chunks.h5", "w") as file:
        chunks = {"chunks": (1, 2, 64, 512), "compression": "gzip", "compression_opts": 1}
        file.create_dataset("counts", data=counts, **chunks)
    found["compressed"] = opened(folder / "chunks.h5"), counts
    return found


@pytest.mark.thorough
def test_predictions_hold(sources):
    few = {5: 5, 24: 15}.get(settings().max_examples)  # with --fast, and by default
    count = few or min(1000, settings().max_examples)
    shares, bounded = [], []

    @settings(max_examples=count, derandomize=few is not None)
    @given(data=st.data())
    def tried(data):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = data.draw(programs(sources, MOST_PIXELS))
            others = st.lists(st.sampled_from(values), max_size=2)
            wanted = [values[-1], *data.draw(others)]
            note(f"computed: {[value.name for value in wanted]}")
            arrays = [value.opened for value in wanted]
            threads = data.draw(st.sampled_from([1, 2]))
            try:
                dask.compute(*arrays, scheduler="synchronous")
            except Exception:  # noqa: BLE001 - whatever NumPy and dask raise
                return
            found = explain(*arrays, threads=threads, run=True)
            note(str(found))
            assert found.measured.bytes_read == found.bytes_read
            bounded.append(not found.unseen)
            if found.unseen:
                return
            assert found.measured.peak_memory <= found.peak_memory
            if threads == 1:
                shares.append(found.measured.peak_memory / found.peak_memory)

    tried()
    assert np.mean(bounded) >= LEAST_BOUNDED
    assert np.mean(np.array(shares) >= 0.5) >= LEAST_SHARE
