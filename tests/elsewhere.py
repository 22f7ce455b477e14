"""Run the tests in an unusual environment: ``make test-elsewhere``.

The tests run in a copy of the checkout and of its environment, below a path with spaces and an
umlaut that only one user may enter, with another language, time zone, umask and terminal, an empty
home, one core, 1 GiB for temporary files, random hashes and a random order. Root runs the tests as
a user without a name. Arguments go to pytest; ``--seed`` repeats a run.
"""

import argparse
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venvs" / "elsewhere"
TEMPORARY_BYTES = 1 << 30
LEFT_OUT = (".git", ".venvs", ".*_cache", ".hypothesis", "__pycache__", "_build", "_generated")

CAN_RUN = "import sys; sys.exit(sys.version_info < (3, 11))"
CAN_READ = "import os, sys; sys.exit(not os.access(sys.argv[1], os.R_OK | os.X_OK))"


class Stranger:
    """Run commands as a user without a name if root calls, otherwise as the calling user."""

    def __init__(self):
        self.user = None if os.geteuid() else next(filter(nameless, range(54321, 60000)))
        self.options = {} if self.user is None else {"group": self.user, "extra_groups": []}

    def run(self, *command, **options):
        """Return the exit status; 126, as in a shell, if the command cannot be run."""
        options = {"cwd": "/", "user": self.user, **self.options, **options}
        try:
            process = subprocess.Popen(command, **options)
        except OSError as error:
            print(error)
            return 126
        try:
            return process.wait()
        except (KeyboardInterrupt, SystemExit) as stop:
            if isinstance(stop, SystemExit):  # Ctrl-C reaches the child by itself
                process.send_signal(signal.SIGINT)
            process.wait()
            raise

    def owns(self, path, *, files=True):
        """Change the owner of a folder and its content, or of the folders alone."""
        if self.user is not None:
            for folder, _, names in os.walk(path):
                for name in (folder, *[os.path.join(folder, name) for name in names] * files):
                    os.chown(name, self.user, self.user, follow_symlinks=False)


def nameless(user):
    try:
        pwd.getpwuid(user)
    except KeyError:
        return True
    return False


def choose_python(stranger):
    """Return the running Python, or the system's if other users cannot run the former."""
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        if stranger.run(python, "-c", CAN_RUN) == 0:
            if python != sys.executable:
                print(
                    f"user {stranger.user} runs {python}, as {sys.executable} is not for all users"
                )
            return python
    raise SystemExit(f"user {stranger.user} finds no Python >= 3.11; set PYTHON=/path/to/python")


def link(source, target):
    """Link a file that is only read, or copy it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target)


def mount(folder, stranger):
    """Mount a small tmpfs, and return whether that was allowed."""
    if stranger.user is None or shutil.which("mount") is None:
        return False
    options = f"size={TEMPORARY_BYTES},mode=0700,uid={stranger.user},gid={stranger.user}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def temporary_folder(place, stranger, stack):
    """Make a folder for temporary files, in a small tmpfs if one can be mounted."""
    folder = place / "tmp"
    folder.mkdir()
    if mount(folder, stranger):
        stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
        return folder
    print("no tmpfs can be mounted: the space for temporary files is not limited")
    if os.access("/dev/shm", os.W_OK):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
    stranger.owns(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    options, arguments = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    os.umask(0o022)
    stranger = Stranger()
    python = choose_python(stranger)
    target = ENVIRONMENT.relative_to(ROOT) / "installed"
    subprocess.run(["make", "--silent", f"PYTHON={python}", target], cwd=ROOT, check=True)
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="dask tiled ä "))
        stack.callback(shutil.rmtree, place)
        checkout, home, environment = (place / name for name in ("checkout", "home", "environment"))
        shutil.copytree(ENVIRONMENT, environment, symlinks=True, copy_function=link)
        shutil.copytree(ROOT, checkout, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        home.mkdir()
        stranger.owns(environment, files=False)
        stranger.owns(checkout)
        stranger.owns(home)
        if stranger.user is not None:
            os.chown(place, stranger.user, stranger.user)
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(temporary_folder(place, stranger, stack)),
            "PYTHONPATH": str(checkout),
            "PYTHONHASHSEED": str(options.seed),
            "LANG": "C",
            "TZ": "Asia/Kathmandu",
            "COLUMNS": "40",
        }
        variables |= {key: v for key, v in os.environ.items() if key.startswith("DASK_TILED_")}
        data = variables.setdefault("DASK_TILED_TESTDATA", str(ROOT.parent / "shared" / "data"))
        if stranger.run(python, "-c", CAN_READ, data):
            print(f"no real files: {data} is not there, or not for user {stranger.user}")
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        else:
            print("this system cannot restrict a process to one core: all are used")
        who = "the user who runs this" if stranger.user is None else f"user {stranger.user}"
        print(f"{who}, in {place}; again: make test-elsewhere PYTEST_ARGS=--seed={options.seed}")
        command = [environment / "bin" / "python", "-m", "pytest", "--numprocesses=0", "--shuffle"]
        # Only failed tests keep their files: space is limited.
        command += [f"--seed={options.seed}", "--override-ini=tmp_path_retention_policy=failed"]
        return stranger.run(*command, *arguments, cwd=checkout, env=variables, umask=0o077)


if __name__ == "__main__":
    sys.exit(main())
