"""``dask-tiled explore``: two linked pictures in a browser."""

from __future__ import annotations

from contextlib import closing
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
from dask_tiled.command_line.values import PATH


@click.command(cls=OpeningCommand)
@files
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free port",
    help="Port of 127.0.0.1.",
)  # fmt: skip
@click.option(
    "--record", "target", type=PATH, metavar="FILE", show_default="in memory, until Ctrl-C",
    help="File for the stream of a detector.",
)  # fmt: skip
@click.option("--browser/--no-browser", default=True, help="Open a browser (default).")
@with_options((*CALIBRATING, *OPENING))
@click.pass_context
def explore(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    *,
    port: int,
    target: str | None,
    browser: bool,
    **options: Any,
) -> None:
    """Show a file in a browser: the scan, the frame, and a movable detector.

    The page is only served to this machine, at a secret address, until Ctrl-C. FILE may be the
    address of a detector, such as merlin://HOST:6342: its stream is recorded, and the scan fills.
    """
    from dask_tiled.exploring.pictures import source_of
    from dask_tiled.exploring.server import serve
    from dask_tiled.live.addresses import is_address

    names = [name for name in options if ctx.get_parameter_source(name) is not Source.DEFAULT]
    chosen = {name: options[name] for name in names}
    disk = chosen.pop("disk", None)
    path, given = arguments(files, chosen)
    detects = is_address(path)
    if disk is not None and (detects or "follow" in chosen):
        raise click.UsageError("--disk applies to complete files, not with --follow.", ctx)
    if target is not None and not detects:
        raise click.UsageError("--record applies to the address of a detector.", ctx)
    source = source_of(path, given).replace("roi=roi", f"roi=np.load({options['roi']!r})")

    def say(address: str) -> None:
        click.echo(f"{address}  (press Ctrl-C to stop)")

    if detects:
        _explore_stream(path, target, given, port=port, browser=browser, say=say)
    elif disk is None:
        serve(path, given, source, port=port, browser=browser, say=say)
    else:
        arr, source = opened(files, {**chosen, "disk": disk}), f"{source}.calibrate(disk={disk!r})"
        serve(arr, {}, source, port=port, browser=browser, say=say)


def _explore_stream(url: str, target: str | None, options: dict[str, Any], **how: Any) -> None:
    """Record the stream of a detector, and serve the page of its array."""
    from dask_tiled.exploring.pictures import source_of
    from dask_tiled.exploring.server import serve
    from dask_tiled.live.recording import record

    options.pop("follow", None)
    with closing(record(url, target, **options)) as recording:
        click.echo(f"{url}: waiting for the first frame", err=True)
        serve(recording, {}, source_of(recording, {}), **how)
