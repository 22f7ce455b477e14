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
from functools import cache, partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from mutants.changes import Finder
from mutants.runs import Choose, Record, check, start

ROOT = Path(__file__).parents[2]
CHECKED = 100
"""Tests that run in a fork without a change, before those with changes."""


def files_of(module):
    """Return the test files that import the module; for a folder, also those of its name.

    For a format, those of formats that name it, as those that import it or its writer do, and
    those of frame headers.
    """
    *folder, stem = ("dask_tiled", *module.with_suffix("").parts)
    word = rf"{'[.]'.join(folder)}([.]| import [a-z_, ]*){stem}\b"
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    always = {*(ROOT / "tests" / module).glob("test_*.py")}
    if "formats" in [*folder, stem]:
        files = sorted(ROOT.glob("tests/formats/test_*.py"))
        always.add(ROOT / "tests/opening/test_frame_headers.py")
    if folder[1:2] == ["formats"]:
        word = rf"(?<![a-z]){(*folder, stem)[2]}(?![a-z])"
    chosen = always.union(file for file in files if re.search(word, file.read_text("utf8")))
    return [str(file.relative_to(ROOT)) for file in sorted(chosen)]


def tests_of(file, function, calls, seconds, importing):
    """Return the tests of a change in a function, or outside of functions; short ones first.

    Calls in other processes are not recorded: tests of a function that none calls are those of
    files that import its package.
    """
    place = f"{file}:{function}"
    reached = {test for test in seconds if place in calls.get(test, ())}
    if not function or place in calls.get("", ()):
        reached = {
            test
            for test in seconds
            if any(call.startswith(f"{file}:") for call in calls.get(test, ()))
        }
    if not function or not reached:
        reached |= {test for test in seconds if test.split("::")[0] in importing(file)}
    return sorted(reached, key=seconds.get)


def copy(folder):
    """Copy what tests need, with Python's compiled code."""
    for name in ("dask_tiled", "tests"):
        ignore = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", folder)


def prepare(changed, files, folder, count):
    """Copy the checkout and run all tests; return the copies, the choice and times of tests.

    ``changed`` are the modules with changes.
    """
    slots = [folder / str(k) for k in range(count)]
    copy(slots[0])
    recorded = {str(slots[0] / file) for file in changed if "kernels" not in file.parts}
    record = Record(slots[0], recorded)
    check(
        start(slots[0], files, record, slots[0] / "record"), slots[0], pytest.ExitCode.TESTS_FAILED
    )
    calls, seconds, names, failed = json.loads((slots[0] / "record").read_text("utf8"))
    print(f"{len(seconds)} tests in {sum(seconds.values()):.0f} s: {' '.join(files)}", flush=True)
    for test in failed:
        print(f"left out, as it fails without a change: {test}", flush=True)
    for file in changed:
        for cached in (slots[0] / file.parent).glob(f"__pycache__/{file.stem}.*"):
            cached.unlink()  # would be used for changes within a second
    for slot in slots[1:]:
        ignore = shutil.ignore_patterns("tmp", ".hypothesis")
        shutil.copytree(slots[0], slot, symlinks=True, ignore=ignore)
    for name in names:  # of other packages, so that each fork has them
        with suppress(Exception):
            importlib.import_module(name)
    texts = {test.split("::")[0]: "" for test in seconds}
    texts = {test: (ROOT / test).read_text("utf8") for test in texts}

    @cache
    def importing(file):
        dotted = ".".join(file.parent.parts)
        return {test for test, text in texts.items() if dotted in text}

    choice = partial(tests_of, calls=calls, seconds=seconds, importing=importing)
    first = next(iter(changed))
    check(start(slots[0], files, Choose(choice(first, 0)[:CHECKED])), slots[0])
    return slots, choice, seconds


def survivors_of(changes, slots, choice, seconds):
    """Yield the changes that no test notices, each with its number of tests."""
    running, waiting, free = {}, changes[::-1], [*slots]
    while waiting or running:
        while waiting and free:
            file, begin, end, text, function = change = waiting.pop()
            tests = choice(file, function)
            if not tests:
                yield change, 0
                continue
            slot, source = free.pop(), (ROOT / file).read_bytes()
            (slot / file).write_bytes(source[:begin] + text.encode() + source[end:])
            files = sorted({test.split("::")[0] for test in tests})
            limit = time.monotonic() + 60 + 5 * sum(seconds[test] for test in tests)
            running[start(slot, files, Choose(tests))] = slot, change, len(tests), limit
        time.sleep(0.02)
        for child, (slot, change, number, limit) in [*running.items()]:
            status = ended(child, limit)
            if status is not None:
                del running[child]
                free.append(slot)
                shutil.copy2(ROOT / change[0], slot / change[0])
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
    parser.add_argument("module", type=Path, help="file or folder below dask_tiled: formats/mib.py")
    parser.add_argument("--tests", nargs="+", help="test files, by default chosen by imports")
    parser.add_argument("--count", type=int, help="number of changes, by default all")
    parser.add_argument("--seed", type=int, default=0, help="draws the changes of --count")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    module, survivors, changes = Path("dask_tiled") / options.module, 0, []
    place = ROOT / module
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        file, finder = path.relative_to(ROOT), Finder(path.read_bytes())
        changes += [(file, *change, finder) for change in finder.changes()]
    Random(options.seed).shuffle(changes)
    compiling = (change[:5] for change in changes if change[5].compiles(*change[1:4]))
    changes = sorted(islice(compiling, options.count))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        files = options.tests or files_of(options.module)
        changed = dict.fromkeys(file for file, *_ in changes)
        prepared = prepare(changed, files, Path(folder), options.processes)
        for (file, begin, end, text, _), number in survivors_of(changes, *prepared):
            source = (ROOT / file).read_bytes()
            line, old = source[:begin].count(b"\n") + 1, source[begin:end].decode()
            print(f"{file}:{line}: {old!r} -> {text!r} survives {number} tests", flush=True)
            survivors += 1
    killed, count = len(changes) - survivors, len(changes)
    print(f"{module}: {killed} of {count} killed, {100 * killed / count:.0f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
