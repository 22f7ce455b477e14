"""Fixtures for all tests: real files, samples, and settings of hypothesis and dask."""

import gc
import math
import multiprocessing
import os
import platform
import subprocess
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from random import Random
from urllib.parse import quote

import dask
import pytest
from chromium.pages import chromium, served  # noqa: F401 - fixtures
from formats_table import TABLE
from hypothesis import HealthCheck, settings

from dask_tiled.apart import calls
from dask_tiled.errors import warn_once
from dask_tiled.kernels.compiling import NOTICE
from dask_tiled.reading import mapped
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.reading.mapped import MappedWindows
from dask_tiled.tiling import machine

FOLDERS = count()
DATA = Path(os.environ.get("DASK_TILED_TESTDATA", Path(__file__).parents[2] / "shared" / "data"))

MACHINE = {"cache": 1 << 20, "memory": 16 << 30, "processors": 2}
"""The machine that `one_machine` simulates."""

# LocalCluster binds the dashboard's port even without a dashboard, and warns if it is taken.
ANY_PORT = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": ":0"}}

# No deadline: writing sample files is slow at times, which says nothing about the package.
settings.register_profile(
    "local", deadline=None, max_examples=24, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("local"), max_examples=5)
settings.register_profile("long", settings.get_profile("local"), max_examples=2000)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="one case of each test that is quick")
    parser.addoption("--shuffle", action="store_true", help="files and their tests in random order")
    parser.addoption("--seed", type=int, help="seed of --fast and --shuffle; default: the commit")


def pytest_configure(config):
    if os.name == "nt":
        from windows import unsupported

        config.pluginmanager.register(unsupported)
    gc.disable()  # until collection ends: imported modules and tests live to the end anyway
    if config.option.seed is None:
        config.option.seed = seed_of_commit()
    if config.option.fast:
        settings.load_profile("fast")


def seed_of_commit():
    """Return a seed from the hash of the checked-out commit; 0 outside of a repository."""
    command = ["git", "-C", Path(__file__).parent, "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout[:8], 16)


def pytest_report_header(config):
    named = ("dask", "distributed", "numpy", "numba", "zarr", "xarray")
    versions = [f"{name} {version(name)}" for name in named]
    lines = [", ".join([*versions, f"python {platform.python_version()}"])]
    if config.option.fast or config.option.shuffle:
        lines.append(f"drawn with --seed={config.option.seed}")
    return lines


def pytest_collection_modifyitems(config, items):
    """Draw one case of each test and an order, independent of the other collected tests."""

    def chance(text):
        return Random(f"{config.option.seed} {text}")  # noqa: S311 - no cryptography

    if config.option.fast:
        cases = defaultdict(list)
        for item in items:
            if not any(map(item.get_closest_marker, ("slow", "thorough"))):
                cases[item.nodeid.partition("[")[0]].append(item)
        items[:] = [chance(name).choice(some) for name, some in cases.items()]
    if config.option.shuffle:
        items.sort(key=lambda one: [chance(text).random() for text in (one.path.name, one.nodeid)])


def pytest_collection_finish():
    """Exempt the collected tests from garbage collection, which many tests call."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def quick_collections():
    """Exempt what exists from garbage collection: in a long run each takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tmp_path(tmp_path_factory):
    """Return a new folder; pytest's is named after the test, and patterns of errors match that."""
    path = tmp_path_factory.getbasetemp() / f"{next(FOLDERS)}"
    path.mkdir(0o700)
    return path


@pytest.fixture(autouse=True)
def warned_anew():
    """Repeat warnings in each test that are issued once per process."""
    warn_once.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def samples_folder(tmp_path_factory):
    """Share one folder of sample files among all tests and their child processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_DASK_TILED__SAMPLES_FOLDER", str(shared / "samples"))
        with dask.config.set(dask.config.collect_env()):
            yield shared / "samples"


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of real files; if absent, skip, or fail if the environment requires it."""
    if not (DATA / "MANIFEST.tsv").is_file():
        reason = f"the real files are absent: no MANIFEST.tsv in {DATA.resolve()}"
        if os.environ.get("DASK_TILED_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return DATA


@pytest.fixture
def hdf5_here(monkeypatch):
    """Open HDF5 files in the test's process instead of a child process."""
    from dask_tiled.formats.hdf5 import descriptor

    monkeypatch.setattr(descriptor, "safely", lambda _, attempt, *_others: attempt())


@pytest.fixture
def started(monkeypatch):
    """Yield a list of the child processes that open HDF5 files; none runs at first."""
    from dask_tiled.apart import calls

    found = []

    class Listed(calls.Child):
        def __init__(self):
            super().__init__()
            found.append(self)

    monkeypatch.setattr(calls, "Child", Listed)
    monkeypatch.setattr(calls, "_idle", [])
    yield found
    for one in found:
        one.end()


@pytest.fixture(scope="session")
def processes():
    """Yield compute options for a pool of two processes, which all tests share."""
    spawn = multiprocessing.get_context("spawn")
    # Executors wake themselves by empty messages, of which pipes of Wine lose some.
    with spawn.Pool(2) if os.name == "nt" else ProcessPoolExecutor(2, spawn) as pool:
        yield {"scheduler": "processes", "pool": pool}


@pytest.fixture(scope="module")
def synchronous():
    """Compute in the test's thread: faster for small arrays, and failures are easier to read."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def nothing_kept(monkeypatch):
    """Begin with an empty cache of mapped files, whose number is limited."""
    monkeypatch.setattr(mapped, "_kept", type(mapped._kept)())


@pytest.fixture
def at_rest(nothing_kept):  # noqa: ARG001 - used for its effect
    """Treat files just written as unchanged for long: they stay mapped."""
    with dask.config.set({"dask-tiled.rest-seconds": 0}):
        yield


class Loads(list):
    """Factory of backends that records the read ranges of every window."""

    viewed = 0
    """Bytes read in place, without a window."""

    def __call__(self):
        backend = MappedWindows()
        windows, view = backend.windows, backend.view

        def counted(ranges, limit=None, *, at_once=0):
            for window in windows(ranges, limit, at_once=at_once):
                self.append(window[0])
                yield window

        def counted_view(file, start, stop):
            self.viewed += stop - start
            return view(file, start, stop)

        backend.windows, backend.view = counted, counted_view
        backend.fill = lambda *_: False  # reads by windows only
        return backend

    def __delitem__(self, which):
        super().__delitem__(which)
        self.viewed = 0

    @property
    def nbytes(self):
        return self.viewed + sum(ranges.nbytes for ranges in self)


@pytest.fixture
def loads(monkeypatch):
    """Return the read ranges of ``io="counting"``, a list that grows with each window."""
    backend = Loads()
    monkeypatch.setitem(BACKENDS, "counting", backend)
    return backend


@pytest.fixture
def written(monkeypatch):
    """Return a list that grows by the key of each chunk that an export writes."""
    from dask_tiled.storing.places import Place

    keys, put = [], Place.put

    def listed(self, key, data):
        if "/c/" in f"/{key}":
            keys.append(key)
        put(self, key, data)

    monkeypatch.setattr(Place, "put", listed)
    return keys


@pytest.fixture(scope="session")
def sample_of(tmp_path_factory):
    """Return a function that writes the sample of a format once; tests only read these files."""
    return cache(lambda name: TABLE[name](tmp_path_factory.mktemp("sample"), "scan"))


@pytest.fixture(scope="session")
def layouts(sample_of):
    """Return options and frames (on one axis) of small two-dimensional samples, by name.

    Samples of 64 KiB and above are left out: property tests open each a hundred times.
    """
    return {
        name: (sample.options, sample.frames)
        for name, sample in zip(TABLE, map(sample_of, TABLE), strict=True)
        if sample.sig_dims == 2
        and sample.frames.dtype.kind in "iuf"
        and sample.frames.nbytes < 1 << 16
    }


@pytest.fixture(autouse=True, scope="session")
def one_machine():
    """Decide chunks, tiles and threads for one simulated machine, and print as for a pipe.

    Language, time zone, umask, user and disk are left as they are: no test may depend on them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cache_bytes", lambda: MACHINE["cache"])
        patch.setattr(machine, "memory", lambda: (MACHINE["memory"], 0))
        patch.setattr(machine, "processors", lambda: MACHINE["processors"])
        patch.delenv("COLUMNS", raising=False)
        with dask.config.set(num_workers=MACHINE["processors"]):
            yield


@pytest.fixture(autouse=True, scope="session")
def patience_by_the_clock():
    """Let child processes read files for 12 s by the clock instead of 3: machines may pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BY_THE_CLOCK", 40)
        yield


@pytest.fixture(autouse=True, scope="session")
def compiled_silently():
    """Print no notice about kernels: a second after the first one, it hits any test's output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NOTICE, "_is_said", True)
        patch.setattr(NOTICE, "_spent", -math.inf)
        yield


@pytest.fixture(autouse=True, scope="session")
def chunks_of_their_own():
    """Keep small chunks separate, so that small arrays have as many tasks as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", 1)
        patch.setattr("dask_tiled.graphs.results.FEW_PIXELS", 0)
        yield


@pytest.fixture
def repository(tmp_path):
    """Return an in-memory icechunk repository whose virtual chunks may lie below `tmp_path`."""
    icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
    if quote(str(tmp_path)) != str(tmp_path):
        pytest.skip("icechunk finds no files below paths with spaces or non-ASCII letters")
    there = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    local = icechunk.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(there, local))
    return icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({there: None}),
    )
