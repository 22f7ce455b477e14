"""``dask-tiled doctor``: what the installation and the machine provide."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import click

from dask_tiled.command_line.cluster import show_cluster
from dask_tiled.command_line.opening import OPENING, OpeningCommand, with_options
from dask_tiled.command_line.printing import json_option, section, show, show_json
from dask_tiled.command_line.values import PATH

# Purpose of each extra of this package.
USES = {
    "cli": "this command",
    "distributed": "clusters",
    "explore": "two linked pictures in notebooks and browsers",
    "ffcv": "images in sample files",
    "frms6": "FRMS6 gain maps in .mat files",
    "hdf5": "HDF5, NeXus, EMD, HyperSpy, Eiger",
    "hyperspy": "signals of HyperSpy",
    "live": "streams of DECTRIS detectors",
    "parquet": "references as Parquet files",
    "plot": "pictures",
    "remote": "https:// and s3:// URLs",
    "tiff": "TIFF, OME-TIFF",
    "virtualizarr": "files in VirtualiZarr",
    "watch": "folders that are watched",
    "xarray": "xarray",
}
FEW_FILES = 1024

Section = dict[str, str]

FIRST_SUM = """
import sys, time
import numpy as np
import dask_tiled

np.zeros((4, 64, 64), "u2").tofile("frames.raw")
arr = dask_tiled.open_dataset("frames.raw", "raw", dtype="u2", sig_shape=(64, 64))
for _ in range(2):
    start = time.perf_counter()
    arr.sum(axis=(1, 2)).compute(scheduler="synchronous")
    print(time.perf_counter() - start)
"""


@click.command(cls=OpeningCommand)
@click.argument("files", nargs=-1, type=PATH, metavar="[FILE]...")
@click.option(
    "--compile/--no-compile", "compiles", default=True, help="Measure the compile time (default)."
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Show the workers of a cluster, such as tcp://host:8786."
)
@click.option("--target", type=PATH, help="Path to which workers should be able to write.")
@json_option
@with_options(OPENING)
def doctor(
    files: tuple[str, ...],
    *,
    compiles: bool,
    scheduler: str | None,
    target: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what is installed, which features lack packages, and the resources of the machine.

    With --scheduler, show the workers of a cluster, whether they see the FILEs, and what differs.
    """
    if scheduler is not None:
        show_cluster(scheduler, files, options, target and os.path.abspath(target), as_json=as_json)
        return
    if files or target:
        raise click.UsageError("FILE and --target need --scheduler")
    parts = {
        "Versions": _versions(),
        "Extras": dict(_extras()),
        "Machine": _machine(),
        "Machine code": _machine_code(compiles=compiles),
    }
    if as_json:
        show_json(parts)
    else:
        show(*(section(title, rows.items()) for title, rows in parts.items()))


def _requirements(extra: str = "") -> list[str]:
    """List the libraries that this package, or one of its extras, requires."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    known = map(Requirement, requires("dask-tiled") or ())
    return [
        one.name
        for one in known
        if one.marker is None or (extra and one.marker.evaluate({"extra": extra}))
        if bool(one.marker) == bool(extra)
    ]


def _version(library: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _versions() -> Section:
    own = {name: _version(name) or "missing" for name in ("dask-tiled", *_requirements())}
    return {
        **own,
        "Python": f"{platform.python_version()}, {sys.executable}",
        "system": platform.platform(),
    }


def _extras() -> Iterator[tuple[str, str]]:
    for extra, use in USES.items():
        found = {name: _version(name) for name in _requirements(extra)}
        missing = [name for name, number in found.items() if number is None]
        if missing:
            hint = f'pip install "dask-tiled[{extra}]"'
            yield extra, f"{use}: {' and '.join(missing)} missing. Run: {hint}"
        else:
            there = ", ".join(f"{name} {number}" for name, number in found.items())
            yield extra, f"{use}: {there}" if there else use


def _machine() -> Section:
    from dask_tiled.errors import format_bytes
    from dask_tiled.tiling import machine

    physical, allowed = machine.memory()
    per_thread, whose = machine.thread_memory()
    unknown = "not known"
    return {
        "processors": f"{machine.processors()} of {os.cpu_count()} are used",
        "cache per thread": f"{format_bytes(machine.cache_bytes())}, second level",
        "memory": format_bytes(physical) if physical else unknown,
        "limit of this process": f"{format_bytes(allowed)}, set by its control group"
        if 0 < allowed < physical
        else "none: no control group limits it",
        "memory per thread": f"{format_bytes(per_thread)}, {whose}" if per_thread else unknown,
        "open files": _open_files(),
    }


def _open_files() -> str:
    from dask_tiled.system.resources import NOFILE, UNLIMITED, getrlimit

    if getrlimit is None:
        return "not known"
    soft, hard = getrlimit(NOFILE)
    most = "any number" if hard == UNLIMITED else str(hard)
    text = "any number" if soft == UNLIMITED else f"{soft} at once; ulimit -n sets up to {most}"
    few = soft != UNLIMITED and soft < FEW_FILES
    return f"{text}. This is low: files are reopened often" if few else text


def _machine_code(*, compiles: bool) -> Section:
    from dask_tiled.errors import format_bytes

    try:
        from dask_tiled.kernels.code_cache import look
    except ImportError as error:
        return {"folder": f"none: {error}"}
    state = look()
    rows = {
        "folder": state.folder or "not writable: every process compiles again. Set NUMBA_CACHE_DIR",
        "files": f"{state.files}, {format_bytes(state.nbytes)}",
        "damaged": f"{len(state.damaged)}, recompiled when needed" if state.damaged else "none",
    }
    if compiles:
        click.echo("measuring the compile time ...", err=True)
        rows["first sum"] = _first_sum()
    return rows


def _first_sum() -> str:
    """Time a sum of frames in a new process without compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603 - the running interpreter
            [sys.executable, "-c", FIRST_SUM],
            env={**os.environ, "NUMBA_CACHE_DIR": folder},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}"
    first, second = map(float, done.stdout.split())
    return f"{first - second:.1f} s of compiling, once per pixel type; then {second:.2f} s"
