"""Kill exports, fill their disk, or run two at once; run as a program.

The program forks, so nothing here may start a thread outside of a child. It prints counts as JSON.
"""

import errno
import gc
import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from functools import partial
from glob import glob
from importlib import import_module
from subprocess import run

import dask
import dask.array as da
import distributed  # noqa: F401 - once, not in every fork
import numpy as np
import tqdm.auto  # noqa: F401 - as above
import zarr

import dask_tiled
from dask_tiled import DatasetError, open_dataset, to_beton, to_zarr, verify_zarr
from dask_tiled.kernels.decoding import compiled
from dask_tiled.system import files

dask_tiled.formats()  # as above
SHAPE = (96, 64, 64)
FOLDER, REPEATS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
OUT = f"{FOLDER}/out.zarr"
STRIDE = 1 if REPEATS > 1 else 47
"""Distance of the steps at which exports are stopped."""
DRAW = np.random.default_rng(SEED)
EXPECTED = DRAW.poisson(4, SHAPE).astype("u2")
EXPECTED[::3] = 0


def export(**options):
    """Export the scan in 48 chunks, or 16 shards."""
    raw = {"format": "raw", "dtype": "u2", "sig_shape": SHAPE[1:], "nav_shape": -1}
    arr = open_dataset(f"{FOLDER}/scan.raw", chunks=(6, -1, -1), **raw)
    to_zarr(arr, OUT, chunks=(2, 64, 64), layout="array", progress=False, **options)


def in_child(action):
    """Run an action in a fork, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action() or 0)
        except DatasetError as error:
            os._exit(3 if OUT in str(error.path) else 4)
        except BaseException as error:  # noqa: BLE001 - the process ends
            traceback.print_exception(error, limit=-5)
            sys.stderr.flush()
            os._exit(6)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_equal():
    """Return 0 if the export equals the scan, and 1 otherwise."""
    return int(not np.array_equal(zarr.open_array(OUT, mode="r")[:], EXPECTED))


def left_over():
    """Return whether an export that has ended left anything that cannot be resumed."""
    beside = {*os.listdir(FOLDER)} - {"out.zarr", "scan.raw"}
    return bool(beside) and not (beside == {"out.zarr.part"} and glob(f"{OUT}.part/*/journal/*"))


def check_and_resume(found, **options):
    """Check that nothing incomplete is visible, resume the export, and compare."""
    if os.path.lexists(OUT):
        found["complete and visible"] += in_child(check_equal) == 0
        found["incomplete and visible"] += in_child(check_equal) != 0
    else:
        noted = glob(f"{OUT}.part/*/journal/*")
        found["with a journal"] += bool(noted)
        found["resumed"] += in_child(partial(export, **options)) == 0
        found["left over"] += sorted(os.listdir(FOLDER)) != ["out.zarr", "scan.raw"]
    found["equal"] += in_child(check_equal) == 0
    shutil.rmtree(OUT)


def kills():
    """Kill exports at random times after random steps."""
    found = Counter()
    while found["killed"] < 5 * REPEATS:
        options = {"shards": (6, 64, 64) if DRAW.random() < 0.5 else (2, 64, 64)}
        step, delay = int(DRAW.integers(60)), DRAW.uniform(1e-6, 0.01)

        def stopped(step=step, delay=delay, options=options):
            # Nothing handles the signal, so it ends the process anywhere, as a kill does.
            at_step(step, partial(signal.setitimer, signal.ITIMER_REAL, delay), CALLS)
            export(**options)

        code = in_child(stopped)
        if code != -signal.SIGALRM:
            shutil.rmtree(OUT)
            continue
        found["killed"] += 1
        check_and_resume(found, **options)
    return found


def mount(options):
    """Mount a tmpfs that no other process sees, or resize it."""
    command = ["mount", "-t", "tmpfs", "-o", options, "none", FOLDER]
    run(command, check=True)


def full_disks():
    """Export to a tmpfs that is too small by a random amount."""
    found = Counter()
    while found["refused"] < (22 if REPEATS > 1 else 2):
        size = EXPECTED.nbytes + (int(DRAW.integers(8, 320)) << 10)
        mount(f"remount,size={size}")
        code = in_child(export)
        mount("remount,size=64m")
        if code == 0:
            shutil.rmtree(OUT)
            continue
        found["refused"] += code == 3
        found["something else"] += code != 3
        found["left over"] += left_over()
        check_and_resume(found)
    return found


def races():
    """Export to one path from two processes."""
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


KINDS_OF_TARGETS = "group", "pyramid", "results", "follow", "store", "beton"
ADDING = {"open", "os.mkdir"}
CALLS = ADDING | {"os.rename", "os.remove", "os.rmdir"}
"""Audit events of steps; the functions of other steps are patched."""


def at_step(step, happens, calls):
    """Call `happens` at a step that an export takes in the file system."""
    left = [step]

    def take():
        left[0] -= 1
        if left[0] == -1:
            happens()

    def audit(event, given):
        if event in calls and str(given[0]).startswith(OUT):
            for_reading = event == "open" and not given[2] & (os.O_CREAT | os.O_WRONLY)
            if not for_reading:
                take()

    def patched(true):
        def call(*given):
            take()
            return true(*given)

        return call

    sys.addaudithook(audit)
    for module, name in ((os, "fsync"), (files, "_fallocate"), (files, "pwrite")):
        setattr(module, name, patched(getattr(module, name)))


def write(kind, plus, **options):
    """Export the scan plus a number, in one of several kinds; overwrite the old export."""
    raw = {"format": "raw", "dtype": "u2", "sig_shape": SHAPE[1:], "nav_shape": -1}
    arr = open_dataset(f"{FOLDER}/scan.raw", chunks=(6, -1, -1), follow=kind == "follow", **raw)
    options |= {"progress": False, "overwrite": True}
    with dask.config.set(scheduler="synchronous"):
        if kind == "beton":
            to_beton(OUT, {"x": arr[:12, :8] + plus}, page_size=1 << 21, workers=1, **options)
        elif kind == "follow":
            to_zarr(arr, OUT, follow=True, rest=0.001, chunks=(48, 64, 64), **options)
        elif kind == "store":
            store = zarr.storage.WrapperStore(zarr.storage.LocalStore(OUT))
            with warnings.catch_warnings():
                # A half removed array looks like a stopped export.
                warnings.filterwarnings("ignore", ".*another source")
                to_zarr(arr[:12] + plus, store, chunks=(6, 64, 64), **options)
        elif kind == "results":
            shown = arr[plus % 80 :][:12].with_chunks((6, -1, -1))
            options["with_results"] = {"sums": shown.sum((1, 2)), "mean": shown.mean(0)}
            to_zarr(shown, OUT, chunks=(6, 64, 64), **options)
        else:
            levels = {"pyramid": 2} if kind == "pyramid" else {}
            to_zarr(arr[:12] + plus, OUT, chunks=(6, 64, 64), **levels, **options)


def read(kind, plus):
    """Return whether the export is complete and right; a store may hold parts as well."""
    if kind == "store" and not os.path.exists(f"{OUT}/zarr.json"):
        return plus is not None
    if kind == "beton":
        return np.array_equal(open_dataset(OUT).compute(), EXPECTED[:12, :8] + plus)
    group = zarr.open_group(OUT, mode="r")
    if kind == "results":
        shown = EXPECTED[plus % 80 :][:12]
        whole = np.array_equal(group["data"][:], shown)
        beside = np.array_equal(group["sums"][:], shown.sum((1, 2), dtype="u8"))
        return whole and beside and np.array_equal(group["mean"][:], shown.mean(0))
    expected = EXPECTED if kind == "follow" else EXPECTED[:12] + np.uint16(plus)
    if not np.array_equal(group["data"][:], expected):
        return False
    if kind == "pyramid":
        verify_zarr(OUT, da.from_array(expected))
    return True


def remove():
    """Remove the export."""
    if os.path.isdir(OUT):
        shutil.rmtree(OUT)
    elif os.path.exists(OUT):
        os.remove(OUT)


def at_every_step(happens, calls):
    """Call `happens` at every step of exports of each kind, or at steps some distance apart."""
    found = Counter()
    for kind in KINDS_OF_TARGETS:
        step, code, old = int(DRAW.integers(STRIDE)), None, None
        while code != 0:
            new = 0 if kind == "follow" else step

            def stopped(kind=kind, new=new, step=step):
                at_step(step, happens, calls)
                write(kind, new)

            def goes_on(kind=kind, new=new, old=old):
                if os.path.lexists(OUT) and not any(read(kind, x) for x in {old, new} - {None}):
                    return 7
                write(kind, new)
                return 0 if read(kind, new) and os.path.exists(OUT) else 8

            code = in_child(stopped)
            there = os.path.lexists(OUT)
            found["done" if code == 0 else f"ended by {code}"] += 1
            found["lost"] += old is not None and kind == "beton" and not there
            gone = kind != "store" and there < (old is not None)
            found["left over"] += code in {0, 3} and (left_over() or gone)
            found["equal after that"] += in_child(goes_on) == 0
            if sorted(os.listdir(FOLDER)) != ["out.zarr", "scan.raw"]:
                found["left over"] += 1
                shutil.rmtree(f"{OUT}.part")
            old = new
            if DRAW.random() < 0.3:
                old = None
                remove()
            step += STRIDE
        remove()
    return found


def killed_steps():
    """Kill exports at every step."""
    return at_every_step(lambda: os.kill(os.getpid(), signal.SIGKILL), CALLS)


def refused_steps():
    """Fill the disk at every step."""
    return at_every_step(refuse, ADDING)


def refuse():
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


KINDS = {kind.__name__: kind for kind in (kills, races, full_disks, killed_steps, refused_steps)}


def import_all():
    """Import the modules of exports once, not in every fork."""

    def list_modules():
        for kind in KINDS_OF_TARGETS:
            write(kind, 0)
            read(kind, 0)
            remove()
        with open(f"{FOLDER}/modules", "w", encoding="utf8") as file:
            file.write("\n".join(sys.modules))

    EXPECTED.tofile(f"{FOLDER}/scan.raw")
    in_child(list_modules)
    with open(f"{FOLDER}/modules", encoding="utf8") as file:
        names = {*file.read().split()}
    os.remove(f"{FOLDER}/modules")
    for name in sorted(names - {*sys.modules}):
        with suppress(ImportError):
            import_module(name)
    compiled("copy")  # the first kernel takes numba a while
    gc.collect()
    gc.freeze()  # pages stay shared with children


import_all()
for name in sys.argv[4:]:
    if name == "full_disks":
        mount("size=64m")
    EXPECTED.tofile(f"{FOLDER}/scan.raw")
    sys.stdout.write(json.dumps({name: KINDS[name]()}) + "\n")
    sys.stdout.flush()
    shutil.rmtree(f"{OUT}.part", ignore_errors=True)
