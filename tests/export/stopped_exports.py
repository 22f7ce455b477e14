"""Exports that are killed, interrupted, refused by the disk, or begun twice; run as a program.

It forks, so nothing here may start a thread outside of a child. It prints what came of it.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from functools import partial
from glob import glob
from subprocess import run

import distributed  # noqa: F401 - once, not in every fork
import numpy as np
import tqdm.auto  # noqa: F401 - as above
import zarr

from dask_tiled import DatasetError, open_dataset, to_zarr

SHAPE = (96, 64, 64)
FOLDER, REPEATS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
OUT = f"{FOLDER}/out.zarr"
DRAW = np.random.default_rng(SEED)
EXPECTED = DRAW.poisson(4, SHAPE).astype("u2")
EXPECTED[::3] = 0


def export(**options):
    """Export the scan in 48 chunks, or 16 shards."""
    raw = {"format": "raw", "dtype": "u2", "sig_shape": SHAPE[1:]}
    arr = open_dataset(f"{FOLDER}/scan.raw", chunks=(6, -1, -1), **raw)
    to_zarr(arr, OUT, chunks=(2, 64, 64), layout="array", progress=False, **options)


def in_child(action, seconds=None):
    """Run an action in a fork, killed after some time; give its exit code, -9 if it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action() or 0)
        except DatasetError as error:
            os._exit(3 if error.path and error.path.startswith(OUT) else 4)
        except KeyboardInterrupt:
            os._exit(5)
        except BaseException as error:  # noqa: BLE001 - it is the end of the process
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(6)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_equal():
    """Compare what is there with the scan."""
    return int(not np.array_equal(zarr.open_array(OUT, mode="r")[:], EXPECTED))


def check_and_resume(found, **options):
    """See to it that nothing incomplete shows, go on, and compare."""
    if os.path.lexists(OUT):
        found["whole in its place"] += in_child(check_equal) == 0
        found["torn in its place"] += in_child(check_equal) != 0
    else:
        noted = glob(f"{OUT}.part/*/journal/*")
        found["with something to go on with"] += bool(noted)
        found["resumed"] += in_child(partial(export, **options)) == 0
        found["left over"] += sorted(os.listdir(FOLDER)) != ["out.zarr", "scan.raw"]
    found["equal"] += in_child(check_equal) == 0
    shutil.rmtree(OUT)


def duration():
    """Time one export to its end."""
    start = time.perf_counter()
    in_child(export)
    taken = time.perf_counter() - start
    shutil.rmtree(OUT)
    return taken


def kills():
    """SIGKILL at random times."""
    found, longest = Counter(), duration()
    while found["killed"] < 5 * REPEATS:
        options = {"shards": (6, 64, 64) if DRAW.random() < 0.5 else (2, 64, 64)}
        code = in_child(partial(export, **options), DRAW.uniform(0, longest))
        if code != -signal.SIGKILL:
            shutil.rmtree(OUT)
            continue
        found["killed"] += 1
        check_and_resume(found, **options)
    return found


def interrupts():
    """Ctrl-C at random times."""
    found, longest = Counter(), duration()

    def interrupted(seconds):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        export()
        signal.setitimer(signal.ITIMER_REAL, 0)

    while found["interrupted"] < REPEATS:
        code = in_child(partial(interrupted, DRAW.uniform(0.01, longest)))
        if code == 0:
            shutil.rmtree(OUT)
            continue
        found["interrupted"] += code == 5
        found["something else"] += code != 5
        check_and_resume(found)
    return found


def mount(options):
    """Mount memory, where nobody else sees it, or change how much it is."""
    command = ["mount", "-t", "tmpfs", "-o", options, "none", FOLDER]
    run(command, check=True)


def full_disks():
    """A file system of memory that is too small, by random much."""
    found = Counter()
    while found["refused"] < REPEATS:
        size = EXPECTED.nbytes + (int(DRAW.integers(8, 320)) << 10)
        mount(f"remount,size={size}")
        code = in_child(export)
        mount("remount,size=64m")
        if code == 0:
            shutil.rmtree(OUT)
            continue
        found["refused"] += code == 3
        found["something else"] += code != 3
        check_and_resume(found)
    return found


def races():
    """Two processes export to one path."""
    found = Counter()
    for _ in range(REPEATS):
        delay = DRAW.uniform(0, 0.1)
        first = os.fork()
        if first == 0:
            os._exit(in_child(export))
        time.sleep(delay)
        codes = [in_child(export), os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])]
        found["one done, the other refused"] += sorted(codes) == [0, 3]
        found["equal"] += in_child(check_equal) == 0
        shutil.rmtree(OUT)
    return found


KINDS = {kind.__name__: kind for kind in (kills, interrupts, races, full_disks)}
for name in sys.argv[4:]:
    if name == "full_disks":
        mount("size=64m")
    EXPECTED.tofile(f"{FOLDER}/scan.raw")
    sys.stdout.write(json.dumps({name: KINDS[name]()}) + "\n")
    sys.stdout.flush()
    shutil.rmtree(f"{OUT}.part", ignore_errors=True)
