"""Errors of the command line: one line on stderr, an exit code, and no traceback."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from functools import partial

import numpy as np
import pytest
import zarr
from checks import unprivileged
from click.shell_completion import get_completion_class
from click.testing import CliRunner

import dask_tiled
from dask_tiled import DatasetError
from dask_tiled.command_line import values
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_mib, write_ripple

COMMAND = [sys.executable, "-m", "dask_tiled"]


@pytest.fixture
def scan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.csv").write_text("1, 2, 3\n")
    return write_mib("scan.mib", counting_frames((6, 8, 16, 16), "uint16"))


def error_of(*words, code=2):
    """Run a command that fails, and return its line on stderr."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    line, end = done.stderr[:-1], done.stderr[-1]
    assert end == "\n"
    assert line.isprintable()
    assert line.startswith("dask-tiled: ")
    return line


@pytest.mark.thorough
@pytest.mark.usefixtures("scan")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("info nothing.mib", "nothing.mib: No such file"),
        ("info no*.mib", "no file matches"),
        ("info scan.mib --format mibb", "found 'mibb'. Do you mean 'mib'?"),
        ("info text.csv", "looks like text. Pass --format if you know it, or --dtype and"),
        ("info text.csv", "plain frames; `dask-tiled formats` lists the supported formats."),
        ("info scan.mib --nav-shape 4,x", "'--nav-shape': expected something like 64,64"),
        ("info scan.mib --chunks 4,4", "chunks of (6, 8, 16, 16)"),
        ("info scan.mib --tiling rows", "frame, or tile,depth=16"),
        ("info scan.mib -O colour=red", "has no option 'colour'"),
        ("info scan.mib -O series=no", "invalid series; expected True or False; found no"),
        ("info scan.mib -O colour", "expected something like key=value"),
        ("info scan.mib --roi scan.mib", "not a NumPy array"),
        ("info scan.mib --dtype nonsense", "nonsense"),
        ("info", "Missing argument 'FILE...'. Try: dask-tiled info --help"),
        ("inf", "No such command 'inf'. Did you mean 'info'? Try: dask-tiled --help"),
        ("formats mibb", "Do you mean 'mib'?"),
        ("preview scan.mib", "Missing option '--output'"),
        ("preview scan.mib -o picture.xyz", "xyz"),
        ("preview scan.mib -o picture", "found no suffix"),
        ("preview scan.mib -o nowhere/picture.png", "nowhere"),
        ("preview scan.mib -o picture.png --frames 0", "frames must be a whole number"),
        ("convert scan.mib out.zarr --compressor foo", "zarr rejects the settings"),
        ("convert scan.mib out.zarr --compressor {", "codec as JSON"),
        ("convert scan.mib out.zarr --pyramid all", "expected something like auto or 3"),
        ("convert scan.mib /dev/null/out.zarr", "/dev/null/out.zarr"),
        ("convert scan.mib scan.mib", "scan.mib"),
    ],
)
def test_bad_input_gives_one_line(words, says):
    assert says in error_of(*words.split())


def test_verify_exits_with_1_if_data_differ(scan):
    assert "the store is empty or does not exist" in error_of("verify", scan, "out.zarr", code=1)
    dask_tiled.to_zarr(dask_tiled.open_dataset(scan), "out.zarr")
    zarr.open_array("out.zarr/data")[4, 3, 2, 1] = 0
    assert "a pixel differs, at [4, 3, 2, 1]" in error_of("verify", scan, "out.zarr", code=1)


@pytest.mark.filterwarnings("default")
def test_messages_name_options_as_typed(scan):
    dask_tiled.to_zarr(dask_tiled.open_dataset(scan), "out.zarr")
    assert "Pass --overwrite to replace it." in error_of("convert", scan, "out.zarr")
    with open("frames.raw", "wb") as file:
        file.write(bytes(1000))
    assert "--dtype and --sig-shape" in error_of("info", "frames.raw", "--format", "raw")
    with open("notes.txt", "w", encoding="utf8") as file:
        file.write("no pixels here")
    assert "looks like text. Pass --format" in error_of("info", "notes.txt")
    done = CliRunner().invoke(app, ["info", str(scan), "--nav-shape", "9,9", "--json"])
    assert done.exit_code == 0
    assert "warning:" in done.stderr
    assert "33 of 81 frames are missing" in done.stderr
    assert "Pass --missing fill if" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("default")
def test_repeated_warnings_are_printed_once(scan, monkeypatch):
    def warned(*_, **__):
        for k in range(3):
            warnings.warn_explicit("such pixels\nare rare", UserWarning, "zarr.py", k)
        raise DatasetError("enough")

    monkeypatch.setattr("dask_tiled.opening.describing.describe", warned)
    stderr = CliRunner().invoke(app, ["info", str(scan)]).stderr
    assert stderr == "dask-tiled: warning: such pixels are rare\ndask-tiled: enough\n"


@pytest.mark.parametrize("words", ["info scan.mib", "info other.mib --roi scan.mib"])
def test_unreadable_files(scan, words):
    shutil.copy(scan, "other.mib")
    os.chmod(scan, 0)
    with unprivileged():
        assert error_of(*words.split()) == f"dask-tiled: {scan}: Permission denied"


@pytest.mark.parametrize("verb", ["info", "convert", "preview", "verify"])
def test_strict_refuses_open_choices(tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    write_mib("row.mib", np.ones((6, 4, 8), "u2"), hdr=False)
    target = {"convert": ["out.zarr"], "preview": ["-o", "out.png"], "verify": ["out.zarr"]}.get(
        verb, []
    )
    line = error_of(verb, "row.mib", *target, "--strict", code=3)
    assert "6 frames are shown in a row" in line
    assert "Pass --nav-shape rows,columns, or --nav-shape 6 for a series." in line
    assert os.listdir() == ["row.mib"]


@pytest.mark.thorough
@pytest.mark.usefixtures("scan")
def test_strict_tells_incomplete_files_alike():
    """A stopped scan ends with status 3 in every command, after its work; a whole one with 0."""
    stopped = ["scan.mib", "--nav-shape", "7,8", "--missing", "fill"]
    verbs = {
        "info": [],
        "preview": ["-o", "out.png"],
        "convert": ["out.zarr", "--no-progress"],
        "verify": ["out.zarr", "--no-progress"],
    }
    for verb, target in verbs.items():
        done = CliRunner().invoke(app, [verb, *stopped, *target, "--strict"])
        assert done.exit_code == 3, done.output
        assert done.stderr.endswith(": not complete: 48 of 56 frames\n")
        assert done.stdout
        again = ["--overwrite"] if verb == "convert" else []
        assert CliRunner().invoke(app, [verb, *stopped, *target, *again]).exit_code == 0
        whole = [verb, "scan.mib", *(word.replace("out.zarr", "whole.zarr") for word in target)]
        assert CliRunner().invoke(app, [*whole, "--strict"]).exit_code == 0
    done = CliRunner().invoke(app, ["info", *stopped, "--json", "--strict"])
    assert (done.exit_code, json.loads(done.stdout)["missing_frames"]) == (3, 8)
    for verb, target in (("convert", "all.zarr"), ("verify", "all.zarr")):
        done = CliRunner().invoke(app, [verb, *stopped, target, "--all", "--strict"])
        assert done.exit_code == 3, done.output
        assert done.stderr.endswith("all.zarr: not complete: 48 of 56 frames\n")


def test_options_of_formats_settle_doubts_as_they_are_told(tmp_path):
    """An option of a format is named as it is typed, and settles the doubt."""
    keys = {"byte-order": "dont-care"}
    path = write_ripple(tmp_path / "a.rpl", np.ones((3, 4, 8), "u2"), further=keys)[1]
    line = error_of("info", path, "--strict", code=3)
    assert line.endswith("Pass -O byte_order=little, or -O byte_order=big.")
    told = re.findall(r"-O (\S+?)[,.]", line)
    for option in told:
        done = CliRunner().invoke(app, ["info", str(path), "--strict", "-O", option])
        assert done.exit_code == 0
    assert told == ["byte_order=little", "byte_order=big"]


def test_unexpected_errors_give_one_line(scan, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a fault\nof ours")

    monkeypatch.setattr("dask_tiled.opening.describing.describe", broken)
    line = error_of("info", scan, code=70)
    assert "unexpected ZeroDivisionError: a fault" in line
    assert "--traceback" in line
    done = CliRunner().invoke(app, ["--traceback", "info", str(scan)])
    assert isinstance(done.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.read_sizes, "64,32", (64, 32)),
        (values.read_sizes, "-1x32", (-1, 32)),
        (values.read_value, "3", 3),
        (values.read_value, '"3"', "3"),
        (values.read_value, "None", None),
        (values.read_value, "4,5", (4, 5)),
        (values.read_value, "/entry/data", "/entry/data"),
        (values.read_pair, "a=b=c", ("a", "b=c")),
        (values.read_chunks, "64MiB", "64MiB"),
        (values.read_chunks, "auto", "auto"),
        (values.read_chunks, "4,auto,-1,-1", (4, "auto", -1, -1)),
        (values.read_chunks, "scan_y=4,x=-1", {"scan_y": 4, "x": -1}),
        (values.read_compressor, "none", None),
        (values.read_compressor, "gzip", {"name": "gzip", "configuration": {}}),
        (values.read_compressor, '{"name": "x"}', {"name": "x"}),
        (values.read_levels, "auto", True),
        (values.read_tiling, "tile,depth=4", dask_tiled.TilingRequest("tile", depth=4)),
    ],
)
def test_values_as_typed(read, text, value):
    assert read(text) == value


def test_shell_completion():
    for shell in ("bash", "zsh", "fish"):
        completion = get_completion_class(shell)(app, {}, "dask-tiled", "_DASK_TILED_COMPLETE")
        assert "_DASK_TILED_COMPLETE=" in completion.source()
    assert {one.value for one in completion.get_completions([], "")} == {*app.commands}
    assert [one.value for one in completion.get_completions(["info", "-f"], "mi")] == ["mib"]
    assert [one.value for one in completion.get_completions(["formats"], "ome")] == ["ome_tiff"]
    (files,) = completion.get_completions(["info"], "sc")
    assert files.type == "file"
    flags = {one.value for one in completion.get_completions(["convert"], "--")}
    assert {"--verify", "--nav-shape", "--compressor"} <= flags


def run(*words, **options):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    code = """
import sys
from dask_tiled.command_line import main
sys.argv[1:] = ["convert", "--help"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--compressor" in done.stdout
    assert not {"dask", "numba", "numpy", "rich", "zarr"} & {*done.stderr.split()}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["click", "rich"])
def test_missing_extra_names_the_package(library, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        f"u.find_spec = lambda name, *_: None if name == {library!r} else find(name, *_)\n"
    )
    done = run("info", env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith('Run: pip install "dask-tiled[cli]"\n')
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", ["formats", "--help", "--traceback formats"])
def test_closed_pipe_prints_nothing(words):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(
            [*COMMAND, *words.split()], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_ascii_terminals(tmp_path):
    path = tmp_path / "Bär µ [red].npy"
    np.save(path, np.zeros((4, 4)))
    done = run("info", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "[red].npy" in done.stdout


@pytest.mark.slow
def test_interrupted_exports_tell_how_to_resume(tmp_path):
    path = tmp_path / "frames.raw"
    with open(path, "wb") as file:
        file.truncate(48 << 30)  # more than is written before the signal
    out = tmp_path / "out.zarr"
    words = ["convert", path, out, "--format=raw", "--dtype=u1", "--sig-shape=256,256"]
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Shells make background processes, such as these tests, ignore SIGINT.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    part = tmp_path / "out.zarr.part"
    while process.poll() is None and not any("/c/" in f"{here}/" for here, *_ in os.walk(part)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    lines = [x for x in stderr.splitlines() if not x.startswith("... compiled in ")]  # at exit
    assert lines[-1] == "dask-tiled: interrupted. Run the same command to resume."
    assert not out.exists()
