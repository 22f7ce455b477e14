"""The short form of ``make soak``: nothing goes wrong, and faults that are planted are found."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "soak" / "soak.py"


def soak(*arguments):
    """Run it, and give its output and its verdict."""
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    verdict = (done.stdout or "nothing").splitlines()[-1]
    assert verdict.startswith(("PASS", "FAIL")), done.stdout + done.stderr
    assert (done.returncode == 0) == (verdict == "PASS")
    return done.stdout + done.stderr, verdict


def test_nothing_goes_wrong():
    output, verdict = soak("--operations", 200)
    assert verdict == "PASS", output


def test_what_is_planted_is_found():
    planted = "a_descriptor,a_pixel=40,a_hang=500,a_thread,memory,a_file"
    short = ["--operations", 140, "--warm-up", 30, "--limit", 15]
    output, verdict = soak(*short, "--plant", planted)
    for found in (
        "checksums", "hangs", "leftovers", "descriptors of the client", "threads of the worker",
        "RSS MiB of the worker",
    ):  # fmt: skip
        assert found in verdict, output
