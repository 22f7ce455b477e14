"""``dask-tiled explore``: two linked pictures in a browser."""

from __future__ import annotations

from typing import Any

import click

from dask_tiled.command_line.opening import OPENING, Opening, arguments, files, with_options


@click.command(cls=Opening)
@files
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free port",
    help="Port of 127.0.0.1.",
)  # fmt: skip
@click.option("--browser/--no-browser", default=True, help="Open a browser (default).")
@with_options(OPENING)
def explore(files: tuple[str, ...], *, port: int, browser: bool, **options: Any) -> None:
    """Show a file in a browser: the scan, the frame, and a detector to drag.

    The page is only served to this machine, at a secret address, until Ctrl-C.
    """
    from dask_tiled.exploring.server import serve

    path, given = arguments(files, options)
    given = {name: value for name, value in given.items() if not _is_usual(name, value)}
    text = {name: repr(value) for name, value in given.items()}
    if "roi" in given:
        text["roi"] = f"np.load({options['roi']!r})"
    named = "".join(f", {name}={value}" for name, value in text.items())
    source = f"dask_tiled.open_dataset({path!r}{named})"

    def say(address: str) -> None:
        click.echo(f"{address}  (press Ctrl-C to stop)")

    serve(path, given, source, port=port, browser=browser, say=say)


def _is_usual(name: str, value: object) -> bool:
    """Return whether an option is what it is by default."""
    usual = {"sync_offset": 0, "follow": False, "outside_folder": False, "io": "auto"}
    return name in usual and value == usual[name]
