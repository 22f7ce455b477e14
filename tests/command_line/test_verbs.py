"""Commands do what the functions do, and cover every option of the functions."""

import importlib.util
import inspect
import json
import re
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

import dask_tiled
from dask_tiled.command_line import convert, doctor, info
from dask_tiled.command_line.app import app
from dask_tiled.command_line.opening import OPENING
from dask_tiled.exploring import server
from dask_tiled.testing import counting_frames, play, write_mib, write_raw

ROOT = Path(__file__).parents[2]
FRAMES = counting_frames((6, 8, 16, 16), "uint16")


@pytest.fixture
def scan(tmp_path, monkeypatch):
    """Write a scan to the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_mib("scan.mib", FRAMES)


def run(*words):
    """Run a command that succeeds, and return its output."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def facts(*words):
    """Return the output of a command with --json, which must be strict JSON."""
    return json.loads(run(*words, "--json"), parse_constant=pytest.fail)


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in {p.KEYWORD_ONLY, p.VAR_KEYWORD}}


def test_every_option_of_to_zarr_can_be_typed():
    told = {*defaults(dask_tiled.to_zarr)} - {"with_results"}  # given by --maps
    assert {one.name for one in convert.EXPORT} | {"follow"} == told
    known = defaults(dask_tiled.to_zarr)
    bare = [p for p in convert.EXPORT if p.type.name != "boolean" and not p.multiple]
    context = convert.convert.make_context("convert", ["a.mib", "b.zarr"])
    for option in bare:
        assert context.params[option.name] == known[option.name], option.name
    assert (context.params["resume"], context.params["overwrite"]) == (True, False)


def test_every_option_of_open_dataset_can_be_typed():
    known = defaults(dask_tiled.open_dataset)
    assert {one.name for one in OPENING} == {*known, "format", "dataset"}
    context = info.info.make_context("info", ["a.mib"])
    for option in OPENING:
        if option.name in known and not option.multiple:
            assert context.params[option.name] == known[option.name], option.name


def test_info_shows_description_and_scheme(scan):
    arr = dask_tiled.open_dataset(scan, nav_shape=(4, 4), chunks=(2, 4, -1, -1))
    told = facts("info", scan, "--nav-shape", "4x4", "--chunks", "2,4,-1,-1")
    assert told["nav_shape"] == [4, 4]
    assert told["dtype"] == "uint16"
    assert told["nbytes"] == arr.nbytes
    assert told["chunks"] == [list(axis) for axis in arr.chunks]
    assert told["frames_not_shown"] == 48 - 16
    assert [axis["name"] for axis in told["axes"]] == ["scan_y", "scan_x", "y", "x"]
    assert "sequence_number" in told["frame_headers"]
    assert told["metadata"]["mib"]["header"]["width"] == "0016"
    text = run("info", scan)
    for word in ("scan_y 6, scan_x 8", "24 KiB", "frame headers", "tile", "pixel type"):
        assert word in text


def test_info_of_real_files(data):
    told = facts("info", data / "blo/test2.blo")
    assert [(a["name"], a["size"], a["scale"], a["units"]) for a in told["axes"]][:2] == [
        ("scan_y", 2, 64.0, "nm"),
        ("scan_x", 3, 64.0, "nm"),
    ]
    picture = data / "more/hdf5/Camera_Ceta_Imaging_Micro.emd"
    short = run("info", picture)
    assert "more lines: pass --all" in short
    assert "XFEG" in short
    assert len(run("info", picture, "--all").splitlines()) > len(short.splitlines()) + 200


def test_control_characters_of_files_are_escaped(tmp_path):
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["frames"] = FRAMES
        file["frames"].attrs["note\x1b[2J"] = "\x1b]0;owned\x07 and [red]"
    text = run("info", tmp_path / "scan.h5", "--all")
    assert r"\x1b]0;owned\x07 and [red]" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_options_reach_the_file(tmp_path):
    path = tmp_path / "frames.bin"
    path.write_bytes(b"head" + FRAMES.astype(">u2").tobytes())
    words = ("--format", "raw", "--dtype", ">u2", "--sig-shape", "16,16", "-O", "file_header=4")
    told = facts(
        "info", path, *words, "--nav-shape", "6,8", "--sync-offset", "-3", "--missing=fill"
    )
    assert told["missing_frames"] == 3
    mask = np.zeros((6, 8), bool)
    mask[2, 3:5] = True
    np.save(tmp_path / "mask.npy", mask)
    out = tmp_path / "roi.zarr"
    run("convert", path, out, *words, "--nav-shape", "6,8", "--roi", tmp_path / "mask.npy")
    assert np.array_equal(zarr.open_array(out / "data")[:], FRAMES[mask])


def test_several_files_form_one_scan(tmp_path):
    parts = []
    for k, frames in enumerate(np.split(FRAMES.reshape(-1, 16, 16), 4)):
        parts.append(tmp_path / f"part_{k}.raw")
        write_raw(parts[-1], frames)
    words = ("--format=raw", "--dtype=u2", "--sig-shape=16,16")
    assert facts("info", *parts, *words)["nav_shape"] == [48]
    assert facts("info", tmp_path / "part_*.raw", *words)["nav_shape"] == [48]


@pytest.mark.thorough
def test_datasets_are_chosen_by_number_or_name(data):
    path = data / "more/hdf5/fei_example_dpc_titles.emd"
    by_number = [facts("info", path, "-d", k)["metadata"]["hdf5"]["title"] for k in range(3)]
    assert (
        facts("info", path, "--dataset", by_number[2])["metadata"]["hdf5"]["title"] == by_number[2]
    )


@pytest.mark.thorough
def test_preview_equals_show(scan):
    assert run("preview", scan, "-o", "preview.png", "--frames", "12") == "preview.png\n"
    dask_tiled.show(scan, "shown.png", frames=12)
    assert Path("preview.png").read_bytes() == Path("shown.png").read_bytes()


def test_convert_to_zarr(scan):
    out = run(
        *("convert", scan, "out.zarr", "--verify", "--chunks", "2,4,-1,-1", "--shards=4,8,-1,-1"),
        *("--compressor", "zstd:3", "--attribute", "sample=Au", "--attribute", "voltage=200.5"),
        *(f"--dimension-name={name}" for name in "abcd"),
    )
    assert out.count("out.zarr:") == 2
    opened = xarray.open_zarr("out.zarr")["data"]
    assert np.array_equal(opened, FRAMES)
    assert opened.dims == ("a", "b", "c", "d")
    assert (opened.attrs["sample"], opened.attrs["voltage"]) == ("Au", 200.5)
    array = zarr.open_array("out.zarr/data")
    assert (array.chunks, array.shards) == ((2, 4, 16, 16), (4, 8, 16, 16))
    assert array.compressors[0].to_dict()["configuration"]["level"] == 3
    assert "bit for bit" in run("verify", scan, "out.zarr")
    run("convert", scan, "out.zarr", "--overwrite", "--layout", "array", "--compressor", "none")
    assert np.array_equal(zarr.open_array("out.zarr")[:], FRAMES)


@pytest.mark.thorough
def test_convert_by_suffix(scan):
    """The suffix selects the format; options reach the formats that support them."""
    for name in ("a.npy", "a.tif", "a.hspy", "a.zspy", "a.zarr.zip"):
        out = run("convert", scan, name, "--verify", "--no-progress")
        assert [line.partition(":")[0] for line in out.splitlines()] == [name, name]
        compared = "equal to the file, bit for bit; all 24 KiB of pixels compared"
        assert run("verify", scan, name) == f"{name}: {compared}\n"
    assert np.array_equal(np.load("a.npy"), FRAMES)
    run("convert", scan, "a.hspy", "--overwrite", "--compressor", "none", "--chunks", "2,4,-1,-1")
    with h5py.File("a.hspy") as file:
        data = file["Experiments/__unnamed__/data"]
        assert (data.chunks, data.compression) == ((2, 4, 16, 16), None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["out.h5"], "out.h5: unknown suffix; expected one of .zarr, .zarr.zip, .hspy"),
        (["out"], "out: the name has no suffix; expected one of .zarr, .zarr.zip, .hspy"),
        (["a.npy", "--pyramid", "2"], "a.npy: files with the suffix .npy do not support --pyramid"),
        (["a.tif", "--follow"], "a.tif: files with the suffix .tif do not support --follow"),
    ],
)
def test_unknown_suffixes_and_options_are_refused(scan, words, line):
    done = CliRunner().invoke(app, ["convert", str(scan), *words])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"dask-tiled: {line}")
    assert sorted(x.name for x in Path().iterdir()) == ["scan.hdr", "scan.mib"]


def test_convert_with_pyramid(scan):
    run("convert", scan, "levels.zarr", "--pyramid", "2", "--verify")
    assert zarr.open_array("levels.zarr/level_2/data").shape == (6, 8, 4, 4)


def test_convert_follows_growing_files(scan):
    run("convert", scan, "out.zarr", "--follow", "--rest", "0.1", "--verify", "--no-progress")
    assert np.array_equal(zarr.open_array("out.zarr/data")[:], FRAMES)


def test_formats_lists_the_registry():
    assert {*facts("formats")} == {*dask_tiled.formats()}
    table = run("formats")
    assert all(name in table for name in dask_tiled.formats())
    assert run("formats", "merlin") == run("formats", "mib")


@pytest.mark.parametrize("name", dask_tiled.formats())
def test_formats_describes_every_option(name):
    text = run("formats", name)
    known = {*dask_tiled.formats()[name].options()} - {"dtype", "nav_shape", "sig_shape"}
    assert all(f"\n{option}  " in text for option in known)
    assert "see the documentation" not in text


def test_doctor_covers_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    (all_of_them,) = project["optional-dependencies"]["all"]
    extras = all_of_them.partition("[")[2].rstrip("]").split(",")
    assert {*doctor.USES} == {*extras}
    assert project["scripts"] == {"dask-tiled": "dask_tiled.command_line:main"}


@pytest.mark.thorough
def test_doctor_names_missing_packages(monkeypatch):
    assert "h5py 3" in facts("doctor", "--no-compile")["Extras"]["hdf5"]
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "h5py" else version(name))
    extras = facts("doctor", "--no-compile")["Extras"]
    assert extras["hdf5"].endswith('h5py missing. Run: pip install "dask-tiled[hdf5]"')
    assert "missing" not in extras["tiff"]


@pytest.mark.thorough
def test_doctor_shows_machine_and_compiled_code(monkeypatch):
    monkeypatch.setattr("dask_tiled.tiling.machine.memory", lambda: (8 << 30, 1 << 30))
    found = facts("doctor", "--no-compile")
    assert found["Machine"]["memory"] == "8 GiB"
    assert found["Machine"]["limit of this process"].startswith("1 GiB")
    known = importlib.util.find_spec("resource") is not None
    assert ("ulimit" if known else "not known") in found["Machine"]["open files"]
    assert found["Versions"]["dask-tiled"] == dask_tiled.__version__
    assert {*found["Machine code"]} == {"folder", "files", "damaged"}


@pytest.mark.slow
def test_doctor_measures_compilation():
    assert "of compiling" in facts("doctor")["Machine code"]["first sum"]


@pytest.mark.thorough
def test_maps_in_the_same_pass(tmp_path, monkeypatch):
    """convert prints the bright disk that it finds; without one, the error names --maps-disk."""
    monkeypatch.chdir(tmp_path)
    disk = np.hypot(*np.ogrid[-16:16, -16:16]) < 6
    pixels = np.where(disk, np.arange(12)[:, None, None] + 20, 1).astype("u2").reshape(3, 4, 32, 32)
    path = write_mib("scan.mib", pixels)
    out = run("convert", path, "out.zarr", "--maps", "bf,adf,com,mean,sum,max", "--no-progress")
    assert "bright disk at " in out
    assert " px, radius " in out
    group = zarr.open_group("out.zarr", mode="r")
    np.testing.assert_array_equal(group["bright_field"][...], pixels[..., disk].sum(-1))
    np.testing.assert_array_equal(group["dark_field"][...], pixels[..., ~disk].sum(-1))
    np.testing.assert_array_equal(group["max"][...], pixels.max((0, 1)))
    words = "--overwrite", "--maps", "bf", "--maps-disk", "16,16,1", "--no-progress"
    run("convert", path, "out.zarr", *words)
    found = zarr.open_array("out.zarr/bright_field", mode="r")[...]
    np.testing.assert_array_equal(found, pixels[..., 16, 16])
    flat = write_mib("flat.mib", np.ones((3, 4, 32, 32), "u2"))
    done = CliRunner().invoke(app, ["convert", str(flat), "flat.zarr", "--maps", "bf"])
    assert done.exit_code == 2
    assert "no bright disk" in done.output
    assert "Pass --maps-disk y,x,radius." in done.output
    assert not (tmp_path / "flat.zarr").exists()


def test_explore_shows_code_that_opens_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("roi.npy", np.eye(4, dtype=bool))
    served = []
    monkeypatch.setattr(server, "serve", lambda *given, **_: served.append(given))
    words = ["explore", "scan.mib", "--nav-shape", "4,4", "--roi", "roi.npy", "--axis", "x=2nm"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    [(path, options, source)] = served
    assert (path, options.keys()) == ("scan.mib", {"nav_shape", "roi", "axes"})
    named = "nav_shape=(4, 4), roi=np.load('roi.npy'), axes={'x': '2nm'}"
    assert source == f"dask_tiled.open_dataset('scan.mib', {named})"


@pytest.mark.thorough
def test_explore_records_the_stream_of_a_detector(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, served = write_mib("played.mib", FRAMES), []
    monkeypatch.setattr(
        server, "serve", lambda data, *told, **_: served.append((data.array.shape, *told))
    )
    with play(path) as url:
        result = CliRunner().invoke(app, ["explore", url, "--record", "scan.mib"])
    assert result.exit_code == 0, result.output
    assert "waiting for the first frame" in result.output
    assert served == [
        (
            FRAMES.shape,
            {},
            f"dask_tiled.open_dataset({str(tmp_path / 'scan.mib')!r}, missing='fill')",
        )
    ]
    for words in (["played.mib", "--record", "b.mib"], [url, "--disk", "2 mrad"]):
        assert CliRunner().invoke(app, ["explore", *words]).exit_code == 2


@pytest.mark.thorough
def test_convert_all_datasets(tmp_path, monkeypatch):
    """--all converts and compares each dataset; without it, a line says which one is converted."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("maps.h5", "w") as file:
        file["counts"], file["maps/C"] = FRAMES, FRAMES[0, 0]
        file["maps/a:b"] = FRAMES[0, 1]
    out = run("convert", "maps.h5", "one.zarr", "--no-progress")
    assert "maps.h5: dataset 1 of 3, 'counts'; pass --all to convert each" in out
    assert "pass --all" not in run("convert", "maps.h5", "C.zarr", "-d", "maps/C", "--no-progress")
    out = run("convert", "maps.h5", "all.zarr", "--all", "--verify", "--no-progress")
    assert re.search(r"all.zarr: 25 KiB of pixels of 3 datasets as .* KiB, in .* s", out)
    for name in ("counts", "C", "a_b ('a:b')"):
        assert f"all.zarr/{name}: equal to the file, bit for bit; all " in out
    group = zarr.open_group("all.zarr", mode="r")
    np.testing.assert_array_equal(group["counts/data"][...], FRAMES)
    np.testing.assert_array_equal(group["C/data"][...], FRAMES[0, 0])
    write_mib("scan.mib", FRAMES)
    out = run("convert", "scan.mib", "scan.zarr", "--all", "--verify", "--no-progress")
    assert "scan.zarr: equal to the file, bit for bit" in out
    assert "scan.zarr/" not in out + run("verify", "scan.mib", "scan.zarr", "--all")
    for words, told in (
        (("--all", "-d", "1"), "--dataset applies to one dataset, not with --all"),
        (("--all", "--maps", "sum"), "--maps applies to one dataset"),
        (("--all", "--follow"), "--follow applies to one dataset"),
        (("--all", "--dimension-name", "a"), "--dimension-name applies to one dataset"),
    ):
        done = CliRunner().invoke(app, ["convert", "maps.h5", "more.zarr", *words])
        assert done.exit_code == 2
        assert told in done.output
    done = CliRunner().invoke(app, ["convert", "maps.h5", "all.tif", "--all"])
    assert done.exit_code == 2
    assert "the format holds one array; expected .zarr or .zarr.zip" in done.output
    assert not (tmp_path / "more.zarr").exists()
