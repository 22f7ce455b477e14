"""Runs that are killed at random moments end with the right values, and read little again.

``make fuzz-export`` repeats it many times.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

pytestmark = pytest.mark.slow

REPEATS = 40 if settings.default.max_examples >= 500 else 1


def test_killed_runs_are_resumed(tmp_path):
    program = [sys.executable, "-W", "error", Path(__file__).with_name("killed_runs.py")]
    command = [*program, tmp_path, str(REPEATS), "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr
    sys.stdout.write(f"killed runs: {done.stdout}\n")
    found = json.loads(done.stdout)
    assert found["equal"] == REPEATS + 1, done.stderr
    assert found["killed"] >= 2 * REPEATS
    # A kept result combines at most four others, each of less than a 16th of all bytes; a kill may
    # lose one of the mean and one of the standard deviation, of different chunks.
    assert found["lost"] <= 2 * 4 / 16
