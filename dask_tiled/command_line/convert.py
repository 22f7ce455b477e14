"""``dask-tiled convert``: export to another format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource as Source

from dask_tiled.command_line.failures import INTERRUPTED, Failure, check_complete
from dask_tiled.command_line.opening import (
    OPENING,
    OpeningCommand,
    files,
    opened,
    opened_all,
    with_options,
)
from dask_tiled.command_line.values import CHUNKS, COMPRESSOR, DISC, LEVELS, PAIR, PATH
from dask_tiled.command_line.verify import placed, show_compared

if TYPE_CHECKING:
    from dask_tiled.opened.tiled_array import TiledArray
    from dask_tiled.opening.datasets import Datasets

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


OF_ONE = ("dataset", "dimension_names", "disc", "follow", "maps")
"""Options that apply to one dataset."""


@click.command(cls=OpeningCommand)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option(
    "--all", "every", is_flag=True, help="Convert all datasets of the file, to one zarr group."
)
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
    every: bool,
    check: bool,
    maps: str | None,
    disc: tuple[float | str, ...] | None,
    follow: bool,
    **options: Any,
) -> None:
    """Convert a file to the format of the suffix of OUT, in bounded memory.

    Suffixes: .zarr, .zarr.zip, .hspy, .zspy, .npy, .tif, .ome.tif. A stopped conversion never looks
    complete; to .zarr, the same command resumes it. Of a file with several datasets, one is
    converted: the first, that of --dataset, or each with --all.
    """
    names = [str(option.name) for option in EXPORT]
    given = [name for name in names if ctx.get_parameter_source(name) is not Source.DEFAULT]
    own = {name: options.pop(name) for name in names}
    own |= {"attributes": dict(own["attributes"]), "follow": follow}
    asked = {name: own[name] for name in (*given, *["follow"] * follow)}
    from dask_tiled.converting import convert as export

    goes_on = export.suffix_of(target) == export.ZARR
    asked |= {name: x for name, x in (("maps", maps), ("disc", disc)) if x is not None}
    export.check_options(target, asked.keys() - {"overwrite", "progress"})
    if every:
        told = asked | options
        wrong = next((name for name in OF_ONE if told.get(name) not in (None, (), False)), None)
        if wrong:
            option = wrong.rstrip("s").replace("_", "-") if wrong != "maps" else wrong
            raise click.UsageError(f"--{option} applies to one dataset, not with --all.", ctx)
        export.check_several(target)
        now: Any = opened_all(files, options)
        _convert_all(now, target, asked, goes_on=goes_on)
        places = placed(target, now)
    else:
        arr = opened(files, {**options, "follow": follow})
        if options["dataset"] is None and (more := _others(arr)):
            click.echo(f"{files[0]}: {more}")
        begun = time.perf_counter()
        if maps is not None or disc is not None:
            from dask_tiled.converting.maps import maps_of

            found = maps_of(arr, asked.pop("maps", ()), asked.pop("disc", None))
            asked["with_results"] = found.results
            click.echo(found.disc, nl=bool(found.disc))
        with _interruptible(goes_on=goes_on):
            export.convert(arr, target, **asked)
        seconds = time.perf_counter() - begun
        now = arr.refresh() if follow else arr
        click.echo(_told(target, now.nbytes, "pixels", seconds))
        places = {target: now}
    for place, one in places.items():
        if one.description is not None and (lacking := one.description.lacking()):
            click.echo(f"{place}: not complete: {lacking}")
    if check:
        export.verify_file(target, now, progress=own["progress"])
        show_compared(places)
    for place, one in places.items():
        check_complete(place, one.description, options["doubts"])


@contextmanager
def _interruptible(*, goes_on: bool) -> Iterator[None]:
    """Say after an interruption whether the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        what = "Run the same command to resume." if goes_on else "Nothing was written."
        raise Failure(f"interrupted. {what}", INTERRUPTED) from None


def _told(target: str, nbytes: float, what: str, seconds: float) -> str:
    from dask_tiled.converting.convert import stored_bytes
    from dask_tiled.errors import format_bytes

    stored = format_bytes(stored_bytes(target))
    return f"{target}: {format_bytes(nbytes)} of {what} as {stored}, in {seconds:.1f} s"


def _others(arr: TiledArray) -> str:
    """Return which of several datasets is converted, as text; empty if the file has one."""
    from dask_tiled.model.description import facts_of
    from dask_tiled.model.listing import Listing

    _, meant, names = Listing.of(facts_of(arr.description))
    if len(names) < 2 or meant not in names:
        return ""
    place = [*names].index(meant) + 1
    return f"dataset {place} of {len(names)}, {names[meant]!r}; pass --all to convert each"


def _convert_all(datasets: Datasets, target: str, asked: dict[str, Any], *, goes_on: bool) -> None:
    """Convert datasets to one group."""
    from dask_tiled.converting import convert as export

    begun = time.perf_counter()
    with _interruptible(goes_on=goes_on):
        export.convert(datasets, target, **asked)
    seconds = time.perf_counter() - begun
    nbytes = sum(arr.nbytes for arr in datasets.values())
    what = f"pixels of {len(datasets)} datasets" if len(datasets) > 1 else "pixels"
    click.echo(_told(target, nbytes, what, seconds))
