"""A short ``make soak`` passes, and planted faults are found."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "soak" / "soak.py"


def soak(*arguments):
    """Run the program; return its output and its verdict."""
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    verdict = (done.stdout or "nothing").splitlines()[-1]
    assert verdict.startswith(("PASS", "FAIL")), done.stdout + done.stderr
    assert (done.returncode == 0) == (verdict == "PASS")
    return done.stdout + done.stderr, verdict


def test_a_short_run_passes():
    """The first operations, one of each format, have no faults: most of them are left out."""
    output, verdict = soak("--first", 100, "--operations", 100, "--warm-up", 40)
    assert verdict == "PASS", output


def test_threads_that_write_samples_at_the_same_time_get_different_versions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    from samples import Versions

    names = [name for name in ("raw", "npy C", "mib u16", "pts", "pts frames") for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda name: Versions.of(tmp_path, name), names))
    assert len(set(map(id, versions))) == 5


def test_planted_faults_are_found():
    planted = "a_descriptor,a_pixel=40,a_thread,memory,a_file"
    output, verdict = soak("--operations", 75, "--warm-up", 15, "--plant", planted)
    for found in ("checksums", "leftovers", "descriptors of the client"):
        assert found in verdict, output
    for found in ("threads", "RSS MiB"):  # dask chooses the worker that does most of the work
        assert re.search(f"{found} of the (failing )?worker", verdict), output
    assert "too few samples" not in verdict, output


def test_a_hang_is_found():
    output, verdict = soak("--operations", 40, "--limit", 8, "--plant", "a_hang=1")
    assert "hangs" in verdict, output


def test_filled_frames_need_a_warning(monkeypatch):
    """Only frames that were not seen before may be filled; other differences are found."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    from judging import FoundError, compare_rested

    truth = np.arange(1, 61).reshape(5, 4, 3)
    warning = "scan.raw: the file has stopped growing; {} of 5 frames are missing".format

    def filled(*frames):
        found = truth.copy()
        found[list(frames)] = 0
        return found

    compare_rested(truth, truth, 2, [], 3, 0)
    compare_rested(filled(3, 4), truth, 2, [warning(2)], 3, 2)
    for found, warnings, most, absent in (
        (filled(3, 4), [], 3, 2),
        (filled(3, 4), ["something else"], 3, 2),
        (filled(3, 4), [warning(2)] * 2, 3, 2),
        (filled(3, 4), [warning(2)], 1, 2),  # one of them had been seen
        (filled(3, 4), [warning(2)], 3, 1),  # one of them is there
        (filled(4), [warning(2)], 3, 2),
        (filled(2, 3, 4), [warning(2)], 3, 2),
        (filled(2, 4), [warning(2)], 3, 2),
        (filled(3, 4)[::-1], [warning(2)], 3, 2),
        (truth + 1, [], 3, 0),
    ):
        with pytest.raises(FoundError):
            compare_rested(found, truth, 2, warnings, most, absent)
