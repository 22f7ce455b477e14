"""Forked processes compute, whatever their parent did before and does meanwhile."""

import json
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from dask_tiled.system import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")

TESTS = Path(__file__).parents[1]
FORKED = """
import json, os, signal, sys, threading, time, traceback
import dask, dask.array as da, numpy as np
import dask_tiled
from dask_tiled.system import forks

dask_tiled.open_dataset  # imports the package

def child(function):
    if not (pid := os.fork()):
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + 200
    while time.monotonic() < end:
        if any(found := os.waitpid(pid, os.WNOHANG)):
            return found[1]
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return "hangs"

codes = {}
for name, code in json.loads(sys.argv[1]).items():
    if not (pid := os.fork()):
        try:
            exec(code, globals())
            assert result == 0, result
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""
"""A program that runs each case in a fork: importing takes longest."""
CASES = {
    "a lock that is held briefly": """
lock, held = threading.Lock(), threading.Event()
forks.held_at_fork(lock)
state = []
def work():
    with lock:
        held.set()
        state.append(1)
        time.sleep(0.3)
        state.append(2)
threading.Thread(target=work).start()
held.wait()
def use():
    assert lock.acquire(timeout=60) and state == [1, 2]
result = child(use)
assert lock.acquire(timeout=60)
""",
    "a lock that is held for long": """
forks.PATIENCE = 0.1
lock, held, end = threading.RLock(), threading.Event(), threading.Event()
forks.held_at_fork(lock)
def work():
    with lock:
        held.set()
        end.wait()
threading.Thread(target=work).start()
held.wait()
result = child(lambda: lock.acquire(timeout=60) or 1 / 0)
end.set()
assert lock.acquire(timeout=60)
""",
    "another thread imports": """
threading.begun = threading.Event()
open("slow.py", "w").write("import threading as t, time; t.begun.set(); time.sleep(0.5); VALUE = 1")
sys.path.insert(0, ".")
threading.Thread(target=lambda: __import__("slow")).start()
threading.begun.wait()
result = child(lambda: __import__("slow").VALUE)
""",
    "a client of a cluster": """
from distributed import Client, LocalCluster
options = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": ":0"}}
with LocalCluster(n_workers=1, processes=False, **options) as cluster, Client(cluster):
    da.ones(9, chunks=1).sum().compute()
    result = child(lambda: da.ones(9, chunks=1).sum().compute())
""",
    "pools, in a thread of a fork": """
np.save("a.npy", np.ones((8, 16, 16), "u2"))
arr = da.concatenate([dask_tiled.open_dataset("a.npy", chunks=(1, 16, 16))] * 2)
arr.sum().compute()
with dask.config.set(num_workers=2):
    arr.sum().compute()
def compute():
    found = []
    for options in ({}, {"num_workers": 2}):
        thread = threading.Thread(target=lambda: found.append(arr.sum().compute(**options)))
        thread.start()
        thread.join()
        found.append(arr.sum().compute(**options))
    assert found == [16 * 256] * 4
result = child(compute)
""",
}


def test_imports_of_other_threads_are_seen(tmp_path, monkeypatch):
    """Python keeps the locks of modules under a private name: without it, forks would not wait."""
    (tmp_path / "slow_to_import.py").write_text("import threading; threading.waits.wait()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(threading, "waits", threading.Event(), raising=False)
    thread = threading.Thread(target=import_module, args=["slow_to_import"])
    assert not forks._others_import()
    thread.start()
    try:
        end = time.monotonic() + 30
        while not forks._others_import():
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        threading.waits.set()
        thread.join()
        sys.modules.pop("slow_to_import", None)
    assert not forks._others_import()


@pytest.mark.slow
def test_children_go_on(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert json.loads(done.stdout) == dict.fromkeys(CASES, 0), done.stderr


@pytest.mark.slow
def test_random_work_of_parents_and_children(tmp_path):
    script = str(TESTS / "forked_work.py")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", script, tmp_path]
    command += ["--seed", "35", "--count", "4"]  # three forks, and a child of a fork server
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("4 cases done, 0 failed\n")
