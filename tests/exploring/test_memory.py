"""`explore` on a scan of twice the memory, from first estimates to exact pictures."""

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 5 << 28

EXPLORING = """
import resource, sys, threading
limit, path = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

import numpy as np
from dask_tiled import open_dataset
from dask_tiled.exploring.pictures import Pictures
from dask_tiled.exploring.session import PageSession

arr = open_dataset(path, "raw", dtype="u2", nav_shape=(40, 512), sig_shape=(256, 256))
assert arr.nbytes == 2 * limit
errors = []
session = PageSession(Pictures.of(arr, {}), lambda m: m.kind == "error" and errors.append(m.head))
session.begin()

def rest():
    assert session.wait(400) and session.wait(400)

rest()
for radius in range(20, 30):
    detector = session.state.detector._replace(shape="disk", radius=radius)
    session._show(session.state._replace(detector=detector))
    session._image_jobs.wait(0.05)
session._show(session.state._replace(region=((0, 40), (0, 512))))
rest()
assert not errors, errors
image = session.image()
assert image.shape == (40, 512)
assert image[5, 7] == 3 * session.mask.sum() and image.sum() == image[5, 7]
session.close()
assert threading.active_count() == 1
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_scan_of_twice_the_memory(tmp_path):
    path = tmp_path / "scan.raw"
    frame = 256 * 256 * 2
    with path.open("wb") as file:
        file.truncate(2 * LIMIT)  # sparse but for one frame
        file.seek((5 * 512 + 7) * frame)
        file.write(b"\3\0" * (frame // 2))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", EXPLORING, str(LIMIT), str(path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
