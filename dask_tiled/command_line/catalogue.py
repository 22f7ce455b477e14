"""``dask-tiled catalogue``: the datasets below folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dask_tiled.command_line.printing import columns, show
from dask_tiled.command_line.values import PATH

if TYPE_CHECKING:
    from dask_tiled.cataloguing.catalogue import Catalogue

CACHE = "cache"
"""Value of ``--keep`` for a file in the user's cache folder."""


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="FOLDER...")
@click.option(
    "--html", type=PATH, metavar="OUT", help="HTML page to write, with thumbnails and a search."
)
@click.option("--csv", type=PATH, metavar="OUT", help="CSV file to write, a row for each picture.")
@click.option("--json", type=PATH, metavar="OUT", help="JSON file to write.")
@click.option("--pattern", multiple=True, help="File names to try, such as '*.mib'; repeatable.")
@click.option(
    "--recursive/--no-recursive", default=True, help="Search folders in folders (default)."
)
@click.option(
    "--thumbnails/--no-thumbnails", default=True, help="Thumbnails on the HTML page (default)."
)
@click.option(
    "--keep",
    type=PATH,
    metavar="FILE",
    help="SQLite file of headers for later runs, which read only what has changed; "
    f"{CACHE!r} for a file in the cache folder.",
)
@click.option(
    "--seconds", type=float, default=10.0, show_default=True, help="CPU seconds for a file."
)
@click.option("--all", "whole", is_flag=True, help="Print all rows.")
def catalogue(
    paths: tuple[str, ...],
    *,
    html: str | None,
    csv: str | None,
    json: str | None,
    pattern: tuple[str, ...],
    recursive: bool,
    thumbnails: bool,
    keep: str | None,
    seconds: float,
    whole: bool,
) -> None:
    """List the datasets and pictures below folders, and the files that cannot be opened.

    Only headers are read, and few pixels for thumbnails. An earlier catalogue at OUT is replaced,
    other files are not.
    """
    from dask_tiled.cataloguing.catalogue import catalogue as catalogued

    options: dict[str, Any] = {"pattern": pattern or None, "recursive": recursive}
    options["thumbnails"] = thumbnails and html is not None
    options["keep"] = True if keep == CACHE else keep or False
    found = catalogued(list(paths), seconds=seconds, **options)
    show_catalogue(found, whole=whole)
    for target, write in ((html, found.to_html), (csv, found.to_csv), (json, found.to_json)):
        if target is not None:
            click.echo(write(target))


def show_catalogue(found: Catalogue, *, whole: bool) -> None:
    """Print the rows, or the first ones, and what is not followed."""
    from dask_tiled.cataloguing.catalogue import MOST_SHOWN
    from dask_tiled.errors import printable

    for path, problem in found.problems.items():
        click.echo(f"dask-tiled: warning: {printable(path)}: {problem}", err=True)
    heads, *rows = found.rows(len(found) if whole else MOST_SHOWN)
    if found:
        show(columns(dict.fromkeys(map(str.capitalize, heads)), rows))
    click.echo(found.told())
