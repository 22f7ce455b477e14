"""``dask-tiled verify``: comparison of an export with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from dask_tiled.command_line.failures import check_complete
from dask_tiled.command_line.opening import (
    CALIBRATING,
    OPENING,
    OpeningCommand,
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
@with_options((*CALIBRATING, *OPENING))
def verify(
    files: tuple[str, ...], target: str, *, every: bool, progress: bool | None, **options: Any
) -> None:
    """Compare an output of `convert` with the file, bit by bit.

    Pass the same options for opening as to `convert`. The exit code is 1 if they differ.
    """
    from dask_tiled.converting.convert import verify_file

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
