"""Limits and failures of a machine cause no crash, no wait and no wrong pixel."""

import contextlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tifffile
from checks import listen, peak_memory
from click.testing import CliRunner
from formats_table import ONE_OF_EACH, TABLE

import dask_tiled
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_mib

pytestmark = pytest.mark.slow


def run(script, *arguments, flags=(), env=(), **options):
    """Run a script in another process, which must write nothing to stderr; return its output."""
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}", **dict(env)}
    command = [sys.executable, *flags, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=300, **options
    )
    messages = [line for line in done.stderr.splitlines() if not re.match(COMPILING, line)]
    assert (done.returncode, messages) == (0, []), done.stderr
    return done.stdout


# Messages of the first process that compiles.
COMPILING = r"compiling for this pixel type|\.\.\. compiled in"


# Descriptors


FEW_DESCRIPTORS = """
import os, resource, sys
import dask
import numpy as np
import dask_tiled

suffix, io, n, held = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(held)]
raw = {"format": "raw", "dtype": "u2", "sig_shape": (2, 3), "nav_shape": -1}
raw = raw if suffix == "raw" else {}
frames = np.repeat(np.array([7, 8], "u2"), n // 2)[:, None, None] * np.ones((2, 3), "u2")

for chunks in ("auto", (max(1, n // 100), -1, -1)):
    arr = dask_tiled.open_dataset(f"*.{suffix}", io=io, chunks=chunks, **raw)
    with dask.config.set(scheduler="threads", num_workers=8):
        np.testing.assert_array_equal(arr.compute(), frames)
        np.testing.assert_array_equal(arr[::3, 1, ::2].compute(), frames[::3, 1, ::2])
        np.testing.assert_array_equal(arr.sum(axis=(1, 2)).compute(), frames.sum(axis=(1, 2)))
        views = [arr[k].compute() for k in range(60)]
        dask_tiled.show(arr)
dask_tiled.to_zarr(arr, "out.zarr")
dask_tiled.verify_zarr("out.zarr", arr)
np.testing.assert_array_equal(dask_tiled.open_dataset("out.zarr").compute(), frames)
"""


FEWER_DESCRIPTORS = """
import os, resource
from concurrent.futures import ThreadPoolExecutor
import dask
import h5py
import numpy as np
import dask_tiled

for k in range(20):
    with h5py.File(f"{k}.h5", "w") as file:
        file["data"] = np.full((3, 2, 3), k)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
while os.open("/dev/null", os.O_RDONLY) < 27:
    pass
arr = dask_tiled.open_dataset("*.raw", "raw", dtype="u2", sig_shape=(2, 3), nav_shape=-1)
with dask.config.set(scheduler="threads", num_workers=16):
    for k in range(20):
        found = dask_tiled.open_dataset(f"{k}.h5")
        assert (found.compute() == k).all() and (arr[3 * k :][:40].compute() == 7).all()
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda k: dask_tiled.open_dataset(f"{k}.h5").shape, range(20)):
            assert found == (3, 2, 3)
    dask_tiled.to_zarr(arr, "out.zarr", chunks=(2, 2, 3), shards=None)
    dask_tiled.to_zarr(arr, "out.zarr", chunks=(3, 2, 3), shards=None, overwrite=True)
dask_tiled.verify_zarr("out.zarr", arr)
"""


MANY = """
import resource
import numpy as np
import dask_tiled

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
raw = {"format": "raw", "dtype": "u2", "sig_shape": (2, 3), "nav_shape": -1}
arr = dask_tiled.open_dataset("*.raw", **raw, chunks=(5000, -1, -1))
assert arr.shape == (66_000, 2, 3)
some = arr[::11].max(axis=(1, 2))  # more files than descriptors, on both sides of 2**16
np.testing.assert_array_equal(some.compute(), np.repeat([7, 8], 3000))
"""


def many_files(folder, suffix, n):
    """Make files of one frame, links to two files: the first half holds 7, the second 8."""
    names = [folder / f"{k:06}.{suffix}" for k in range(n)]
    for value, (first, *others) in ((7, names[: n // 2]), (8, names[n // 2 :])):
        frame = np.full((2, 3), value, "u2")
        frame.tofile(first) if suffix == "raw" else tifffile.imwrite(first, frame)
        for name in others:
            name.hardlink_to(first)


@pytest.mark.parametrize(("suffix", "io"), [("raw", "buffered"), ("tif", "mmap")])
def test_more_files_than_descriptors(tmp_path, suffix, io):
    many_files(tmp_path, suffix, 120)
    run(FEW_DESCRIPTORS, suffix, io, 120, 16, cwd=tmp_path)


def test_exports_and_hdf5_files_with_few_descriptors(tmp_path):
    """Twelve descriptors suffice for 16 writing threads and a process that reads HDF5 files."""
    many_files(tmp_path, "raw", 200)
    run(FEWER_DESCRIPTORS, cwd=tmp_path)


def test_thousands_of_files(tmp_path):
    many_files(tmp_path, "raw", 66_000)  # more than 2**16
    run(MANY, cwd=tmp_path)


# Memory for frames of few pixels


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("shape", [(1 << 24, 1, 1), (3, 5, 1 << 20, 1, 1)])
def test_frames_of_one_pixel(tmp_path, shape):
    """Numbers and offsets of frames take less memory than the pixels."""
    pixels = np.arange(np.prod(shape), dtype="u4").astype("u1").reshape(shape)
    np.save(tmp_path / "a.npy", pixels)
    arr = dask_tiled.open_dataset(tmp_path / "a.npy", chunks=-1)
    arr[..., :2, :, :].compute()  # compiles the kernel
    with peak_memory() as peak:
        found = arr.compute()
    np.testing.assert_array_equal(found, pixels)
    assert peak[0] < 3 * pixels.nbytes
    usual = dask_tiled.open_dataset(tmp_path / "a.npy").chunks
    assert np.prod([max(sizes) for sizes in usual]) <= 1 << 18


# Memory between computations


def test_crops_of_volumes_leave_little_memory(tmp_path):
    """A volume has many rows, and each crop has others."""
    shape = (96, 96, 96)
    np.zeros(shape, "u2").tofile(tmp_path / "volume.raw")
    piece = dask_tiled.Piece(tmp_path / "volume.raw", (0, 0, 0), shape)
    arr = dask_tiled.from_pieces([piece], shape=shape, dtype="u2", sig_ndim=3)
    arr[..., :90].compute()
    tracemalloc.start()
    try:
        for start in range(20):
            arr[..., start:90].compute()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


# Disks that fail


FAILING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int fd) {
    const char *broken = getenv("BROKEN_FILE");
    char link[64], path[4096];
    if (!broken || !*broken) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    if (strcmp(path, broken)) return 0;
    errno = EIO;
    return 1;
}
#define CALL(name, types, arguments) ssize_t name types { \
    static ssize_t (*real) types; \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    return fails(fd) ? -1 : real arguments; \
}
CALL(read, (int fd, void *b, size_t n), (fd, b, n))
CALL(pread, (int fd, void *b, size_t n, off_t at), (fd, b, n, at))
CALL(pread64, (int fd, void *b, size_t n, off64_t at), (fd, b, n, at))
CALL(preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
CALL(preadv64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
CALL(preadv2, (int fd, const struct iovec *v, int n, off_t at, int how), (fd, v, n, at, how))
CALL(preadv64v2, (int fd, const struct iovec *v, int n, off64_t at, int how), (fd, v, n, at, how))
"""
READING = """
import os, sys, warnings
from pathlib import Path
import dask
import numpy as np
from formats_table import TABLE
import dask_tiled

warnings.simplefilter("ignore", dask_tiled.DoubtWarning)
dask.config.set(scheduler="synchronous")
refused = {"header": set(), "pixels": set()}

def tried(part, path, work):
    "Work while a file cannot be read; return None if that raised an error with its name."
    os.environ["BROKEN_FILE"] = str(path)
    try:
        return work()
    except (OSError, dask_tiled.DatasetError) as error:
        assert str(path) in str(error), (name, path, error)
        refused[part].add(name)
    finally:
        os.environ["BROKEN_FILE"] = ""

for name, make in TABLE.items():
    folder = Path(name).absolute()
    folder.mkdir()
    sample = make(folder, "scan")
    for path in filter(Path.is_file, folder.rglob("*")):
        arr = tried("header", path, lambda: dask_tiled.open_dataset(**sample.options))
        if arr is not None:
            np.testing.assert_array_equal(arr.compute(), sample.expected, err_msg=name)
        for io in ("buffered", "direct"):
            arr = dask_tiled.open_dataset(**sample.options, io=io)
            found = tried("pixels", path, arr.compute)
            if found is not None:
                np.testing.assert_array_equal(found, sample.expected, err_msg=name)
            few = (slice(None, None, 3), 1)[-arr.ndim :]
            tried("pixels", path, arr[(..., *few)].compute)
assert refused["pixels"] == {*TABLE}, {*TABLE} - refused["pixels"]
print(*(name for name in TABLE if name not in refused["header"]), sep=", ")
"""


def test_errors_of_disks_name_the_file(tmp_path):
    """Headers and pixels of every format are unreadable; only raw files have no header."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    library = "./failing.so"  # LD_PRELOAD is split at blanks, which a path may have
    command = [compiler, "-xc", "-shared", "-fPIC", "-o", library, "-", "-ldl"]
    subprocess.run(command, cwd=tmp_path, input=FAILING, text=True, check=True)
    found = run(READING, cwd=tmp_path, env={"LD_PRELOAD": library})
    assert found == "raw, raw with gaps, raw series\n"


# Names and kinds of files


FRAMES = counting_frames((3, 4, 8, 8), "u2", bits=12)
NAMES = {
    "long": "x" * 251,
    "newline": "a\nb\r\tc",
    "quotes": "a'b\"c`d",
    "formats": "{}%s%(x)s{0}%20%00",
    "glob": "a[1]*?b]",
    "dash": "-rf",
    "blanks": " a ",
    "no UTF-8": os.fsdecode(b"caf\xe9\xff"),
    "shell": "~root\\ $HOME;#?&",
    "terminal": "\x1b[31m\x07\u202e",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_names(tmp_path, monkeypatch, name):
    """Files of any name are read, shown and exported, and messages about them are printable."""
    monkeypatch.chdir(tmp_path)
    path = write_mib(f"{name}.mib", FRAMES, hdr=False)
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(arr)).compute(), FRAMES.reshape(arr.shape)
    )
    dask_tiled.show(arr)
    described = dask_tiled.describe(path)
    for text in (repr(described), described._repr_html_(), repr(arr), arr._repr_html_()):
        assert name in text or text.encode()
    out = f"{name[:240]}.zarr"
    dask_tiled.to_zarr(arr, out)
    dask_tiled.verify_zarr(out, arr)
    for document in Path(out).rglob("zarr.json"):
        json.loads(document.read_bytes().decode(), parse_constant=pytest.fail)
    done = CliRunner().invoke(app, ["info", "--", str(path)])
    assert (done.exit_code, done.stdout_bytes.decode() != "") == (0, True)
    os.truncate(path, 500)
    for fails in (arr.compute, lambda: dask_tiled.open_dataset(path)):
        with pytest.raises(dask_tiled.DatasetError) as caught:
            fails()
        assert str(caught.value).isprintable()
        assert caught.value.path == str(path.absolute())
    with pytest.raises(OSError, match="too long"):
        dask_tiled.open_dataset("x" * 300)
    with pytest.raises(OSError, match="too long"):
        dask_tiled.open_dataset("x/" * 2100)


SPECIAL = {
    "pipe": os.mkfifo,
    "socket": listen,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
}


SEVERAL_FILES = [
    *("empad series", "jeol list", "metaimage list", "mib hdr", "mib series", "nifti pair"),
    *("nrrd list", "ome_tiff companion", "tiff series", "tvips series"),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted({*ONE_OF_EACH, *SEVERAL_FILES}))
@pytest.mark.usefixtures("synchronous")
@pytest.mark.filterwarnings("ignore::dask_tiled.MissingFramesWarning")
def test_special_files_do_not_block(tmp_path, name):
    """Special files replace files of every format, opened alone, in a list or by a pattern."""
    sample = TABLE[name](tmp_path, "scan")
    path, options = sample.options["path"], {**sample.options}
    del options["path"]
    ways = [path]
    if not isinstance(path, list):
        ways += [[path], [*sample.members], str(tmp_path / f"*{Path(path).suffix}")]
    for file in filter(Path.is_file, [*tmp_path.rglob("*")]):
        kept = file.rename(tmp_path / "kept")
        for make in SPECIAL.values():
            make(file)
            for way in ways:
                with contextlib.suppress(dask_tiled.DatasetError, OSError):
                    dask_tiled.open_dataset(way, **options).compute()
            file.rmdir() if file.is_dir() else file.unlink()
        kept.rename(file)


# Permissions


UNPRIVILEGED = """
import importlib, os, pkgutil, sys
import distributed, h5py, hdf5plugin, imagecodecs, tifffile, zarr
import numpy as np
import dask_tiled.testing

for module in pkgutil.walk_packages(dask_tiled.__path__, "dask_tiled."):
    others = "__main__", "napari", "system.windows", "torch", "training.loading"
    if not any(name in module.name for name in others):
        importlib.import_module(module.name)
raw = {"format": "raw", "dtype": "u1", "sig_shape": (2, 3), "nav_shape": -1}
os.mkdir("open"); os.mkdir("closed")
for name in ("open/a.raw", "open/b.raw", "closed/a.raw"):
    np.zeros((2, 2, 3), "u1").tofile(name)
os.chmod("open/b.raw", 0)
opened = [dask_tiled.open_dataset(name, **raw) for name in ("open/b.raw", "closed/a.raw")]
# Imports what is needed: the other user may be unable to read the package.
both = dask_tiled.open_dataset(["open/a.raw", "closed/a.raw"], **raw)
dask_tiled.to_zarr(both, "closed/all.zarr")
try:
    dask_tiled.open_dataset("open/a.raw")
except dask_tiled.DatasetError:
    pass
os.chmod("closed", 0)
if not os.getuid():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

def refused(path, work):
    try:
        work()
    except PermissionError as error:
        assert str(error.filename).endswith(path), error
    else:
        raise AssertionError(path)

for path in ("closed/a.raw", "open/b.raw"):
    refused(path, lambda: dask_tiled.open_dataset(path, **raw).compute())
    refused(path, lambda: dask_tiled.open_dataset(path))
    refused(path, lambda: dask_tiled.open_dataset(["open/a.raw", path], **raw).compute())
refused("closed", lambda: dask_tiled.open_dataset("closed/*.raw", **raw))
for arr in opened:
    refused(os.path.basename(arr.description.files[0].path), arr.compute)
try:
    dask_tiled.to_zarr(dask_tiled.open_dataset("open/a.raw", **raw), "closed/a.zarr")
except (dask_tiled.DatasetError, PermissionError) as error:
    assert "closed" in str(error)
"""


def test_unreadable_files_and_folders():
    """If root runs the tests, the script switches to another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        try:
            run(UNPRIVILEGED, cwd=folder)
        finally:
            Path(folder, "closed").chmod(0o700)


READ_ONLY = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/dev/null/tmp"]
import numpy as np
import dask_tiled
from dask_tiled.kernels.code_cache import look

assert look().folder is None
arr, expected = dask_tiled.open_dataset("scan.mib"), np.load("scan.npy")
np.testing.assert_array_equal(arr.compute(), expected)
np.testing.assert_array_equal(arr.sum(axis=(2, 3)).compute(), expected.sum(axis=(2, 3)))
print(dask_tiled.describe("scan.mib").shape)
"""


def test_no_writable_folder(tmp_path):
    """Reading works silently without a home, a cache and a temporary folder."""
    package = Path(dask_tiled.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    installed = shutil.copytree(package, tmp_path / "installed" / "dask_tiled", ignore=ignored)
    (installed / "kernels" / "__pycache__").touch()
    write_mib(tmp_path / "scan.mib", FRAMES)
    np.save(tmp_path / "scan.npy", FRAMES)
    places = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TMPDIR", "MPLCONFIGDIR")
    env = {**dict.fromkeys(places, "/dev/null/none"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY],
        cwd=tmp_path,
        env={**os.environ, **env, "PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{FRAMES.shape}\n")


# Unusual environments


HERE = f"import sys; sys.path.insert(0, {str(Path(dask_tiled.__file__).parents[1])!r})"
WORK = """
import sys
import dask.array, numpy as np, zarr
import dask_tiled

def work(folder):
    arr, expected = dask_tiled.open_dataset(f"{folder}/scan.mib"), np.load(f"{folder}/scan.npy")
    assert (arr.compute() == expected).all() and (arr[:, 1].compute() == expected[:, 1]).all()
    dask_tiled.to_zarr(arr, f"{folder}/out.zarr", overwrite=True)
    assert (dask_tiled.open_dataset(f"{folder}/out.zarr").compute() == expected).all()
    dask_tiled.show(arr), repr(dask_tiled.describe(f"{folder}/scan.mib"))
    open(f"{folder}/done", "w").close()
"""
ENVIRONMENTS = {
    "no working directory": """
import os
work(sys.argv[1])  # compiles the kernels
os.unlink("done"); os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
work(sys.argv[1])
""",
    "no working directory to compile in": """
import os, numba
numba.config.CACHE_DIR = sys.argv[1]
arr = dask_tiled.open_dataset("scan.mib")
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
try:
    arr.sum(axis=(2, 3)).compute()
except dask_tiled.DatasetError as error:
    assert "working directory" in str(error)
    open(f"{sys.argv[1]}/done", "w").close()
""",
    "nothing open": """
import os
for fd in (0, 1, 2): os.close(fd)
work(sys.argv[1])
""",
    "no streams": """
sys.stdin = sys.stdout = sys.stderr = None
work(sys.argv[1])
""",
    "a clock that runs backwards": """
import itertools, time
now, steps = time.time(), itertools.count()
time.time = lambda: now - 1000 * next(steps)
time.time_ns = lambda: int(1e9 * time.time())
work(sys.argv[1])
""",
    "a clock in the past": """
import time
time.time, time.time_ns = lambda: 86400.0, lambda: 86400 * 10**9
work(sys.argv[1])
""",
    "no proc": """
import builtins, io
real = io.open
def missing(path, *args, **kwargs):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", path)
    return real(path, *args, **kwargs)
builtins.open = io.open = missing
work(sys.argv[1])
""",
    "little memory": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
work(sys.argv[1])
with open("large.raw", "wb") as file:
    file.truncate(3 << 30)
arr = dask_tiled.open_dataset("large.raw", "raw", dtype="u1", sig_shape=(1024, 1024), nav_shape=-1)
try:
    arr.compute()
except MemoryError:
    assert not arr[::500].sum().compute()
""",
}
FORKS = """
import gc, json, os
import distributed, matplotlib.pyplot, tqdm.auto  # once, not in every fork
from dask_tiled.kernels.decoding import compiled

compiled("copy")  # the first kernel takes numba a while
gc.freeze()  # pages stay shared with children
codes = {}
for name, script in json.loads(sys.argv[2]).items():
    if not (pid := os.fork()):
        os.chdir(name)
        sys.argv[1] = os.getcwd()
        exec(script)
        os._exit(0)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""


FORKING = ["-I", "-W", "ignore:This process:DeprecationWarning"]  # several threads: from 3.12 on


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Run each script in a fork of one isolated process and in its own folder; return the codes."""
    folder = tmp_path_factory.mktemp("forks")
    for name in ENVIRONMENTS:
        (folder / name).mkdir()
        write_mib(folder / name / "scan.mib", FRAMES)
        np.save(folder / name / "scan.npy", FRAMES)
    given = folder, json.dumps(ENVIRONMENTS)
    return folder, json.loads(run(HERE + WORK + FORKS, *given, flags=FORKING, cwd=folder))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_unusual_environments(forks, name):
    folder, codes = forks
    assert (codes[name], (folder / name / "done").exists()) == (0, True)


def test_without_docstrings_and_with_ascii_only(tmp_path):
    write_mib(tmp_path / "scan.mib", FRAMES)
    np.save(tmp_path / "scan.npy", FRAMES)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run(WORK + "work('.')", flags=["-OO"], env=ascii_only, cwd=tmp_path)
    assert (tmp_path / "done").exists()
