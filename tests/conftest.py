"""What the tests share: the real files, and how hypothesis and dask run."""

import os
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from dask_tiled.backends import BACKENDS, Mapped
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_npy, write_raw

DATA = Path(os.environ.get("DASK_TILED_TESTDATA", Path(__file__).parents[2] / "shared" / "data"))

# Writing files takes long at times: neither the duration of an example nor that of making one says
# anything about the package.
settings.register_profile(
    "local", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def data() -> Path:
    """Give the folder of real files, and skip where it is absent, or fail if it must not be."""
    if not (DATA / "MANIFEST.tsv").is_file():
        reason = f"the real files are absent: no MANIFEST.tsv in {DATA.resolve()}"
        if os.environ.get("DASK_TILED_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return DATA


@pytest.fixture(scope="module")
def synchronous():
    """Compute in the thread of the test: small arrays are quicker, and failures easier to read."""
    with dask.config.set(scheduler="synchronous"):
        yield


class Loads(list):
    """Makes backends, and keeps the read ranges of every window that they give."""

    def __call__(self):
        backend = Mapped()
        windows, around = backend.windows, backend.around

        def counted(ranges, limit=None):
            for window in windows(ranges, limit):
                self.append(window[0])
                yield window

        def counted_view(ranges):
            self.append(ranges)
            return around(ranges)

        backend.windows, backend.around = counted, counted_view
        return backend

    @property
    def nbytes(self):
        return sum(ranges.nbytes for ranges in self)


@pytest.fixture
def loads(monkeypatch):
    """Count what ``io="counting"`` reads, window by window."""
    backend = Loads()
    monkeypatch.setitem(BACKENDS, "counting", backend)
    return backend


MERLIN = {
    "mib u16": ({"kind": "U16"}, "u2", 16),
    "mib 1 bit": ({"kind": "R64", "depth": 1}, "u1", 1),
    "mib 6 bit": ({"kind": "R64", "depth": 6}, "u1", 6),
    "mib 12 bit": ({"kind": "R64", "depth": 12}, "u2", 12),
    "mib 24 bit": ({"kind": "R64", "depth": 24}, "u4", 24),
    "mib 1 bit quad": ({"kind": "R64", "depth": 1, "quad": True}, "u1", 1),
    "mib 12 bit quad": ({"kind": "R64", "depth": 12, "quad": True}, "u2", 12),
}


@pytest.fixture(scope="session")
def layouts(tmp_path_factory):
    """Files of twelve frames in every layout: what opens them, and the frames on one axis."""
    folder = tmp_path_factory.mktemp("layouts")
    found = {}
    for name, (options, dtype, bits) in MERLIN.items():
        frames = counting_frames((12, 4, 128), dtype, bits=bits)
        path = write_mib(folder / f"{name}.mib", frames, hdr=False, **options)
        found[name] = {"path": path}, frames
    frames = counting_frames((12, 4, 128), "u2", bits=12)
    members = write_mib_series(
        folder / "series", frames, frames_per_file=5, hdr=False, kind="R64", depth=12
    )
    found["mib series"] = {"path": members[1]}, frames

    frames = counting_frames((12, 5, 7), "u2")
    raw = {"format": "raw", "sig_shape": (5, 7)}
    gaps = {"file_header": 13, "frame_header": 3, "frame_footer": 2}
    path = write_raw(folder / "plain.raw", frames)
    found["raw"] = {"path": path, "dtype": "u2", **raw}, frames
    path = write_raw(folder / "gaps.raw", frames.astype(">f4"), **gaps)
    found["raw with gaps"] = {"path": path, "dtype": ">f4", **gaps, **raw}, frames.astype("f4")
    parts = np.split(frames, [2, 9])
    paths = [write_raw(folder / f"part{i}.raw", part, **gaps) for i, part in enumerate(parts)]
    found["raw series"] = {"path": paths, "dtype": "u2", **gaps, **raw}, frames
    for order in "CF":
        path = write_npy(folder / f"{order}.npy", frames.reshape(3, 4, 5, 7), order=order)
        found[f"npy {order}"] = {"path": path}, frames
    return found
