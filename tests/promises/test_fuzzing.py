"""Damaged files, 10 of every format, are opened or raise the right error.

`make fuzz` tries 10,000 of each.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing.mutators import Mutation, change_pixel
from fuzzing.planted import FAULTS
from fuzzing.seeds import seeds_of, written
from fuzzing.trial import Trial, same, write

from dask_tiled import DatasetError, open_dataset
from dask_tiled.formats.registry import _MODULES

pytestmark = pytest.mark.slow

KINDS = {"death", "hang", "slow", "error", "memory", "stderr", "warning", "message"}


def fuzz(*arguments):
    """Run the fuzzer; return its exit code and its output."""
    folders = [str(Path(__file__).parents[k]) for k in (1, 2)]
    done = subprocess.run(
        [sys.executable, "-m", "fuzzing", "--jobs", "1", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "name",
    ["mrc i2", "mib 1 bit", "mib 6 bit", "mib 12 bit", "tiff packed", "mrc gzip", "nrrd gzip"],
)
def test_changed_pixels_are_predicted(tmp_path, name):
    """Mutations predict the pixels of packed and compressed files, too."""
    seed, rng = written(name), random.Random(0)  # noqa: S311
    assert len(seed.places) == 12
    changed = 0
    for k in range(10):
        mutation = Mutation(dict(seed.files))
        change_pixel(rng, seed, mutation)
        folder = tmp_path / str(k)
        write(folder, seed, mutation.files, tmp_path / "whole")
        found = open_dataset(**seed.opening(folder)).compute(scheduler="synchronous")
        assert same(found, mutation.pixels), mutation.notes
        changed += not same(found, seed.expected)
    assert changed > 5  # some bits belong to no pixel


def test_variants_have_seeds_of_their_own():
    """They are those of the table, without real files of the format."""
    names = [seed.name for seed in seeds_of("hdf5 delmic")]
    assert names == ["hdf5 delmic", "hdf5 delmic chunks"]
    assert [seed.name for seed in seeds_of("hdf5 dm5")] == ["hdf5 dm5"]


def test_damaged_files_do_no_harm():
    code, printed = fuzz("--count", "10")
    assert code == 0, printed
    assert printed.count("PASS") == len(_MODULES) + 1


def test_every_planted_fault_is_found():
    """The fuzzer reports each kind of fault."""
    code, printed = fuzz(
        "planted", "--count", "22", "--seed", "2", "--patience", "8", "--slow", "0.5"
    )
    assert code == 1, printed
    found = re.findall(r"\d+ x ([\w ]+):", printed)
    assert set(found) == KINDS | {"bounds", "wrong"}, printed
    assert {*FAULTS, "wrong"} == {*found, "nothing"}


@pytest.mark.parametrize(("path", "kinds"), [("scan.raw", []), (None, ["no file"])])
def test_errors_without_a_file_are_found(path, kinds):
    class Refused(Trial):
        def _run(self):
            raise DatasetError("wrong", path=path)

    outcome = Refused(None, None, None, None, None).run()
    assert [kind for kind, _ in outcome.finds] == kinds


def test_fault_in_a_structure_is_found():
    """Hypothesis draws the trees, as damaged bytes hardly ever form one."""
    code, printed = fuzz("planted", "--count", "50", "--structures")
    assert code == 1, printed
    found = re.findall(r"\d+ x ([\w ]+): (.*) \[", printed)
    assert found == [("error", "LookupError: a tree in a tree")], printed
