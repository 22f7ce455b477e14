"""Machine code that is not what was written is never loaded: it is compiled, and written again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core.registry import cpu_target

from dask_tiled.kernels import code_cache
from dask_tiled.kernels.code_cache import CodeCache
from dask_tiled.kernels.decoding import SIGNATURE, bits, compiled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def path(folder):
    """The file of one kernel."""
    compiled.__wrapped__("bits")
    (path,) = folder.rglob("*.nbc")
    return path


def load(cache=None):
    """Do what numba does before it compiles."""
    cache = cache or CodeCache(bits, options=False)
    return cache.load_overload(SIGNATURE, cpu_target.target_context)


def test_what_was_written_is_loaded(path):
    assert load().signature == SIGNATURE
    assert not [other for other in path.parent.iterdir() if other != path]  # nor is more written


def test_every_flipped_bit_is_noticed(path):
    cache, content = CodeCache(bits, options=False), path.read_bytes()
    size = 8 * len(content)
    for bit in {*range(256), *range(256, size, size // 500), *range(size - 64, size)}:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert load(cache) is None, bit
    path.write_bytes(content)
    assert load(cache) is not None


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, -1])
def test_a_file_that_is_cut_is_noticed(path, size):
    path.write_bytes(path.read_bytes()[:size])
    assert load() is None


def test_damage_is_told_from_what_was_written(path):
    whole = path.read_bytes()
    assert code_cache.look() == (str(path.parent), 1, len(whole), ())
    path.write_bytes(whole[:-1] + b"?")
    (path.parent / "empty.nbc").touch()
    assert code_cache.look().damaged == (path.name, "empty.nbc")


def test_no_folder_is_no_error(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert code_cache.look() == (None, 0, 0, ())


def test_code_of_another_kernel_is_noticed(path, folder):
    """Two kernels never share a file, whatever a process or a user does to the folder."""
    whole = path.read_bytes()
    compiled.__wrapped__("bits_reversed")
    other = next(file for file in folder.rglob("*.nbc") if file != path)
    shutil.copy(other, path)
    assert load() is None
    path.write_bytes(whole)
    assert load(CodeCache(bits, options=True)) is None


@pytest.mark.usefixtures("path")
def test_a_change_in_any_module_of_kernels_is_noticed(tmp_path, monkeypatch):
    package = Path(code_cache.__file__).parent
    changed = shutil.copytree(package, tmp_path / "changed", ignore=lambda *_: ["__pycache__"])
    assert code_cache.digest_of(changed) == code_cache.SOURCES
    words = changed / "words.py"
    words.write_text(words.read_text("utf8") + "# more\n", "utf8")
    assert code_cache.digest_of(changed) != code_cache.SOURCES

    monkeypatch.setattr(code_cache, "SOURCES", code_cache.digest_of(changed))
    assert load() is None


def test_a_full_disk_costs_no_second_compilation(folder, monkeypatch):
    """The code that was made is used, though it cannot be kept."""

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.os.replace", no_space)
    kernel = compiled.__wrapped__("bits")
    assert isinstance(kernel._cache, CodeCache)
    assert list(kernel.overloads) == [SIGNATURE.args]
    assert not [file for file in folder.rglob("*") if file.is_file()]


BITS = """
import os, sys
from pathlib import Path
import numpy as np
from dask_tiled.kernels.decoding import compiled

def served():
    "Unpack 64 pixels as in a process of its own; give how often the cache served."
    out, zero = np.zeros(64, "u1"), np.zeros(1, "i8")
    kernel = compiled.__wrapped__("bits")
    kernel(np.arange(1, 9, dtype="u1"), zero, 8, out, zero, 64, 1, 8, 0)
    assert (out == np.unpackbits(np.arange(1, 9, dtype="u1"))[::-1]).all()
    return sum(kernel.stats.cache_hits.values())

assert served() == 0
files = [file for file in Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*") if file.is_file()]
"""
FLIPS = """
for file in files:
    whole = file.read_bytes()
    for bit in range(3, 8 * len(whole), len(whole) * 8 // 12):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        assert served() == 0
        assert served() == 1
"""
CROWD = """
for file in files:
    file.unlink()
children = []
for _ in range(6):
    children.append(os.fork())
    if not children[-1]:
        for _ in range(3):
            served()
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
assert served() == 1
"""


@pytest.mark.parametrize("harm", [FLIPS, CROWD], ids=["flipped bits", "several processes"])
def test_pixels_are_right(tmp_path, harm):
    done = subprocess.run(
        [sys.executable, "-c", BITS + harm],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
