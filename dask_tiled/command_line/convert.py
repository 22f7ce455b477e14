"""``dask-tiled convert``: a file as zarr."""

from __future__ import annotations

import time
from typing import Any

import click

from dask_tiled.command_line.failures import INTERRUPTED, Failure
from dask_tiled.command_line.opening import OPENING, Opening, files, opened, with_options
from dask_tiled.command_line.values import CHUNKS, COMPRESSOR, LEVELS, PAIR, PATH

# Each is called as the parameter of to_zarr that it is handed to.
EXPORT = (
    click.Option(["--chunks"], type=CHUNKS, help="zarr chunks, such as 1,16,-1,-1."),
    click.Option(["--shards"], type=CHUNKS, help="Shards: multiples of the zarr chunks."),
    click.Option(
        ["--compressor", "compressors"],
        type=COMPRESSOR,
        default="auto",
        help="auto, none, zstd:5, gzip:5, or a codec as zarr.json has it.",
    ),
    click.Option(
        ["--layout"],
        type=click.Choice(["group", "array"]),
        default="group",
        help="A group with coordinates, or the array alone.",
    ),
    click.Option(["--overwrite"], is_flag=True, help="Replace an earlier export."),
    click.Option(
        ["--resume/--no-resume"],
        default=True,
        help="Go on where the same export was stopped; this is what happens by default.",
    ),
    click.Option(
        ["--progress/--no-progress"],
        default=None,
        help="Show a progress bar; by default in a terminal.",
    ),
    click.Option(
        ["--dimension-name", "dimension_names"],
        multiple=True,
        metavar="NAME",
        help="Name of an axis: one for each, in their order.",
    ),
    click.Option(
        ["--attribute", "attributes"], type=PAIR, multiple=True, help="An attribute of the array."
    ),
    click.Option(
        ["--pyramid"],
        type=LEVELS,
        default=False,
        show_default="none",
        help="Write so many levels for viewers, too, or as many as it takes: auto.",
    ),
    click.Option(
        ["--rest"],
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="With --follow: after so long without growth the files are finished.",
    ),
)


@click.command(cls=Opening)
@files
@click.argument("store", type=PATH, metavar="OUT.zarr")
@click.option("--verify", "check", is_flag=True, help="Read it back, and compare every bit.")
@with_options(EXPORT)
@with_options([option for option in OPENING if option.name != "chunks"])
def convert(
    files: tuple[str, ...], store: str, *, check: bool, follow: bool, **options: Any
) -> None:
    """Write a file to zarr, in bounded memory.

    An export that was stopped is never seen as one: the same command goes on with it.
    """
    own = {option.name: options.pop(str(option.name)) for option in EXPORT}
    own["dimension_names"] = own["dimension_names"] or None
    own["attributes"] = dict(own["attributes"])
    arr = opened(files, {**options, "follow": follow})
    from dask_tiled import to_zarr, verify_zarr
    from dask_tiled.errors import format_bytes

    begun = time.perf_counter()
    try:
        stored = to_zarr(arr, store, follow=follow, **own)
    except KeyboardInterrupt:
        raise Failure("interrupted. The same command goes on.", INTERRUPTED) from None
    seconds = time.perf_counter() - begun
    pixels, rest = format_bytes(stored.nbytes), format_bytes(stored.nbytes_stored())
    click.echo(f"{store}: {pixels} of pixels as {rest}, in {seconds:.1f} s")
    if check:
        verify_zarr(store, arr.refresh() if follow else arr, progress=own["progress"])
        click.echo(f"{store}: every bit is as in the file")
