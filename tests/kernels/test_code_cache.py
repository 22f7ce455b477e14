"""Damaged or outdated machine code is not loaded, but compiled and written again."""

import ast
import importlib.util
import os
import pickle
import shutil
import sys
import types
from pathlib import Path

import numba
import numpy as np
import pytest
from checks import listen, ran
from hypothesis import settings
from numba.core import caching
from numba.core.registry import cpu_target

from dask_tiled.files.paths import Border, within
from dask_tiled.foreign import find
from dask_tiled.kernels import code_cache, decoding
from dask_tiled.kernels.code_cache import CodeCache
from dask_tiled.kernels.decoding import SIGNATURE, bits, compiled
from dask_tiled.model import requests

LONG = settings.default.max_examples >= 500


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Compile one kernel; return the folder of its file."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(folder))
        compiled.__wrapped__("bits")
    return folder


@pytest.fixture
def path(folder, written):
    """Return a copy of the file of one kernel."""
    shutil.copytree(written, folder, dirs_exist_ok=True)
    (path,) = folder.rglob("*.nbc")
    return path


def load(cache=None):
    """Load code as Numba does before it compiles."""
    cache = cache or CodeCache(bits, options=False)
    return cache.load_overload(SIGNATURE, cpu_target.target_context)


def test_written_code_is_loaded(path):
    assert load().signature == SIGNATURE
    assert not [
        other for other in path.parent.iterdir() if other != path
    ]  # and nothing else is written


@pytest.mark.usefixtures("path")
def test_code_is_loaded_while_a_scan_is_opened(tmp_path_factory):
    """Reading is otherwise limited to the folder of the scan."""
    scan = tmp_path_factory.mktemp("scan") / "a.npy"
    with within(Border([str(scan)])):
        assert load() is not None


def test_every_flipped_bit_is_noticed(path):
    cache, content = CodeCache(bits, options=False), path.read_bytes()
    size = 8 * len(content)
    some = {*range(0, 512, 7), *range(512, size, size // 200), *range(size - 8, size)}
    for bit in range(size) if LONG else some:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert load(cache) is None, bit
    path.write_bytes(content)
    assert load(cache) is not None


def put(make):
    """Return damage that replaces the file."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def change(edit):
    """Return damage that changes the content."""

    def damage(path):
        path.write_bytes(edit(path.read_bytes()))

    return damage


def fill_folder(path):
    """Make a folder with a file, which cannot be replaced."""
    path.mkdir()
    (path / "file").touch()


def code_of(function, path):
    """Compile another kernel; return its file."""
    known = {*path.parent.iterdir()}
    compiled.__wrapped__(function)
    (other,) = {*path.parent.iterdir()} - known
    return other


def swap(path):
    """Exchange the files of two kernels."""
    other = code_of("bits_reversed", path)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def resealed(content, stamp=None, code=None):
    """Return content with a valid checksum, but with another stamp or other code."""
    size = code_cache.DIGEST_BYTES
    return code_cache._sealed(stamp or content[:size], code or content[2 * size :])


class Fatal:
    """End the process that unpickles the object."""

    def __reduce__(self):
        return os._exit, (3,)


DAMAGES = {
    "no file": put(lambda _: None),
    "empty": change(lambda _: b""),
    "less than a checksum": change(lambda content: content[:31]),
    "no code": change(lambda content: content[:64]),
    "without the last byte": change(lambda content: content[:-1]),
    "one byte more": change(lambda content: content + b"\0"),
    "zeros": change(lambda content: bytes(len(content))),
    "code alone, as numba writes it": change(lambda content: content[64:]),
    "a foreign pickle": change(lambda _: pickle.dumps(Fatal())),
    "a foreign pickle after checksums": change(lambda c: c[:64] + pickle.dumps(Fatal())),
    "of another version": change(lambda content: resealed(content, stamp=bytes(32))),
    "that does not unpickle": change(lambda content: resealed(content, code=b"no pickle")),
    "of another kernel": swap,
    "a folder with files": put(fill_folder),
    "a link to nowhere": put(lambda path: path.symlink_to("nowhere")),
    "a link to itself": put(lambda path: path.symlink_to(path)),
    "a pipe": put(os.mkfifo),
    "a socket": put(listen),
    "a device without end": put(lambda path: path.symlink_to("/dev/zero")),
    "larger than memory": put(lambda path: (path.touch(), os.truncate(path, 1 << 42))),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_files_are_replaced(path, damage):
    """Damaged files are not loaded; newly compiled code replaces all but a folder."""
    damage(path)
    assert load() is None
    code_cache.look()
    pixels = _unpacked(compiled.__wrapped__("bits"))
    np.testing.assert_array_equal(pixels, np.unpackbits(np.arange(1, 9, dtype="u1"))[::-1])
    assert (load() is None) == path.is_dir()


def test_look_lists_damaged_files(path):
    whole = path.read_bytes()
    assert code_cache.look() == (str(path.parent), 1, len(whole), ())
    path.write_bytes(whole[:-1] + b"?")
    (path.parent / "empty.nbc").touch()
    assert code_cache.look().damaged == (path.name, "empty.nbc")


def test_look_without_a_folder(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert code_cache.look() == (None, 0, 0, ())


def test_code_with_other_options_is_not_loaded(path):
    assert path.is_file()
    assert load(CodeCache(bits, options=True)) is None


@pytest.mark.usefixtures("path")
def test_code_of_changed_modules_is_not_loaded(tmp_path, monkeypatch):
    package = Path(code_cache.__file__).parent
    changed = shutil.copytree(package, tmp_path / "changed", ignore=lambda *_: ["__pycache__"])
    assert code_cache.digest_of(changed) == code_cache.SOURCES
    words = changed / "words.py"
    words.write_text(words.read_text("utf8") + "# more\n", "utf8")
    assert code_cache.digest_of(changed) != code_cache.SOURCES

    monkeypatch.setattr(code_cache, "SOURCES", code_cache.digest_of(changed))
    assert load() is None


def test_constants_of_other_packages_are_part_of_the_digest(tmp_path, monkeypatch):
    """Compiled code contains the constants that kernels import."""
    folder = Path(code_cache.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            place = str(getattr(node, "module", ""))
            if isinstance(node, ast.ImportFrom) and place.startswith("dask_tiled.model."):
                values = {name.name: getattr(sys.modules[place], name.name) for name in node.names}
                numbers = {name for name, value in values.items() if not callable(value)}
                assert not numbers or place == requests.__name__, (path.name, numbers)
    changed = tmp_path / "requests.py"
    changed.write_text(Path(requests.__file__).read_text("utf8") + "# more\n", "utf8")
    monkeypatch.setattr(requests, "__file__", str(changed))
    assert code_cache.digest_of(folder) != code_cache.SOURCES


def test_nodes_that_share_a_home_share_code(path, monkeypatch):
    """Each node may have its own copy of the package, with other file times."""
    assert path.is_file()
    locator = type(CodeCache(bits, options=False)._impl.locator)
    monkeypatch.setattr(locator, "get_source_stamp", lambda _: "at another time")
    assert load() is not None


CACHED = """
import sys
import numpy as np
from dask_tiled.kernels.decoding import compiled
from dask_tiled.engine.folding import Kernel
from dask_tiled.kernels.fold_functions import fold_in_place
from dask_tiled.model.requests import IN_MEMORY

out, zero = np.zeros(64, "u1"), np.zeros(1, "i8")
kernel = compiled("bits")
kernel(np.arange(1, 9, dtype="u1"), zero, 8, out, zero, 64, 1, 8, 0)
assert (out == np.unpackbits(np.arange(1, 9, dtype="u1"))[::-1]).all()
sums, pixels, kernel = np.zeros((1, 1)), np.arange(64, dtype="u2"), fold_in_place()
call = Kernel("dot_frames", zero, sums, np.ones((1, 64))).call(pixels.dtype)
kernel(call, IN_MEMORY, pixels.view("u1"), zero, zero, zero, zero, 64, 1)
assert sums == pixels.sum()
print(sum(kernel.stats.cache_hits.values()), "numba.typed.typedlist" in sys.modules)
"""


@pytest.mark.thorough
def test_cached_code_needs_no_compiler(tmp_path):
    """The compiler of Numba takes long to import."""
    results = [ran(CACHED, NUMBA_CACHE_DIR=str(tmp_path)).split() for _ in range(2)]
    assert results == [["0", "True"], ["1", "False"]]


@pytest.mark.thorough
def test_a_full_disk_costs_no_second_compilation(folder, monkeypatch):
    """Compiled code is used even if it cannot be written."""

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.os.replace", no_space)
    kernel = compiled.__wrapped__("bits")
    assert isinstance(kernel._cache, CodeCache)
    assert list(kernel.overloads) == [SIGNATURE.args]
    assert not [file for file in folder.rglob("*") if file.is_file()]


def _unpacked(kernel):
    out, zero = np.zeros(64, "u1"), np.zeros(1, "i8")
    kernel(np.arange(1, 9, dtype="u1"), zero, 8, out, zero, 64, 1, 8, 0)
    return out


@pytest.mark.parametrize("name", ["sqrt", "absolute"])
def test_functions_of_one_factory_have_different_names(name):
    """Machine code, also of another process, is found by name."""
    pixels = numba.types.CPointer(numba.float32)
    signature = numba.void(pixels, pixels, pixels, pixels, numba.intp)
    (made,) = compiled(f"dask_tiled.kernels.primitives:{name}", signature).overloads.values()
    assert made.fndesc.qualname == name


CLOSURES = """
import hashlib, importlib, inspect, pkgutil
from numba.core.serialize import dumps
from dask_tiled import kernels

for module in pkgutil.iter_modules(kernels.__path__, "dask_tiled.kernels."):
    for name, function in vars(importlib.import_module(module.name)).items():
        made = inspect.isfunction(function) and function.__closure__
        if made and not hasattr(function, "__wrapped__"):
            cells = [cell.cell_contents for cell in function.__closure__]
            print(module.name, name, hashlib.sha256(dumps(cells)).hexdigest())
"""


@pytest.mark.thorough
def test_closures_are_equal_in_all_processes():
    """Machine code is found by what a function encloses; Numba's functions differ each time."""
    first, second = (ran(CLOSURES) for _ in range(2))
    assert "sqrt" in first
    assert first == second


@pytest.mark.parametrize("name", code_cache.NAMES["numba.core.caching"])
def test_missing_names_of_numba(folder, monkeypatch, name):
    part = types.ModuleType(caching.__name__)
    vars(part).update({key: value for key, value in vars(caching).items() if key != name})
    spec = importlib.util.find_spec(code_cache.__name__)
    fresh = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, caching.__name__, part)
        spec.loader.exec_module(fresh)
    monkeypatch.setattr(decoding, "CodeCache", fresh.CodeCache)
    with pytest.warns(
        RuntimeWarning, match=rf"{name} does not exist\): kernels are compiled in every process"
    ):
        kernel = compiled.__wrapped__("bits")
    np.testing.assert_array_equal(_unpacked(kernel), _unpacked(compiled("bits")))
    assert fresh.look().folder is None
    assert not [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.usefixtures("folder")
def test_missing_symbols_of_numba(monkeypatch):
    monkeypatch.setattr(code_cache, "rtsys", find("numba.core.runtime", "another_name"))
    with pytest.warns(RuntimeWarning, match=r"another_name.*: kernels are compiled in every"):
        kernel = compiled.__wrapped__("bits")
    np.testing.assert_array_equal(_unpacked(kernel), _unpacked(compiled("bits")))


@pytest.mark.parametrize("name", ["_data_name", "_data_path", "_dump", "_open_for_write"])
@pytest.mark.usefixtures("folder")
def test_missing_methods_of_cache_files(monkeypatch, name):
    monkeypatch.delattr(caching.IndexDataCacheFile, name)
    with pytest.warns(RuntimeWarning, match=f"{name}.*: kernels are compiled in every process"):
        kernel = compiled.__wrapped__("bits")
    np.testing.assert_array_equal(_unpacked(kernel), _unpacked(compiled("bits")))


CROWD = """
import os, sys
from pathlib import Path
import numpy as np
from dask_tiled.kernels.decoding import compiled

def cache_hits():
    "Unpack 64 pixels with a new kernel; return the number of cache hits."
    out, zero = np.zeros(64, "u1"), np.zeros(1, "i8")
    kernel = compiled.__wrapped__("bits")
    kernel(np.arange(1, 9, dtype="u1"), zero, 8, out, zero, 64, 1, 8, 0)
    assert (out == np.unpackbits(np.arange(1, 9, dtype="u1"))[::-1]).all()
    return sum(kernel.stats.cache_hits.values())

assert cache_hits() == 0
for file in Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nb?"):
    file.unlink()
children = []
for _ in range(3):
    children.append(os.fork())
    if not children[-1]:
        cache_hits()
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 3
assert cache_hits() == 1
"""


@pytest.mark.slow
def test_several_processes_compile_at_once(tmp_path):
    ran(CROWD, NUMBA_CACHE_DIR=str(tmp_path))
