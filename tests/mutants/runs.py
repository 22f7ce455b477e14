"""Runs of pytest in forks of a process that has imported the libraries."""

import ast
import builtins
import json
import os
import sys
import time
import traceback
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest


class Record:
    """A plugin that records which functions of modules each test calls, and for how long it runs.

    Functions of these modules call `note` first; a profiler would slow down all other code.
    Functions called outside of tests, such as by imports, are those of the empty name. Tests that
    fail are left out.
    """

    def __init__(self, root, paths):
        self.root, self.paths, self.test = root, paths, ""
        self.calls, self.seconds, self.failed = defaultdict(set), {}, set()
        builtins.note_call = self.note
        get_code = SourceFileLoader.get_code  # reads and writes cached code
        SourceFileLoader.get_code = lambda *args: self.code_of(*args) or get_code(*args)

    def code_of(self, loader, name):
        """Return the code of a module that calls `note`; None for other modules."""
        path = loader.get_filename(name)
        if path not in self.paths:
            return None
        tree = ast.parse(loader.get_data(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                line = min(part.lineno for part in (node, *node.decorator_list))
                call = ast.parse(f"note_call({path!r}, {line})").body[0]
                node.body.insert(ast.get_docstring(node, clean=False) is not None, call)
        return compile(ast.fix_missing_locations(tree), path, "exec")

    def note(self, *place):
        self.calls[self.test].add(place)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.test, start = item.nodeid, time.perf_counter()
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - start
        return result

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)

    def save(self, path):
        calls = {
            test: sorted(f"{Path(file).relative_to(self.root)}:{line}" for file, line in places)
            for test, places in self.calls.items()
        }
        folder = str(path.parent)
        files = [(name, getattr(part, "__file__", None)) for name, part in sys.modules.items()]
        names = [name for name, file in files if file and not file.startswith(folder)]
        for test in self.failed:
            self.seconds.pop(test, None)
        path.write_text(json.dumps([calls, self.seconds, names, sorted(self.failed)]), "utf8")


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
        options = ["-q", "-m", "not slow", "-p", "no:cacheprovider"] + ["-x"] * (record is None)
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


def check(child, folder, most=0):
    """Raise unless tests without a change end with an exit code of at most ``most``."""
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) not in range(most + 1):
        raise SystemExit(f"tests fail without a change:\n{(folder / 'output').read_text('utf8')}")
