"""Damaged files: 100 of every format are opened or refused as they should be, and nothing else.

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
from fuzzing.seeds import written
from fuzzing.trial import same, write

from dask_tiled import open_dataset
from dask_tiled.formats.registry import _MODULES

pytestmark = pytest.mark.slow

GROUPS = [_MODULES[k::2] for k in range(2)]
KINDS = {"death", "hang", "slow", "error", "memory", "stderr", "warning", "message", "no file"}


def fuzz(*arguments):
    """Run the command, and give its exit code and what it prints."""
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
def test_pixels_that_change_are_known(tmp_path, name):
    """Also where they are packed or compressed: numpy and zlib tell them."""
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


@pytest.mark.parametrize("formats", GROUPS, ids="-".join)
def test_no_damage_does_any_harm(formats):
    code, printed = fuzz(*formats, "--count", "100")
    assert code == 0, printed
    assert printed.count("PASS") == len(formats) + 1


def test_every_planted_fault_is_found():
    """A harness that finds nothing proves nothing."""
    code, printed = fuzz("planted", "--count", "20", "--patience", "3", "--slow", "0.5")
    assert code == 1, printed
    found = re.findall(r"\d+ x ([\w ]+):", printed)
    assert set(found) == KINDS | {"bounds", "wrong"}, printed
    assert {*FAULTS, "wrong"} == {*found, "nothing"}


def test_fault_in_a_structure_is_found():
    """Damaged bytes are hardly ever a tree: hypothesis draws them."""
    code, printed = fuzz("planted", "--count", "50", "--structures")
    assert code == 1, printed
    found = re.findall(r"\d+ x ([\w ]+): (.*) \[", printed)
    assert found == [("error", "LookupError: a tree in a tree")], printed
