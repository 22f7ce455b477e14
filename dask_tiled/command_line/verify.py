"""``dask-tiled verify``: comparison of an export with its source."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from dask_tiled.command_line.batch import check_no_batch, is_folder, run_batch
from dask_tiled.command_line.exporting import COMPARING
from dask_tiled.command_line.failures import check_complete
from dask_tiled.command_line.opening import (
    CALIBRATING,
    OPENING,
    OpeningCommand,
    arguments,
    files,
    opened,
    opened_all,
    with_options,
)
from dask_tiled.command_line.values import PATH


@click.command(cls=OpeningCommand)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option("--all", "every", is_flag=True, help="Compare all datasets of the file.")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
@with_options(COMPARING)
@with_options((*CALIBRATING, *OPENING))
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    target: str,
    *,
    every: bool,
    progress: bool | None,
    **options: Any,
) -> None:
    """Compare an output of `convert` with the file, bit by bit.

    Pass the same options as to `convert`. The exit code is 1 if they differ. If OUT is a folder,
    each dataset of the files and folders is compared with its result in OUT; the exit codes are
    those of `convert`, 4 if a result differs, is missing, or cannot be read.
    """
    from dask_tiled.converting.convert import verify_file

    batch = {str(option.name): options.pop(str(option.name)) for option in COMPARING}
    if is_folder(target):
        _verify_folder(ctx, files, target, every=every, progress=progress, batch=batch)
        return
    check_no_batch(ctx, COMPARING)
    if every and options.pop("disk") is not None:
        raise click.UsageError("--disk applies to one dataset, not with --all.", ctx)
    if every:
        datasets = opened_all(files, options)
        verify_file(target, datasets, progress=progress)
        places = placed(target, datasets)
    else:
        places = {target: opened(files, options)}
        verify_file(target, places[target], progress=progress)
    show_compared(places)
    for place, arr in places.items():
        check_complete(place, arr.description, options["doubts"])


def _verify_folder(
    ctx: click.Context,
    files: tuple[str, ...],
    target: str,
    *,
    every: bool,
    progress: bool | None,
    batch: dict[str, Any],
) -> None:
    """Compare the results in a folder; the folder with the records of `convert` may come first."""
    from dask_tiled.batch.verifying import verify_all

    if _has_records(files[0]) and not _has_records(target):
        files, target = (*files[1:], target), files[0]
    given = {
        str(option.name): ctx.params[str(option.name)]
        for option in (*CALIBRATING, *OPENING)
        if ctx.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT
    }
    if wrong := next((name for name in ("disk", "dataset", "follow") if name in given), None):
        raise click.UsageError(f"--{wrong} applies to one dataset, not with a folder.", ctx)
    opening = arguments(files, given)[1]
    run_batch(
        verify_all, files, target, progress=progress, together=every, opening=opening, **batch
    )


def _has_records(folder: str) -> bool:
    from dask_tiled.batch.records import FOLDER

    return os.path.isdir(os.path.join(folder, FOLDER))


def show_compared(places: Mapping[str, Any]) -> None:
    """Print for the array at each place what was compared."""
    for place, arr in places.items():
        click.echo(f"{place}: {compared(arr)}")


def placed(target: str, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Return datasets by their places in a group; of a single one, the path of the group.

    The name of a dataset is added if that of its node differs.
    """
    from dask_tiled.export.zarr.group import DATA, node_names

    nodes = node_names(datasets)
    if [*nodes] == [DATA]:
        return {target: datasets[DATA]}
    return {
        f"{target}/{node}" + (f" ({name!r})" if name != node else ""): datasets[name]
        for name, node in nodes.items()
    }


def compared(arr: Any) -> str:
    """Return what a comparison without differences compared, as text."""
    from dask_tiled.errors import format_bytes

    pixels, desc = f"all {format_bytes(arr.nbytes)} of pixels compared", arr.description
    missing = 0 if desc is None else desc.layout.count_missing()
    if desc is not None and (left := desc.layout.selection.ignored()):
        pixels += f"; {left} frames of the file are not shown"
    if desc is None or not missing:
        return f"equal to the file, bit for bit; {pixels}"
    count, fill = math.prod(desc.nav_shape), desc.conversion.fill_value
    there = f"{count - missing} of {count} frames are equal to the file, bit for bit"
    return f"{there}; {missing} are missing in it, and {fill} in both; {pixels}"
