"""What the tests share: the real files, and how hypothesis and dask run."""

import gc
import multiprocessing
import os
import platform
import subprocess
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path
from random import Random
from urllib.parse import quote

import dask
import pytest
from formats_table import TABLE
from hypothesis import HealthCheck, settings

from dask_tiled.errors import warn_once
from dask_tiled.reading import backends
from dask_tiled.reading.backends import BACKENDS, Mapped
from dask_tiled.tiling import machine

DATA = Path(os.environ.get("DASK_TILED_TESTDATA", Path(__file__).parents[2] / "shared" / "data"))

MACHINE = {"cache": 1 << 20, "memory": 16 << 30, "processors": 2}
"""What `one_machine` has."""

# Of clusters: the port of the dashboard is taken even without one, or else warned of.
ANY_PORT = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": ":0"}}

# Writing files takes long at times: neither the duration of an example nor that of making one says
# anything about the package.
settings.register_profile(
    "local", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("local"), max_examples=5)
settings.register_profile("long", settings.get_profile("local"), max_examples=2000)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="one case of each test that is not slow")
    parser.addoption("--shuffle", action="store_true", help="files and their tests in random order")
    parser.addoption("--seed", type=int, help="of --fast and --shuffle; by default of the commit")


def pytest_configure(config):
    gc.disable()  # what is imported and collected stays
    if config.option.seed is None:
        config.option.seed = seed_of_commit()
    if config.option.fast:
        settings.load_profile("fast")


def seed_of_commit():
    """Return a number drawn from the commit that is checked out; 0 without one."""
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
    """Draw one case of each test, and an order; what else is collected changes neither."""

    def chance(text):
        return Random(f"{config.option.seed} {text}")  # noqa: S311 - tests are drawn by it

    if config.option.fast:
        cases = defaultdict(list)
        for item in items:
            if not item.get_closest_marker("slow"):
                cases[item.nodeid.partition("[")[0]].append(item)
        items[:] = [chance(name).choice(some) for name, some in cases.items()]
    if config.option.shuffle:
        items.sort(key=lambda one: [chance(text).random() for text in (one.path.name, one.nodeid)])


def pytest_collection_finish():
    """Exempt the collected tests from garbage collection, which many tests ask for."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def warned_anew():
    """Warn in each test of what is warned of once in a process."""
    warn_once.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def samples_folder(tmp_path_factory):
    """Keep the sample files of all tests, and of the processes that they start, in one place."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_DASK_TILED__SAMPLES_FOLDER", str(shared / "samples"))
        with dask.config.set(dask.config.collect_env()):
            yield shared / "samples"


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of real files, and skip where it is absent, or fail if it must not be."""
    if not (DATA / "MANIFEST.tsv").is_file():
        reason = f"the real files are absent: no MANIFEST.tsv in {DATA.resolve()}"
        if os.environ.get("DASK_TILED_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return DATA


@pytest.fixture
def hdf5_here(monkeypatch):
    """Let the HDF5 library look at files in the process of the test, which can watch it."""
    from dask_tiled.formats.hdf5 import descriptor

    monkeypatch.setattr(descriptor, "safely", lambda _, attempt, *_others: attempt())


@pytest.fixture
def started(monkeypatch):
    """Return the processes that are started to look at HDF5 files, of which there is none yet."""
    from dask_tiled.formats.hdf5 import apart

    found = []

    class Listed(apart.Child):
        def __init__(self):
            super().__init__()
            found.append(self)

    monkeypatch.setattr(apart, "Child", Listed)
    monkeypatch.setattr(apart, "_idle", [])
    yield found
    for one in found:
        one.end()


@pytest.fixture(scope="session")
def processes():
    """Two processes, in which the package is imported once for all tests."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield {"scheduler": "processes", "pool": pool}


@pytest.fixture(scope="module")
def synchronous():
    """Compute in the thread of the test: small arrays are quicker, and failures easier to read."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def nothing_kept(monkeypatch):
    """Begin without the maps of other tests: there are only so many."""
    monkeypatch.setattr(backends, "_kept", type(backends._kept)())


@pytest.fixture
def at_rest(nothing_kept):  # noqa: ARG001 - what it is for
    """Take files that were just written for such as rest, which are mapped."""
    with dask.config.set({"dask-tiled.rest-seconds": 0}):
        yield


class Loads(list):
    """Makes backends, and keeps the read ranges of every window that they give."""

    viewed = 0
    """Bytes that were looked at where they lie."""

    def __call__(self):
        backend = Mapped()
        windows, view = backend.windows, backend.view

        def counted(ranges, limit=None, *, read=True):
            for window in windows(ranges, limit, read=read):
                self.append(window[0])
                yield window

        def counted_view(file, start, stop):
            self.viewed += stop - start
            return view(file, start, stop)

        backend.windows, backend.view = counted, counted_view
        backend.fill = lambda *_: False  # all is read by windows
        return backend

    def __delitem__(self, which):
        super().__delitem__(which)
        self.viewed = 0

    @property
    def nbytes(self):
        return self.viewed + sum(ranges.nbytes for ranges in self)


@pytest.fixture
def loads(monkeypatch):
    """Count what ``io="counting"`` reads, window by window."""
    backend = Loads()
    monkeypatch.setitem(BACKENDS, "counting", backend)
    return backend


@pytest.fixture
def written(monkeypatch):
    """List the keys of the chunks that exports write below a path."""
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
    """Small files of any format by name, made once: they are to be read, not to be changed."""
    return cache(lambda name: TABLE[name](tmp_path_factory.mktemp("sample"), "scan"))


@pytest.fixture(scope="session")
def layouts(sample_of):
    """Counts in every layout: what opens them, and the frames on one axis.

    Without those so large that nothing could be tried a hundred times.
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
    """Decide chunks, tiles and threads for the same machine everywhere, and print for a pipe.

    Language, time zone, umask, user and disk decide nothing: tests run with those that are there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cache_bytes", lambda: MACHINE["cache"])
        patch.setattr(machine, "memory", lambda: (MACHINE["memory"], 0))
        patch.setattr(machine, "processors", lambda: MACHINE["processors"])
        patch.delenv("COLUMNS", raising=False)
        with dask.config.set(num_workers=MACHINE["processors"]):
            yield


@pytest.fixture(autouse=True, scope="session")
def chunks_of_their_own():
    """Let small arrays have as many tasks as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_tiled.array.plan.LEAST_BYTES", 1)
        patch.setattr("dask_tiled.array.dask_graph.results.FEW_PIXELS", 0)
        yield


@pytest.fixture
def repository(tmp_path):
    """Make a repository of icechunk in memory that may point to the files of a folder."""
    icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
    if quote(str(tmp_path)) != str(tmp_path):
        pytest.skip("icechunk finds no files in folders with blanks or letters beyond ASCII")
    there = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    local = icechunk.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(there, local))
    return icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        authorize_virtual_chunk_access=icechunk.containers_credentials({there: None}),
    )
