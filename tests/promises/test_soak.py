"""The short form of ``make soak``: nothing goes wrong, and faults that are planted are found."""

import subprocess
import sys
from pathlib import Path

import numpy as np
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
    planted = "a_descriptor,a_pixel=40,a_thread,memory,a_file"
    output, verdict = soak("--operations", 90, "--warm-up", 30, "--plant", planted)
    for found in (
        "checksums", "leftovers", "descriptors of the client", "threads of the worker",
        "RSS MiB of the worker",
    ):  # fmt: skip
        assert found in verdict, output


def test_a_hang_is_found():
    output, verdict = soak("--operations", 40, "--limit", 8, "--plant", "a_hang=30")
    assert "hangs" in verdict, output


def test_frames_that_are_filled_are_said(monkeypatch):
    """Of those alone that nobody had seen; what is filled otherwise, or mixed, is found."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    from judging import FoundError, compare_rested

    truth = np.arange(1, 61).reshape(5, 4, 3)
    said = "scan.raw: the file has stopped growing; {} of 5 frames are missing".format

    def filled(*frames):
        found = truth.copy()
        found[list(frames)] = 0
        return found

    compare_rested(truth, truth, 2, [], 3, 0)
    compare_rested(filled(3, 4), truth, 2, [said(2)], 3, 2)
    for found, told, most, absent in (
        (filled(3, 4), [], 3, 2),
        (filled(3, 4), ["something else"], 3, 2),
        (filled(3, 4), [said(2)] * 2, 3, 2),
        (filled(3, 4), [said(2)], 1, 2),  # one of them had been seen
        (filled(3, 4), [said(2)], 3, 1),  # one of them is there
        (filled(4), [said(2)], 3, 2),
        (filled(2, 3, 4), [said(2)], 3, 2),
        (filled(2, 4), [said(2)], 3, 2),
        (filled(3, 4)[::-1], [said(2)], 3, 2),
        (truth + 1, [], 3, 0),
    ):
        with pytest.raises(FoundError):
            compare_rested(found, truth, 2, told, most, absent)
