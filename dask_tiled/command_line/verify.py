"""``dask-tiled verify``: comparison of an export with its source."""

from __future__ import annotations

from typing import Any

import click

from dask_tiled.command_line.opening import OPENING, Opening, files, opened, with_options
from dask_tiled.command_line.values import PATH


@click.command(cls=Opening)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
@with_options(OPENING)
def verify(files: tuple[str, ...], target: str, *, progress: bool | None, **options: Any) -> None:
    """Compare an output of `convert` with the file, bit by bit.

    Pass the same options for opening as to `convert`. The exit code is 1 if they differ.
    """
    arr = opened(files, options)
    from dask_tiled.converting.convert import verify_file

    verify_file(target, arr, progress=progress)
    click.echo(f"{target}: equal to the file, bit for bit")
