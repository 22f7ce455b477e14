"""Exports of acquisitions that lack frames say so, in attributes, on the command line and later."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import dask_tiled
from dask_tiled import describe, explain, open_dataset, to_xarray, to_zarr
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_mib, write_mib_series

pytestmark = [
    pytest.mark.usefixtures("synchronous"),
    pytest.mark.filterwarnings("ignore:.*frames are missing", "ignore:.*may"),
]

FRAMES = counting_frames((16, 4, 8), "u2")


def write_master(folder, *, announced=24, links=3):
    """Write a master with two parts of eight frames, and links to further ones."""
    path = folder / "s_master.h5"
    with h5py.File(path, "w") as file:
        for k in range(1, links + 1):
            link = h5py.ExternalLink(f"s_data_{k:06d}.h5", "entry/data/data")
            file[f"entry/data/data_{k:06d}"] = link
        if announced:
            detector = file.create_group("entry/instrument/detector/detectorSpecific")
            detector["nimages"], detector["ntrigger"] = announced // 2, 2
    for k in (1, 2):
        with h5py.File(folder / f"s_data_{k:06d}.h5", "w") as file:
            file["entry/data/data"] = FRAMES[8 * k - 8 : 8 * k]
    return path


def run(*words, code=0):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


def mark_of(path):
    return zarr.open_array(path / "data", mode="r").attrs["dask_tiled"]


def test_an_unfinished_master(tmp_path):
    path, out = write_master(tmp_path), tmp_path / "out.zarr"
    arr = open_dataset(path)
    assert arr.shape == (24, 4, 8)
    assert not arr.description.complete
    np.testing.assert_array_equal(arr.description.missing, np.arange(16, 24))
    assert explain(arr.sum(0)).lacking == ("s_data_000002.h5: 16 of 24 frames",)
    assert "not complete  s_data_000002.h5: 16 of 24 frames" in str(explain(arr))
    assert to_zarr(arr, out).attrs["dask_tiled"]["complete"] is False
    again = open_dataset(out).description
    assert not again.complete
    assert again.lacking() == "16 of 24 frames"
    part = arr[:16].description
    assert part.complete
    assert to_xarray(arr).attrs["complete"] == 0


def test_an_unfinished_master_on_the_command_line(tmp_path):
    path, out = write_master(tmp_path), tmp_path / "out.zarr"
    done = run("convert", path, out, "--verify", "--no-progress")
    lines = done.stdout.splitlines()
    assert lines[1] == f"{out}: not complete: 16 of 24 frames"
    told = (
        "16 of 24 frames are equal to the file, bit for bit; 8 are missing in it, and 0 in both; "
    )
    assert lines[2] == f"{out}: {told}all 1.5 KiB of pixels compared"
    assert "16 of 24 frames" in run("verify", path, out).stdout
    done = run("convert", path, tmp_path / "no.zarr", "--strict", code=3)
    assert "8 of 24 frames are missing" in done.stderr
    done = run("convert", path, out, "--overwrite", "--strict", "--missing", "fill", code=3)
    assert "not complete: 16 of 24 frames" in done.stderr
    told = json.loads(run("info", path, "--json").stdout)
    assert (told["missing_frames"], told["complete"]) == (8, False)


def test_a_finished_master_is_complete(tmp_path):
    path, out = write_master(tmp_path, announced=16, links=2), tmp_path / "out.zarr"
    done = run("convert", path, out, "--verify", "--strict", "--no-progress")
    assert "complete" not in done.output
    assert "complete" not in mark_of(out)
    assert open_dataset(out).description.complete
    assert json.loads(run("info", path, "--json").stdout)["complete"]


@pytest.mark.parametrize("options", [[], ["--missing", "fill"]])
def test_a_master_that_announces_nothing(tmp_path, options):
    """The number of lost frames is unknown, so all that is there may not be all."""
    path, out = write_master(tmp_path, announced=0), tmp_path / "out.zarr"
    done = run("convert", path, out, "--no-progress", *options)
    assert f"{out}: not complete: 16 frames, and perhaps not all" in done.stdout
    assert mark_of(out)["complete"] is False
    assert not open_dataset(out, doubts="ignore").description.complete
    run("convert", path, out, "--overwrite", "--strict", *options, code=3)
    run("convert", path, out, "--overwrite", "--strict", "--nav-shape", "16")


def test_more_frames_than_a_master_announces(tmp_path):
    path = write_master(tmp_path, announced=10, links=2)
    desc = describe(path)
    (doubt,) = desc.doubts
    assert (desc.shape[0], doubt.code, desc.complete) == (16, "left-over-frames", True)
    assert "16 frames are shown, 6 more than nimages x ntrigger" in doubt.text
    assert describe(path, nav_shape=(10,)).doubts == ()


def test_a_master_under_way_is_followed(tmp_path):
    """Announced frames are missing until their part arrives."""
    path = write_master(tmp_path)
    arr = open_dataset(path, follow=True)
    assert (arr.shape[0], len(arr.description.missing)) == (24, 8)
    with h5py.File(tmp_path / "s_data_000003.h5", "w") as file:
        file["entry/data/data"] = FRAMES[:8]
    arr = arr.refresh()
    assert arr.description.complete
    np.testing.assert_array_equal(arr[16:], FRAMES[:8])


def test_a_lost_middle_file_and_a_surplus_scan(tmp_path):
    paths = write_mib_series(tmp_path / "lost", FRAMES, frames_per_file=4, hdr=False)
    paths[1].unlink()
    out = tmp_path / "out.zarr"
    done = run("convert", paths[0], out, "--missing", "fill", "--no-progress")
    assert f"{out}: not complete: 12 of 16 frames" in done.stdout
    run("convert", paths[0], out, "--overwrite", "--strict", code=3)
    path = write_mib(tmp_path / "more.mib", FRAMES, nav_shape=(3, 5), scan_keys=True)
    done = run("convert", path, out, "--overwrite", "--verify", "--no-progress")
    assert "all 960 B of pixels compared; 1 frames of the file are not shown" in done.stdout
    run("convert", path, out, "--overwrite", "--strict", code=3)


def test_exports_of_results_are_not_complete(tmp_path):
    arr = open_dataset(write_master(tmp_path))
    to_zarr(arr.sum(0), tmp_path / "sum.zarr")
    assert mark_of(tmp_path / "sum.zarr")["complete"] is False
    (doubt,) = describe(tmp_path / "sum.zarr").doubts
    assert doubt.code == "unfinished"
    assert not describe(tmp_path / "sum.zarr", missing="fill").doubts


WRITER = """
import h5py, sys
file = h5py.File(sys.argv[1], "w", libver="latest")
data = file.create_dataset("data", (4, 8, 8), "u2", chunks=(1, 8, 8), maxshape=(None, 8, 8))
file.swmr_mode = True
data[:] = 5
data.flush()
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_file_that_another_program_writes(tmp_path):
    path = tmp_path / "scan.h5"
    command = [sys.executable, "-c", WRITER, os.fspath(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"written\n"
        desc = describe(path)
        (doubt,) = desc.doubts
        assert (doubt.code, desc.complete) == ("unfinished", False)
        assert describe(path, follow=True).doubts == ()
        assert describe(path, missing="fill").doubts == ()
        writer.communicate()
    assert describe(path).complete
    assert dask_tiled.open_dataset(path).shape == (4, 8, 8)
