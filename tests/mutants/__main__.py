"""Change one place of a module at a time, run the tests that reach it, and list what survives.

A first run of the tests records which functions of the module each test calls, so that a change
inside a function runs only tests that reach it. All runs are in copies of the checkout in a
temporary folder, without real files.
"""

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from mutants.changes import Finder
from mutants.runs import Choose, Record, check, start

ROOT = Path(__file__).parents[2]


def files_of(module):
    """Return the test files that import the module.

    For a format, those of formats that import its package or its writer, and of frame headers.
    """
    *folder, stem = ("dask_tiled", *module.with_suffix("").parts)
    names, files = [(*folder, stem)], (ROOT / "tests").rglob("test_*.py")
    always = []
    if folder[1:2] == ["formats"]:
        names.append(("dask_tiled", "formats", (*folder, stem)[2]))
        files = ROOT.glob("tests/formats/test_*.py")
        always = ["tests/opening/test_frame_headers.py"]
    word = [rf"{'[.]'.join(path)}([.]| import [a-z_, ]*){last}\b" for *path, last in names]
    word = re.compile("|".join([*word, rf"\bwrite_{names[-1][-1]}\b"]))
    chosen = [str(file.relative_to(ROOT)) for file in files if word.search(file.read_text("utf8"))]
    return chosen + always


def tests_of(function, calls, seconds, imports):
    """Return the tests of a change in a function, or outside of functions; short ones first."""
    reached = {test for test in seconds if function in calls.get(test, ())}
    if not function or function in calls.get("", ()):
        reached = {test for test in seconds if calls.get(test) or test.split("::")[0] in imports}
    return sorted(reached, key=seconds.get)


def copy(folder):
    """Copy what tests need, with Python's compiled code."""
    for name in ("dask_tiled", "tests"):
        ignore = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", folder)


def prepare(module, files, folder, count):
    """Copy the checkout and run all tests; return the copies, the choice and times of tests."""
    slots = [folder / str(k) for k in range(count)]
    copy(slots[0])
    check(start(slots[0], files, Record(slots[0] / module), slots[0] / "record"), slots[0])
    calls, seconds, names = json.loads((slots[0] / "record").read_text("utf8"))
    print(f"{len(seconds)} tests in {sum(seconds.values()):.0f} s: {' '.join(files)}", flush=True)
    for cached in (slots[0] / module.parent).glob(f"__pycache__/{module.stem}.*"):
        cached.unlink()  # would be used for changes within a second
    for slot in slots[1:]:
        ignore = shutil.ignore_patterns("tmp", ".hypothesis")
        shutil.copytree(slots[0], slot, symlinks=True, ignore=ignore)
    for name in names:  # of other packages, so that each fork has them
        with suppress(Exception):
            importlib.import_module(name)
    dotted = ".".join(module.parent.parts)
    imports = {file for file in files if dotted in (ROOT / file).read_text("utf8")}
    choice = partial(tests_of, calls=calls, seconds=seconds, imports=imports)
    check(start(slots[0], files, Choose(choice(0))), slots[0])
    return slots, choice, seconds


def survivors_of(module, source, changes, slots, choice, seconds):
    """Yield the changes that no test notices, each with its number of tests."""
    running, waiting, free = {}, changes[::-1], [*slots]
    while waiting or running:
        while waiting and free:
            begin, end, text, function = change = waiting.pop()
            tests = choice(function)
            if not tests:
                yield change, 0
                continue
            slot = free.pop()
            (slot / module).write_bytes(source[:begin] + text.encode() + source[end:])
            files = sorted({test.split("::")[0] for test in tests})
            limit = time.monotonic() + 60 + 5 * sum(seconds[test] for test in tests)
            running[start(slot, files, Choose(tests))] = slot, change, len(tests), limit
        time.sleep(0.02)
        for child, (slot, change, number, limit) in [*running.items()]:
            status = ended(child, limit)
            if status is not None:
                del running[child]
                free.append(slot)
            if status == 0:
                yield change, number


def ended(child, limit):
    """Return the status of a run, and end what tests have left; None while it runs.

    A run that takes too long is killed, and so is what it left.
    """
    late = time.monotonic() > limit
    if late:
        os.killpg(child, signal.SIGKILL)
    done, status = os.waitpid(child, 0 if late else os.WNOHANG)
    if not done:
        return None
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status


def main(arguments):
    parser = argparse.ArgumentParser("make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("module", type=Path, help="file below dask_tiled: formats/mrc/header.py")
    parser.add_argument("--tests", nargs="+", help="test files, by default chosen by imports")
    parser.add_argument("--count", type=int, help="number of changes, by default all")
    parser.add_argument("--seed", type=int, default=0, help="draws the changes of --count")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    module, survivors = Path("dask_tiled") / options.module, 0
    source = (ROOT / module).read_bytes()
    changes = Finder(source).changes()
    if options.count and options.count < len(changes):
        changes = sorted(Random(options.seed).sample(changes, options.count))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        files = options.tests or files_of(options.module)
        prepared = prepare(module, files, Path(folder), options.processes)
        for (begin, end, text, _), number in survivors_of(module, source, changes, *prepared):
            line, old = source[:begin].count(b"\n") + 1, source[begin:end].decode()
            print(f"{module}:{line}: {old!r} -> {text!r} survives {number} tests", flush=True)
            survivors += 1
    killed, count = len(changes) - survivors, len(changes)
    print(f"{module}: {killed} of {count} killed, {100 * killed / count:.0f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
