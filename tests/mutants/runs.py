"""Runs of pytest in forks of a process that has imported the libraries."""

import json
import os
import sys
import threading
import time
import traceback
from collections import defaultdict

import pytest


class Record:
    """A plugin that records which functions of a module each test calls, and for how long it runs.

    Functions called outside of tests, such as by imports, are those of the empty name.
    """

    def __init__(self, path):
        self.path, self.test, self.calls, self.seconds = str(path), "", defaultdict(set), {}
        sys.setprofile(self.note)
        threading.setprofile(self.note)

    def note(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename == self.path:
            self.calls[self.test].add(frame.f_code.co_firstlineno)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.test, start = item.nodeid, time.perf_counter()
        sys.setprofile(self.note)
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - start
        return result

    def save(self, path):
        sys.setprofile(None)
        calls = {test: sorted(lines) for test, lines in self.calls.items()}
        folder = str(path.parent)
        files = [(name, getattr(part, "__file__", None)) for name, part in sys.modules.items()]
        names = [name for name, file in files if file and not file.startswith(folder)]
        path.write_text(json.dumps([calls, self.seconds, names]), "utf8")


class Choose:
    """A plugin that runs only some tests, in their order."""

    def __init__(self, tests):
        self.rank = {test: rank for rank, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items):
        chosen = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])


def start(folder, arguments, plugin, record=None):
    """Start pytest in a fork, with the package of a folder; return the id of the process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open(folder / "output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
        sys.path[:0] = [str(folder)]
        sys.dont_write_bytecode = record is None
        os.environ |= {"PYTHONPATH": str(folder), "DASK_TILED_TESTDATA": str(folder / "absent")}
        options = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
        options += ["-o", "tmp_path_retention_policy=none"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins loaded before
        code = int(pytest.main([*options, f"--basetemp={folder / 'tmp'}", *arguments], [plugin]))
        if record:
            plugin.save(record)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def check(child, folder):
    """Raise unless the tests pass without a change."""
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"tests fail without a change:\n{(folder / 'output').read_text('utf8')}")
