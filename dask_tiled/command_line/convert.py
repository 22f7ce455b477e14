"""``dask-tiled convert``: export to another format."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource as Source

from dask_tiled.command_line.batch import check_no_batch, is_folder, run_batch
from dask_tiled.command_line.exporting import BATCH, EXPORT, MAPS
from dask_tiled.command_line.failures import INTERRUPTED, Failure, check_complete
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
from dask_tiled.command_line.verify import placed, show_compared

if TYPE_CHECKING:
    from dask_tiled.batch.records import ConversionRecord
    from dask_tiled.opened.tiled_array import TiledArray

NOT_FOR_SEVERAL = ("dataset", "dimension_names", "disk", "follow", "maps", "maps_disk")
"""Options that apply to one dataset."""
OF_WRITING = {"overwrite", "progress"}
"""Options that no format has."""


@click.command(cls=OpeningCommand)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option(
    "--all", "every", is_flag=True, help="Convert all datasets of a file, to one zarr group."
)
@click.option(
    "--verify",
    "check",
    is_flag=True,
    help="Compare the result with the file bit by bit; not again if it is as it was then.",
)
@with_options(BATCH)
@with_options(MAPS)
@with_options(EXPORT)
@with_options([*CALIBRATING, *(option for option in OPENING if option.name != "chunks")])
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
    maps_disk: tuple[float | str, ...] | None,
    follow: bool,
    **options: Any,
) -> None:
    """Convert files, in bounded memory.

    To the format of the suffix of OUT. If OUT is a folder, all files and folders are searched for
    datasets, and each is converted to a file in OUT: what is done is skipped.

    Suffixes: .zarr, .zarr.zip, .hspy, .zspy, .npy, .tif, .ome.tif. A stopped conversion never looks
    complete; to .zarr, the same command resumes it. Of a file with several datasets, one is
    converted: the first, that of --dataset, or each with --all.
    """
    batch = {str(option.name): options.pop(str(option.name)) for option in BATCH}
    own = {str(option.name): options.pop(str(option.name)) for option in EXPORT}
    own |= {
        "attributes": dict(own["attributes"]),
        "follow": follow,
        "maps": maps,
        "maps_disk": maps_disk,
    }
    watch, quiet = batch.pop("watch"), batch.pop("quiet")
    asked = _given(ctx, own)
    together = is_folder(target)
    if together or every:
        _check_of_several(ctx, asked | options, "a folder" if together else "--all", every=every)
    if together:
        from dask_tiled.batch.running import convert_all

        run_batch(
            convert_all,
            files,
            target,
            progress=own["progress"],
            overwrite=own["overwrite"],
            verify=check,
            together=every,
            opening=arguments(files, _given(ctx, options))[1],
            watch=quiet if watch else None,
            **batch,
            **{name: x for name, x in asked.items() if name not in OF_WRITING},
        )
        return
    check_no_batch(ctx, BATCH)
    from dask_tiled.converting import convert as export

    export.check_options(target, asked.keys() - OF_WRITING)
    if every:
        export.check_several(target)
    told = {**_given(ctx, options), **asked, "all": every}
    now = (_convert_all if every else _convert_one)(files, target, asked, options, told)
    places = placed(target, now) if every else {target: now}
    for place, one in places.items():
        if one.description is not None and (lacking := one.description.lacking()):
            click.echo(f"{place}: not complete: {lacking}")
    if check:
        export.verify_file(target, now, progress=own["progress"])
        show_compared(places)
    for place, one in places.items():
        check_complete(place, one.description, options["doubts"])


def _record_of(
    looked: Iterable[str], held: Iterable[str], told: Mapping[str, Any], target: str
) -> ConversionRecord | None:
    """Return the record of a conversion from files to a path; None for folders and URLs.

    Parameters
    ----------
    looked : iterable of str
        Files that were looked at.
    held : iterable of str
        Files that hold the pixels, or lead to them.
    """
    from dask_tiled.batch.fingerprints import Fingerprint
    from dask_tiled.batch.one import OF_A_RUN
    from dask_tiled.batch.records import ConversionRecord, stamps_of
    from dask_tiled.cataloguing.walking import Stamp
    from dask_tiled.files.paths import absolute
    from dask_tiled.storing.folders import local_path

    path, first = local_path(target), [*map(absolute, held)]
    paths = sorted({*first, *filter(os.path.isfile, map(absolute, looked))})
    if path is None or told.get("follow") or not first or not all(map(os.path.isfile, paths)):
        return None
    kept = {name: x for name, x in told.items() if name not in {*OF_WRITING, *OF_A_RUN}}
    record = ConversionRecord.of(first[0], stamps_of(paths, Stamp(0, 0)), kept, path)
    replaced = Fingerprint.at(path) if told.get("overwrite") else None
    return record._replace(replaces=replaced)


def _is_done(record: ConversionRecord | None, target: str, asked: Mapping[str, Any]) -> bool:
    """Return whether a conversion is done, and print it."""
    if record is None or asked.get("overwrite") or not record.is_done(os.path.abspath(target)):
        return False
    click.echo(f"{target}: done already")
    return True


@contextmanager
def _recorded(record: ConversionRecord | None, target: str) -> Iterator[None]:
    """Say after an interruption whether the same command resumes; keep a record."""
    from dask_tiled.converting import convert as export

    goes_on = export.suffix_of(target) == export.ZARR
    kept = nullcontext() if record is None else record.kept(os.path.abspath(target))
    with _interruptible(goes_on=goes_on), kept:
        yield


def _given(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that do not have their defaults."""
    return {
        name: value
        for name, value in options.items()
        if ctx.get_parameter_source(name) is not Source.DEFAULT
    }


def _check_of_several(
    ctx: click.Context, given: Mapping[str, Any], what: str, *, every: bool
) -> None:
    """Refuse options that apply to one dataset."""
    names = NOT_FOR_SEVERAL if every else [name for name in NOT_FOR_SEVERAL if name != "maps"]
    wrong = next((name for name in names if given.get(name) not in (None, (), False)), None)
    if wrong:
        option = wrong.rstrip("s").replace("_", "-") if wrong != "maps" else wrong
        raise click.UsageError(f"--{option} applies to one dataset, not with {what}.", ctx)


def _convert_one(
    files: Sequence[str],
    target: str,
    asked: dict[str, Any],
    options: Mapping[str, Any],
    told: Mapping[str, Any],
) -> Any:
    """Convert one dataset unless it is done; return it."""
    from dask_tiled.converting import convert as export
    from dask_tiled.files.paths import noting_looked

    follow = asked.get("follow", False)
    with noting_looked() as looked:
        arr: Any = opened(files, {**options, "follow": follow})
    held = [file.path for file in arr.description.files] if arr.description else []
    record = _record_of(looked, held, told, target)
    if _is_done(record, target, asked):
        return arr
    if options["dataset"] is None and (more := _others(arr)):
        click.echo(f"{files[0]}: {more}")
    begun = time.perf_counter()
    if {"maps", "maps_disk"} & asked.keys():
        from dask_tiled.tiles.standard import maps_of

        found = maps_of(arr, asked.pop("maps", ()), asked.pop("maps_disk", None), "maps_disk")
        asked["with_results"] = dict(found)
        if found.disk is not None:
            click.echo(str(found.disk))
    with _recorded(record, target):
        export.convert(arr, target, **asked)
    seconds = time.perf_counter() - begun
    now = arr.refresh() if follow else arr
    click.echo(_told(target, now.nbytes, "pixels", seconds))
    return now


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


def _convert_all(
    files: Sequence[str],
    target: str,
    asked: dict[str, Any],
    options: Mapping[str, Any],
    told: Mapping[str, Any],
) -> Any:
    """Convert all datasets to one group unless they are done; return them."""
    from dask_tiled.converting import convert as export
    from dask_tiled.files.paths import noting_looked

    with noting_looked() as looked:
        datasets = opened_all(files, {**options})
    path = datasets.path
    record = _record_of(looked, [path] if isinstance(path, str) else path, told, target)
    if _is_done(record, target, asked):
        return datasets
    begun = time.perf_counter()
    with _recorded(record, target):
        export.convert(datasets, target, **asked)
    seconds = time.perf_counter() - begun
    nbytes = sum(arr.nbytes for arr in datasets.values())
    what = f"pixels of {len(datasets)} datasets" if len(datasets) > 1 else "pixels"
    click.echo(_told(target, nbytes, what, seconds))
    return datasets
