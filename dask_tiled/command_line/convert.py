"""``dask-tiled convert``: export to another format."""

from __future__ import annotations

import time
from typing import Any

import click
from click.core import ParameterSource as Source

from dask_tiled.command_line.failures import DOUBTFUL, INTERRUPTED, Failure
from dask_tiled.command_line.opening import OPENING, Opening, files, opened, with_options
from dask_tiled.command_line.values import CHUNKS, COMPRESSOR, DISC, LEVELS, PAIR, PATH
from dask_tiled.command_line.verify import compared

# Options have the names of the parameters of to_zarr.
EXPORT = (
    click.Option(["--chunks"], type=CHUNKS, help="zarr chunks, such as 1,16,-1,-1."),
    click.Option(["--shards"], type=CHUNKS, help="Shards: multiples of the zarr chunks."),
    click.Option(
        ["--compressor", "compressors"],
        type=COMPRESSOR,
        default="auto",
        help="auto, none, zstd:5, gzip:5, or a codec in the JSON of zarr.json.",
    ),
    click.Option(
        ["--layout"],
        type=click.Choice(["group", "array"]),
        default="group",
        help="A group with coordinates, or only the array.",
    ),
    click.Option(["--overwrite"], is_flag=True, help="Replace an earlier export."),
    click.Option(
        ["--resume/--no-resume"],
        default=True,
        help="Resume the same export if it was stopped (default).",
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
        help="Name of an axis; repeat it for all axes, in order.",
    ),
    click.Option(
        ["--attribute", "attributes"], type=PAIR, multiple=True, help="An attribute of the array."
    ),
    click.Option(
        ["--pyramid"],
        type=LEVELS,
        default=False,
        show_default="none",
        help="Number of pyramid levels for viewers, or auto.",
    ),
    click.Option(
        ["--pyramid-method"],
        type=click.Choice(["mean", "mode", "nearest"]),
        default=None,
        help="Pixels of levels: means or, of labels, the most frequent or the first.",
    ),
    click.Option(
        ["--zarr-format"],
        type=click.Choice([2, 3]),
        default=3,
        show_default=True,
        help="Format of zarr: OME-Zarr 0.4 in format 2, 0.5 in format 3.",
    ),
    click.Option(
        ["--rest"],
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="With --follow: seconds without growth after which files are complete.",
    ),
)

MAPS = (
    click.Option(
        ["--maps"],
        metavar="NAME,...",
        help="Results to store as well: bf, adf, com, sum, mean, max; for zarr in the same pass.",
    ),
    click.Option(
        ["--disc"],
        type=DISC,
        help="For bf and adf: centre (y, x) and radius of the bright disc; detected by default.",
    ),
)


@click.command(cls=Opening)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option(
    "--verify",
    "check",
    is_flag=True,
    help="Read the result, and compare it with the file bit by bit.",
)
@with_options(MAPS)
@with_options(EXPORT)
@with_options([option for option in OPENING if option.name != "chunks"])
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    target: str,
    *,
    check: bool,
    maps: str | None,
    disc: tuple[float | str, ...] | None,
    follow: bool,
    **options: Any,
) -> None:
    """Convert a file to the format of the suffix of OUT, in bounded memory.

    Suffixes: .zarr, .zarr.zip, .hspy, .zspy, .npy, .tif, .ome.tif. A stopped conversion never looks
    complete; to .zarr, the same command resumes it.
    """
    names = [str(option.name) for option in EXPORT]
    given = [name for name in names if ctx.get_parameter_source(name) is not Source.DEFAULT]
    own = {name: options.pop(name) for name in names}
    own |= {"attributes": dict(own["attributes"]), "follow": follow}
    asked = {name: own[name] for name in (*given, *["follow"] * follow)}
    from dask_tiled.converting import convert as export
    from dask_tiled.errors import format_bytes

    goes_on = export.suffix_of(target) == export.ZARR
    asked |= {name: x for name, x in (("maps", maps), ("disc", disc)) if x is not None}
    export.check_options(target, asked.keys() - {"overwrite", "progress"})
    arr = opened(files, {**options, "follow": follow})
    begun = time.perf_counter()
    if maps is not None or disc is not None:
        from dask_tiled.converting.maps import maps_of

        found = maps_of(arr, asked.pop("maps", ()), asked.pop("disc", None))
        asked["with_results"] = found.results
        click.echo(found.disc, nl=bool(found.disc))
    try:
        export.convert(arr, target, **asked)
    except KeyboardInterrupt:
        what = "Run the same command to resume." if goes_on else "Nothing was written."
        raise Failure(f"interrupted. {what}", INTERRUPTED) from None
    seconds = time.perf_counter() - begun
    now: Any = arr.refresh() if follow else arr
    stored = format_bytes(export.stored_bytes(target))
    click.echo(f"{target}: {format_bytes(now.nbytes)} of pixels as {stored}, in {seconds:.1f} s")
    lacking = "" if now.description is None else now.description.lacking()
    if lacking:
        click.echo(f"{target}: not complete: {lacking}")
    if check:
        export.verify_file(target, now, progress=own["progress"])
        click.echo(f"{target}: {compared(now)}")
    if lacking and options["doubts"] == "raise":
        raise Failure(f"{target}: not complete: {lacking}", DOUBTFUL)
