"""``dask-tiled record``: a detector's stream to a file."""

from __future__ import annotations

import sys
from typing import Any

import click

from dask_tiled.command_line.failures import INTERRUPTED
from dask_tiled.command_line.values import BYTES, DURATION, PATH, SIZES

SHOWN_SECONDS = 0.1


@click.command
@click.argument("url", metavar="URL")
@click.argument("target", type=PATH, metavar="FILE")
@click.option(
    "--nav-shape",
    type=SIZES,
    help="Shape of the scan, such as 64,64, which counts its frames if the detector does not. The"
    " file does not store it: pass it to other commands, too.",
)
@click.option("--max-bytes", type=BYTES, help="Bound of the file, such as 100GiB.")
@click.option(
    "--when-full",
    type=click.Choice(["stop", "drop", "spill"]),
    default="stop",
    show_default=True,
    help="At the bound: end, remove the oldest frames, or go on in another folder.",
)
@click.option("--spill-folder", type=PATH, help="That folder.")
@click.option("--timeout", type=DURATION, help="End after a time without data, such as 10s.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
def record(
    url: str, target: str, *, timeout: float | None, progress: bool | None, **options: Any
) -> None:
    """Record the stream of a detector to a file, until its acquisition ends, or Ctrl-C.

    URL is merlin://HOST:6342, dectris://HOST:31001 or tpx3://HOST:8283. Other commands read the
    file meanwhile, with --follow; a .tpx3 file also with -O frame_time=SECONDS, or with
    -O cut=true for what has come.
    """
    from dask_tiled.blocks.bars import progress_bar
    from dask_tiled.live.parent import STOPPED
    from dask_tiled.live.recording import record as begin

    with begin(url, target, timeout=timeout, **options) as recorded:
        click.echo(f"{url}: ready", err=True)
        with progress_bar(show=progress, unit=" frames", unit_scale=False) as bar:
            try:
                ended = False
                while not ended:
                    ended = recorded.wait(SHOWN_SECONDS)
                    told = recorded.progress
                    bar.total, bar.n = told.expected or None, told.frames or told.events
                    bar.unit = " events" if told.events else " frames"
                    bar.refresh()
            except KeyboardInterrupt:
                recorded.stop()
    click.echo(f"{target}: {recorded.progress}")
    if recorded.state == STOPPED:
        sys.exit(INTERRUPTED)


BOUNDS = tuple(
    one for one in record.params if one.name in {"max_bytes", "when_full", "spill_folder"}
)
"""Options that messages name."""
