"""Check that the commit can be released: ``make release-check``.

A clone of the commit is tagged with the version of the changelog. sdist and wheel are built twice,
from the clone and from its ``git archive``, with another umask and time zone, and have to be
identical. The wheel is installed with its dependencies only, then with those of the tests, which
run outside of the checkout. If the commit itself has a tag, the files are left in ``dist``.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venvs" / "wheel"
TESTS = ["tests/formats/test_battery.py"]

FIRST = """
import sys
import numpy as np
import dask_tiled

frames = np.arange(3 * 4 * 8 * 8, dtype="uint16").reshape(3, 4, 8, 8)
np.save("scan.npy", frames)
assert np.array_equal(dask_tiled.open_dataset("scan.npy").sum(axis=(2, 3)), frames.sum(axis=(2, 3)))
assert dask_tiled.__version__ == sys.argv[1], dask_tiled.__version__
print(dask_tiled.__file__)
"""


class ReleaseError(Exception):
    """A reason why the commit cannot be released."""


def released_version(changelog, tags):
    """Return the version of a release of this commit.

    Parameters
    ----------
    changelog
        Its text.
    tags
        Tags of the commit that name a version.

    Returns
    -------
    str
        Without a tag, the version of the first section; while that is "Unreleased", the next minor
        version after the newest release.
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", title) for title in titles]
    if not titles or not any(dated):
        raise ReleaseError("CHANGELOG.md has no section such as [0.1.0] - 2026-01-31")
    if not re.search(r"^- ", sections[0], re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no entry in its first section, {titles[0]}")
    if dated[0]:
        version = dated[0][1]
    elif titles[0] != "[Unreleased]":
        raise ReleaseError(
            f"the first section of CHANGELOG.md is {titles[0]}; expected [Unreleased], or a version"
            " with its date"
        )
    elif tags:
        raise ReleaseError(
            f"the commit has the tag {tags[0]}, but the first section of CHANGELOG.md is"
            f" [Unreleased]; rename it to [{tags[0].removeprefix('v')}] with the date"
        )
    else:
        major, minor, _ = next(filter(None, dated))[1].split(".")
        version = f"{major}.{int(minor) + 1}.0"
    if tags not in ([], [f"v{version}"]):
        raise ReleaseError(
            f"the tags are {', '.join(tags)}; expected v{version}, as in CHANGELOG.md"
        )
    return version


def run(*command, **options):
    """Return the output of a command, or end with the output of one that fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def git(*arguments, folder=ROOT):
    return run("git", "-C", folder, *arguments)


def build(source, target, epoch, **environment):
    """Build the sdist, and from that the wheel, and return both by name."""
    variables = {**os.environ, "SOURCE_DATE_EPOCH": epoch, **environment}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source]
    run(*command, cwd=source, env=variables)
    return {path.name: path for path in sorted(target.iterdir())}


def content(path):
    """Return the members of an sdist or a wheel."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {x.filename: (x.external_attr, archive.read(x)) for x in archive.infolist()}
    with tarfile.open(path) as archive:
        return {
            x.name: (x.mode, x.mtime, x.linkname, archive.extractfile(x).read() if x.isreg() else 0)
            for x in archive
        }


def compare(first, second):
    """Raise unless both builds have the same files, byte for byte."""
    if [*first] != [*second]:
        raise ReleaseError(f"built {', '.join(first)}, then {', '.join(second)}")
    for name, path in first.items():
        if path.read_bytes() != second[name].read_bytes():
            one, other = content(path), content(second[name])
            differing = sorted(x for x in {*one, *other} if one.get(x) != other.get(x))
            raise ReleaseError(
                f"two builds of {name} differ in {', '.join(differing) or 'their compression'}"
            )


def build_twice(place, version, epoch):
    """Return the sdist and the wheel of the commit, built from a clone and from its archive."""
    clone, archive = place / "clone", place / "archive"
    git("clone", "--quiet", ROOT, clone)
    git("tag", "--force", f"v{version}", folder=clone)
    git("archive", "--output", place / "archive.tar", "HEAD", folder=clone)
    first = build(clone, place / "first", epoch, TZ="UTC")
    umask = os.umask(0o077)
    try:
        archive.mkdir()
        run("tar", "-xf", place / "archive.tar", "-C", archive)
        second = build(archive, place / "second", epoch, TZ="Asia/Kathmandu")
    finally:
        os.umask(umask)
    compare(first, second)
    expected = {f"dask_tiled-{version}.tar.gz", f"dask_tiled-{version}-py3-none-any.whl"}
    if {*first} != expected:
        raise ReleaseError(f"built {', '.join(first)}; expected {', '.join(sorted(expected))}")
    wheel, sdist = (first[name] for name in sorted(expected))
    return sdist, wheel


def install(wheel, extra=""):
    python = ENVIRONMENT / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}{extra}")
    run(python, "-m", "pip", "check")


def check_wheel(place, version, sdist, wheel):
    """Use the installed wheel without the checkout, and run tests of the sdist."""
    variables = {key: x for key, x in os.environ.items() if not key.startswith("PYTHON")}
    variables.setdefault("DASK_TILED_TESTDATA", str(ROOT.parent / "shared" / "data"))
    run(sys.executable, "-m", "venv", "--clear", ENVIRONMENT)
    install(wheel)
    python = ENVIRONMENT / "bin" / "python"
    imported = run(python, "-I", "-c", FIRST, version, cwd=place, env=variables)
    if not Path(imported).is_relative_to(ENVIRONMENT):
        raise ReleaseError(f"imported {imported}, which is not the installed wheel")
    print("the wheel alone, with its dependencies: opens and sums an array")
    install(wheel, "[test]")
    run("tar", "-xf", sdist, "-C", place)
    folder = place / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(folder / "dask_tiled")
    print(f"tests of the sdist, on the wheel: {' '.join(TESTS)}", flush=True)
    command = [python, "-m", "pytest", "--quiet", "--numprocesses=auto", "--dist=worksteal"]
    done = subprocess.run([*command, *TESTS], check=False, cwd=folder, env=variables)
    if done.returncode:
        raise ReleaseError("the tests failed")


def check(place):
    if changed := git("status", "--porcelain"):
        raise ReleaseError(f"changes that are not committed:\n{changed}")
    tags = git("tag", "--points-at", "HEAD", "--list", "v*").split()
    changelog = (ROOT / "CHANGELOG.md").read_text("utf8")
    version = released_version(changelog, tags)
    print(f"version {version}, {'tagged' if tags else 'not tagged'}")
    sdist, wheel = build_twice(place, version, git("log", "-1", "--format=%ct"))
    print("built twice, from a clone and from its archive: identical")
    for path in (sdist, wheel):
        data = path.read_bytes()
        print(f"  {path.name}  {len(data):,} bytes  sha256 {hashlib.sha256(data).hexdigest()}")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    print("twine check --strict: passed")
    check_wheel(place, version, sdist, wheel)
    if tags:
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        (ROOT / "dist").mkdir()
        for path in (sdist, wheel):
            shutil.copy2(path, ROOT / "dist")
        print("dist holds both files")
    elif "## [Unreleased]" in changelog:
        print(f"to release, rename [Unreleased] in CHANGELOG.md to [{version}] with the date")
    else:
        print(f"to release: git tag v{version}")


def main():
    with tempfile.TemporaryDirectory(prefix="release-") as place:
        try:
            check(Path(place).resolve())
        except ReleaseError as error:
            return f"not releasable: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
