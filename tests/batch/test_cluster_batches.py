"""Batches on a cluster: whole files on workers, one file on all of them, workers that are lost."""

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from clusters import cluster, joining
from distributed import get_task_stream
from hypothesis import settings

import dask_tiled
from dask_tiled.batch import clusters
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.slow

LONG = settings.default.max_examples >= 500
FRAMES = counting_frames((6, 4, 16), "u2", bits=12)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Yield the client of a worker with two threads."""
    with cluster(tmp_path_factory.mktemp("cluster")) as client, joining(client, "a"):
        yield client


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write three files, and one that is larger than all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clusters, "LEAST_SHARED", 1)
    Path("in").mkdir()
    for k in range(3):
        np.save(f"in/{k}.npy", FRAMES + k)
    np.save("in/large.npy", np.tile(FRAMES, (20, 1, 1)))


def test_workers_convert(client, folder):  # noqa: ARG001
    """Small files whole, and the chunks of a large one; once each."""
    with get_task_stream(client) as tasks:
        rows = dask_tiled.convert_all("in", "out", verify=True)
    assert {(row.state, row.verified, row.problem) for row in rows} == {("done", True, "")}
    whole = Counter("_convert_here" in str(task["key"]) for task in tasks.data)
    assert whole[True] == 3
    assert whole[False] > 0
    stored = {row.target: zarr.open_array(f"{row.target}/data", mode="r")[:] for row in rows}
    for name, frames in stored.items():
        np.testing.assert_array_equal(frames, np.load(f"in/{Path(name).stem}.npy"))
    again = dask_tiled.convert_all("in", "out")
    assert {row.state for row in again} == {"done already"}


def test_one_failure_and_a_deadline(client, folder):  # noqa: ARG001
    Path("in/bad.npy").write_bytes(b"\x93NUMPY junk")
    rows = dask_tiled.convert_all("in", "out", suffix=".npy")
    assert Counter(row.state for row in rows) == {"done": 4, "failed": 1}
    rows = dask_tiled.convert_all("in", "late", deadline=1e-6)
    assert {row.state for row in rows} == {"not begun"}
    assert not os.path.exists("late")


def test_the_command_line(client, folder):  # noqa: ARG001
    """The client of ``--scheduler`` is gone afterwards."""
    words = ["convert", "in", "out/", "--scheduler", client.scheduler.address]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("out/: 4 done\n")
    words[-1] = "tcp://127.0.0.1:1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_tiled.command_line.cluster.CONNECT_SECONDS", 1)
        lost = CliRunner().invoke(app, words)
    assert lost.exit_code == 2
    assert "tcp://127.0.0.1:1: no scheduler answers" in lost.stderr


@pytest.mark.filterwarnings("ignore:.*has no worker; waiting for one")  # on a busy machine
def test_jobs_of_slurm(tmp_path, folder, monkeypatch):  # noqa: ARG001
    """By dask-jobqueue, with a command that runs each job here instead of Slurm's."""
    pytest.importorskip("dask_jobqueue")  # refreshes dask's configuration
    scripts = {
        # Like Slurm's, it reads the script before it returns: then the script is deleted.
        "sbatch": 'script=$(cat "$1")\n'
        f'/bin/sh -c "$script" >{tmp_path}/job.log 2>&1 & echo Submitted batch job $!',
        "scancel": 'kill "$@" 2>/dev/null; true',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path = Path(dask_tiled.__file__).parents[1]
    slurm = {"cores": 1, "memory": "1GB", "interface": "lo", "python": sys.executable}
    slurm["scheduler-options"] = {"dashboard_address": ":0"}
    slurm["job-script-prologue"] = [f"export PYTHONPATH={shlex.quote(str(path))}"]
    with dask.config.set({"jobqueue.slurm": dask.config.get("jobqueue.slurm", {}) | slurm}):
        done = CliRunner().invoke(app, ["convert", "in", "out/", "--cluster", "slurm:1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("out/: 4 done\n")
    unknown = CliRunner().invoke(app, ["convert", "in", "out/", "--cluster", "cray"])
    assert "unknown batch system; expected one of" in unknown.stderr
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    lacking = CliRunner().invoke(app, ["convert", "in", "out/", "--cluster", "slurm"])
    assert lacking.exit_code == 2
    assert "Run: pip install dask-jobqueue" in lacking.stderr


def test_workers_without_the_files(client, folder, tmp_path):  # noqa: ARG001
    """They get no tasks, with one warning."""
    with (
        joining(client, "blind", faults=f"unseen={tmp_path}"),
        pytest.warns(UserWarning, match="1 of 2 workers get no tasks"),
    ):
        rows = dask_tiled.convert_all("in", "out", pattern="?.npy")
    assert {row.state for row in rows} == {"done"}


@pytest.mark.timeout(900)  # each worker that was killed starts again
def test_killed_workers(tmp_path):
    """Files are whole, and made once; the report is true. `make fuzz-export` converts 2 GB."""
    size = (60, 2048, 57, 10) if LONG else (6, 12, 57, 2)
    program = Path(__file__).with_name("killed_workers.py")
    command = [sys.executable, program, tmp_path, *map(str, size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    sys.stdout.write(done.stdout)
    found = json.loads(done.stdout)["killed_workers"]
    assert found["wrong"] == found["left"] == []
    assert found["calls"][-1] == {"done already": size[0]}
    assert sum(call.get("done", 0) for call in found["calls"]) == size[0]
    assert found["kills"] > 0
