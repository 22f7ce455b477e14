"""Cache, memory and processors of the machine and of cluster workers."""

import os

import pytest
from checks import ran
from conftest import ANY_PORT

from dask_tiled.system import resources
from dask_tiled.tiling import machine

MIB = 1 << 20
LOOKED_UP = {name: getattr(machine, name) for name in ("cache_bytes", "memory", "processors")}


@pytest.fixture(autouse=True)
def this_machine(monkeypatch):
    """Restore the real functions in place of the simulated machine."""
    for name, function in LOOKED_UP.items():
        monkeypatch.setattr(machine, name, function)


def write_caches(root, *caches):
    for i, (level, kind, size, shared) in enumerate(caches):
        index = root / f"cpu0/cache/index{i}"
        index.mkdir(parents=True)
        texts = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, text in texts.items():
            (index / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("size", "shared", "expected"),
    [
        ("1024K", "0", MIB),
        ("2M", "0-1", MIB),
        ("4096K", "0-1,8-9", MIB),
        ("1G", "0", 1 << 30),
        ("65536", "0,4", 32768),
    ],
)
def test_second_level_cache_is_divided_by_threads(tmp_path, size, shared, expected):
    write_caches(
        tmp_path,
        (1, "Data", "32K", "0"),
        (1, "Instruction", "32K", "0"),
        (2, "Unified", size, shared),
        (3, "Unified", "36608K", "0-7"),
    )
    assert machine._sysfs_cache(tmp_path) == expected


def test_machines_without_information(tmp_path, monkeypatch):
    assert machine._sysfs_cache(tmp_path) == 0
    write_caches(tmp_path, (2, "Unified", "", "0"), (2, "Unified", "1M", "none"))
    assert machine._sysfs_cache(tmp_path) == 0
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(resources, "_sysconf", {"SC_LEVEL2_CACHE_SIZE": 123456}.get)
    assert machine.cache_bytes.__wrapped__() == 123456
    monkeypatch.setattr(resources, "_sysconf", {"SC_LEVEL2_CACHE_SIZE": -1}.get)
    assert machine.cache_bytes.__wrapped__() == MIB

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(resources, "_sysconf", unknown)
    assert machine.cache_bytes.__wrapped__() == MIB


def test_this_machine_has_a_cache_and_memory():
    assert 1 << 14 <= machine.cache_bytes() <= 1 << 30
    memory, whose = machine.thread_memory()
    assert memory > MIB
    assert "machine" in whose
    assert 1 <= machine.processors() <= os.cpu_count()


@pytest.mark.parametrize(
    ("line", "folder", "name"),
    [
        ("0::/jobs/mine", "jobs/mine", "memory.max"),
        ("0::/", ".", "memory.max"),
        ("4:cpu,memory:/jobs/mine", "memory", "memory.limit_in_bytes"),
    ],
)
def test_control_groups_limit_memory(tmp_path, line, folder, name):
    mine = tmp_path / "cgroup"
    mine.write_text(f"1:cpuset:/elsewhere\n{line}\n")
    (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root" / folder / name).write_text("1000\n")
    assert list(machine._cgroup_limits(tmp_path / "root", mine)) == [1000]


def test_control_groups_without_limits(tmp_path):
    assert list(machine._cgroup_limits(tmp_path, tmp_path / "none")) == []
    (tmp_path / "memory.max").write_text("max\n")
    mine = tmp_path / "cgroup"
    mine.write_text("0::/\n")
    assert list(machine._cgroup_limits(tmp_path, mine)) == []


@pytest.mark.slow
def test_distributed_is_never_imported():
    code = (
        "import sys; from dask_tiled.tiling import machine; machine.thread_memory();"
        "print('distributed' in sys.modules)"
    )
    assert ran(code).strip() == "False"


class Client:
    """Client with given workers."""

    def __init__(self, *workers):
        self.workers = workers

    def scheduler_info(self):
        return {"workers": dict(enumerate(self.workers))}


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([{"memory_limit": 8000, "nthreads": 4}], 2000),
        ([{"memory_limit": 8000, "nthreads": 4}, {"memory_limit": 900, "nthreads": 1}], 900),
        ([{"memory_limit": 0, "nthreads": 4}, {"memory_limit": 800, "nthreads": 1}], 800),
        ([{"memory_limit": 800, "nthreads": 0}], 800),
        ([], None),
        ([{"memory_limit": None, "nthreads": 1}], None),
    ],
)
def test_smallest_worker_counts(monkeypatch, workers, expected):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "default_client", lambda: Client(*workers))
    memory, whose = machine.thread_memory()
    assert ("workers" if expected else "machine") in whose
    assert expected in (memory, None)


def test_real_client():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, memory_limit="64MiB", **ANY_PORT
    )
    with cluster, distributed.Client(cluster):
        assert machine.thread_memory()[0] == 32 * MIB
    assert "machine" in machine.thread_memory()[1]
