"""``dask-tiled doctor --scheduler`` shows the workers, and what differs."""

import json
import re

import pytest
from click.testing import CliRunner
from clusters import cluster, joining

import dask_tiled
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_npy


def doctor(*words):
    done = CliRunner().invoke(app, ["doctor", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_doctor_shows_workers(tmp_path):
    for name in ("hidden", "out"):
        (tmp_path / name).mkdir()
    path = write_npy(tmp_path / "hidden" / "scan.npy", counting_frames((3, 4, 5), "uint16"))
    faults = f"unseen={tmp_path / 'hidden'},read_only={tmp_path / 'out'},clock=-9000"
    with cluster(tmp_path) as client:
        address = client.scheduler.address
        assert "workers     0" in doctor("--scheduler", address)
        with joining(client, "able") as able, joining(client, "blind", faults=faults) as blind:
            words = "--scheduler", address, path, "--target", tmp_path / "out" / "scan.zarr"
            found = json.loads(doctor(*words, "--json"), parse_constant=pytest.fail)
            table = doctor(*words)
    assert found["Scheduler"] == {
        "address": address, "dask-tiled": dask_tiled.__version__, "workers": 2,
    }  # fmt: skip
    told = {one["worker"]: one for one in found["Workers"]}
    assert told[able]["differs in"] == {}
    assert (told[able]["threads"], told[able]["memory"]) == (2, 600_000_000)
    assert told[blind]["differs in"]["files"] == [
        f"{path}: No such file or directory", f"{tmp_path / 'out'}: not writable",
    ]  # fmt: skip
    assert told[blind]["clock"] == pytest.approx(-9000, abs=30)
    assert re.search(rf"{able} .* {told[able]['process']} .* 572.2 MiB .*nothing", table)
    assert re.search(rf"{blind} .* files, clock", table)
    assert f"files: {path}: No such file or directory; " in table
    assert "no tasks" in table


def test_schedulers_that_do_not_answer(monkeypatch):
    monkeypatch.setattr("dask_tiled.command_line.cluster.CONNECT_SECONDS", 0.2)
    done = CliRunner().invoke(app, ["doctor", "--scheduler", "tcp://127.0.0.1:9"])
    assert done.exit_code == 2
    assert "tcp://127.0.0.1:9: no scheduler answers" in done.stderr


def test_files_need_a_scheduler():
    assert CliRunner().invoke(app, ["doctor", "scan.mib"]).exit_code == 2
