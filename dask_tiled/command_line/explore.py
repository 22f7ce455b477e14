"""``dask-tiled explore``: two linked pictures in a browser."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource as Source

from dask_tiled.command_line.opening import (
    CALIBRATING,
    OPENING,
    OpeningCommand,
    arguments,
    files,
    opened,
    with_options,
)


@click.command(cls=OpeningCommand)
@files
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free port",
    help="Port of 127.0.0.1.",
)  # fmt: skip
@click.option("--browser/--no-browser", default=True, help="Open a browser (default).")
@with_options((*CALIBRATING, *OPENING))
@click.pass_context
def explore(
    ctx: click.Context, /, files: tuple[str, ...], *, port: int, browser: bool, **options: Any
) -> None:
    """Show a file in a browser: the scan, the frame, and a movable detector.

    The page is only served to this machine, at a secret address, until Ctrl-C.
    """
    from dask_tiled.exploring.pictures import source_of
    from dask_tiled.exploring.server import serve

    names = [name for name in options if ctx.get_parameter_source(name) is not Source.DEFAULT]
    chosen = {name: options[name] for name in names}
    disk = chosen.pop("disk", None)
    if disk is not None and "follow" in chosen:
        raise click.UsageError("--disk applies to complete files, not with --follow.", ctx)
    path, given = arguments(files, chosen)
    source = source_of(path, given).replace("roi=roi", f"roi=np.load({options['roi']!r})")

    def say(address: str) -> None:
        click.echo(f"{address}  (press Ctrl-C to stop)")

    if disk is None:
        serve(path, given, source, port=port, browser=browser, say=say)
    else:
        arr, source = opened(files, {**chosen, "disk": disk}), f"{source}.calibrate(disk={disk!r})"
        serve(arr, {}, source, port=port, browser=browser, say=say)
