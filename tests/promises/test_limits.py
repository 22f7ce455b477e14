"""What a machine has little of, or does not let us do: no crash, no wait, no wrong pixel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile

pytestmark = pytest.mark.slow


def run(script, *arguments, env=(), **options):
    """Run a script in a process of its own, which says nothing but what it prints."""
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}", **dict(env)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=300, **options
    )
    said = [line for line in done.stderr.splitlines() if not re.match(COMPILING, line)]
    assert (done.returncode, said) == (0, []), done.stderr
    return done.stdout


COMPILING = r"compiling for this kind|\.\.\. compiled in"  # where others have not done it before


# Descriptors


FEW_DESCRIPTORS = """
import os, resource, sys
import dask
import numpy as np
import dask_tiled

suffix, io, n, held = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(held)]
raw = {"format": "raw", "dtype": "u2", "sig_shape": (2, 3)} if suffix == "raw" else {}
frames = np.full((n, 2, 3), 7, "u2")
frames[50_000:] += 1

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


HUNDRED_THOUSAND = """
import resource
import numpy as np
import dask_tiled

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
arr = dask_tiled.open_dataset("*.raw", "raw", dtype="u2", sig_shape=(2, 3), chunks=(5000, -1, -1))
assert arr.shape == (100_000, 2, 3)
np.testing.assert_array_equal(arr.max(axis=(1, 2)).compute(), np.repeat([7, 8], 50_000))
"""


def many_files(folder, suffix, n):
    """Make files of one frame: hard links, of which file systems have some 65,000 to a file."""
    for first in range(0, n, 50_000):
        names = [folder / f"{k:06}.{suffix}" for k in range(first, min(n, first + 50_000))]
        frame = np.full((2, 3), 7 + first // 50_000, "u2")
        frame.tofile(names[0]) if suffix == "raw" else tifffile.imwrite(names[0], frame)
        for name in names[1:]:
            name.hardlink_to(names[0])


@pytest.mark.parametrize(
    ("suffix", "io", "n", "held"), [("raw", "buffered", 300, 16), ("tif", "mmap", 300, 16)]
)
def test_more_files_than_a_process_can_have_open(tmp_path, suffix, io, n, held):
    many_files(tmp_path, suffix, n)
    run(FEW_DESCRIPTORS, suffix, io, n, held, cwd=tmp_path)


def test_a_hundred_thousand_files(tmp_path):
    many_files(tmp_path, "raw", 100_000)
    run(HUNDRED_THOUSAND, cwd=tmp_path)


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
READING_IT = """
import os, sys
from pathlib import Path
import dask
import numpy as np
from formats_table import TABLE
import dask_tiled

dask.config.set(scheduler="synchronous")
refused = {"header": set(), "pixels": set()}

def tried(part, path, work):
    "Do something while a file cannot be read; give None where that was said, with its name."
    os.environ["BROKEN_FILE"] = str(path)
    try:
        return work()
    except (OSError, dask_tiled.DatasetError) as error:
        assert str(path) in str(error), (name, path, error)
        refused[part].add(name)
    finally:
        os.environ["BROKEN_FILE"] = ""

TABLE.pop("hdf5 eiger")  # the HDF5 library says nothing of the files behind links
for name, make in TABLE.items():
    folder = Path(name).absolute()
    folder.mkdir()
    sample = make(folder, "scan")
    for path in filter(Path.is_file, folder.rglob("*")):
        arr = tried("header", path, lambda: dask_tiled.open_dataset(**sample.options))
        if arr is not None:
            np.testing.assert_array_equal(arr.compute(), sample.expected, err_msg=name)
        for io in ("buffered", "direct", "auto"):
            arr = dask_tiled.open_dataset(**sample.options, io=io)
            found = tried("pixels", path, arr.compute)
            if found is not None:
                np.testing.assert_array_equal(found, sample.expected, err_msg=name)
            tried("pixels", path, arr[..., ::3, 1].compute)
assert refused["pixels"] == {*TABLE}, {*TABLE} - refused["pixels"]
print(*(name for name in TABLE if name not in refused["header"]), sep=", ")
"""


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """Give what lets reads of the file fail that is named in the environment."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler of C")
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    command = [compiler, "-xc", "-shared", "-fPIC", "-o", library, "-", "-ldl"]
    subprocess.run(command, input=FAILING, text=True, check=True)
    return {"LD_PRELOAD": str(library)}


def test_what_a_disk_does_not_give_is_named(tmp_path, failing):
    """In headers and pixels of every format; only raw files have no headers."""
    found = run(READING_IT, cwd=tmp_path, env=failing)
    assert found == "raw, raw with gaps, raw series\n"
