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
KILLS = -signal.SIGKILL, -signal.SIGALRM
KEPT, NAV, SIG = f"{FOLDER}/kept", (0, 1), (2, 3)


def computed():
    """Return the arrays to compute: opened anew, as in another process."""
    arr = open_dataset(f"{FOLDER}/scan.npy", chunks=(1, 2, 16, 16))
    return [arr.std(NAV), arr.sum(SIG), (arr - arr.mean(NAV)).max(SIG)]


def attempt(expected, stop=None, delay=0.0):
    """Run once, and end the process: 0 if the values are right.

    It is killed ``delay`` seconds after call ``stop`` of a tick, or after the start if that is 0.
    """
    try:
        calls = itertools.count()

        def tick(progress=None):
            if progress is not None:
                with open(f"{FOLDER}/told", "a", encoding="ascii") as file:
                    file.write(f"{progress.bytes_done} {progress.bytes_total}\n")
            if next(calls) == stop:
                if not delay:
                    os.kill(os.getpid(), signal.SIGKILL)
                # Nothing handles the signal, so it ends the process anywhere, as a kill does.
                signal.setitimer(signal.ITIMER_REAL, delay)

        tick()
        found = run(computed(), KEPT, every=0, on_progress=tick)
        same = all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
        os._exit(0 if same else 1)
    except BaseException as error:  # noqa: BLE001 - the process ends
        traceback.print_exception(error, limit=-5)
        sys.stderr.flush()
        os._exit(6)


def in_child(expected, *at):
    """Fork an attempt, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        attempt(expected, *at)
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
        with open(f"{FOLDER}/told", encoding="ascii") as file:
            pace = (time.perf_counter() - start) / len(file.readlines())
        for _ in range(REPEATS):
            shutil.rmtree(KEPT)
            os.remove(f"{FOLDER}/told")
            for _ in range(4):  # within a random call, or between two
                stop, delay = int(DRAW.integers(CHUNKS // 2)), 0.0
                if stop == 0 or DRAW.random() < 0.5:
                    delay = DRAW.uniform(0, 4 * pace)
                found["killed"] += in_child(expected, stop, delay) in KILLS
            found["equal"] += in_child(expected) == 0
            with open(f"{FOLDER}/told", encoding="ascii") as file:
                done = [int(line.split()[0]) for line in file]
            lost = max(a - b for a, b in itertools.pairwise(done))
            found["lost"] = max(found["lost"], lost / done[-1])
    sys.stdout.write(json.dumps(found))


main()
