"""Kill runs at random moments, and resume them; run as a program, as it forks.

It prints counts as JSON.
"""

import itertools
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter

import dask
import numpy as np

from dask_tiled import open_dataset, run
from dask_tiled.plans import plan

FOLDER, REPEATS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DRAW = np.random.default_rng(SEED)
CHUNKS = 96 if REPEATS > 1 else 48
FRAMES = DRAW.normal(size=(CHUNKS, 2, 16, 16)).astype("f4")
KEPT, NAV, SIG = f"{FOLDER}/kept", (0, 1), (2, 3)


def computed():
    """Return the arrays to compute: opened anew, as in another process."""
    arr = open_dataset(f"{FOLDER}/scan.npy", chunks=(1, 2, 16, 16))
    return [arr.std(NAV), arr.sum(SIG), (arr - arr.mean(NAV)).max(SIG)]


def attempt(expected, stop=0):
    """Run once, and end the process: 0 if the values are right, -9 in call ``stop`` of a tick."""
    try:
        ticks = itertools.count(1)

        def tick(progress):
            with open(f"{FOLDER}/told", "a", encoding="ascii") as file:
                file.write(f"{progress.bytes_done} {progress.bytes_total}\n")
            if next(ticks) == stop:
                os.kill(os.getpid(), signal.SIGKILL)

        found = run(computed(), KEPT, every=0, on_progress=tick)
        same = all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
        os._exit(0 if same else 1)
    except BaseException as error:  # noqa: BLE001 - the process ends
        traceback.print_exception(error, limit=-5)
        sys.stderr.flush()
        os._exit(6)


def in_child(expected, seconds=None, stop=0):
    """Fork an attempt, killed after some seconds; return its exit code."""
    pid = os.fork()
    if pid == 0:
        attempt(expected, stop)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    """Kill each run several times until it ends by itself."""
    found = Counter()
    np.save(f"{FOLDER}/scan.npy", FRAMES)
    with dask.config.set(scheduler="synchronous"):
        plan.LEAST_TASK_BYTES, plan.MOST_REDUCED_CHUNKS = 1, 1000
        expected = dask.compute(*computed())
        start = time.perf_counter()
        found["equal"] += in_child(expected) == 0
        longest = time.perf_counter() - start
        for _ in range(REPEATS):
            shutil.rmtree(KEPT)
            os.remove(f"{FOLDER}/told")
            for _ in range(4):  # at a random moment, and within a random call
                at = {"seconds": DRAW.uniform(0, longest / 2)}
                if DRAW.random() < 0.5:
                    at = {"stop": int(DRAW.integers(1, CHUNKS * 5 // 8))}
                found["killed"] += in_child(expected, **at) == -signal.SIGKILL
            found["equal"] += in_child(expected) == 0
            with open(f"{FOLDER}/told", encoding="ascii") as file:
                done = [int(line.split()[0]) for line in file]
            lost = max(a - b for a, b in itertools.pairwise(done))
            found["lost"] = max(found["lost"], lost / done[-1])
    sys.stdout.write(json.dumps(found))


main()
