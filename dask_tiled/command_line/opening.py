"""Options of all commands that open files, equal to those of ``open_dataset``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from dask_tiled.command_line.values import CHUNKS, PAIR, PATH, SCAN, SIZES, TILING, VALUE

if TYPE_CHECKING:
    from dask_tiled.model.description import Description
    from dask_tiled.opened.tiled_array import TiledArray
    from dask_tiled.opening.datasets import Datasets
    from dask_tiled.opening.listing import Contents
    from dask_tiled.tiling.scheme import TilingScheme

Function = TypeVar("Function", bound=Callable[..., Any])


def complete_format(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the formats with a prefix, for shell completion."""
    from dask_tiled.formats.registry import formats

    known = formats().items()
    return [CompletionItem(k, help=one.summary) for k, one in known if k.startswith(incomplete)]


OPENING = (
    click.Option(
        ["--format", "-f"],
        shell_complete=complete_format,
        metavar="NAME",
        help="Format of the file, one of `dask-tiled formats`; by default it is detected.",
    ),
    click.Option(
        ["--dataset", "-d"], type=VALUE, help="Number or name of the array, if a file has several."
    ),
    click.Option(["--nav-shape"], type=SCAN, help="Shape of the scan, such as 64,64, or auto."),
    click.Option(
        ["--sig-shape"], type=SIZES, help="Shape of a frame, for formats that do not store it."
    ),
    click.Option(["--dtype"], metavar="TYPE", help="Type of the pixels, such as >u2 or float32."),
    click.Option(
        ["--sync-offset"],
        type=int,
        default=0,
        help="Number of frames to skip; if negative, of missing frames to insert.",
    ),
    click.Option(
        ["--roi"],
        type=PATH,
        metavar="FILE.npy",
        help="Frames to read: a mask of the scan, or frame numbers.",
    ),
    click.Option(
        ["--corrections"],
        type=click.Choice(["dataset"]),
        help="Apply the corrections stored with the files.",
    ),
    click.Option(
        ["--fill-value"],
        type=VALUE,
        show_default="0, or the one of an export",
        help="Value of the pixels of missing frames.",
    ),
    click.Option(
        ["--missing"],
        type=click.Choice(["fill", "raise"]),
        help="Whether frames may be missing; by default they may, with a warning.",
    ),
    click.Option(
        ["--axis", "axes"],
        type=PAIR,
        multiple=True,
        metavar="NAME=QUANTITY",
        help='Calibration of an axis, such as scan_x="0.5 nm" or y="0.02 1/nm from -0.64 1/nm".',
    ),
    click.Option(
        ["--outside-folder"],
        is_flag=True,
        help="Allow files outside of the folder that the file names or links to.",
    ),
    click.Option(
        ["--strict", "doubts"],
        flag_value="raise",
        default="warn",
        help="Exit with status 3 if the file leaves a choice open, or lacks frames.",
    ),
    click.Option(["--follow"], is_flag=True, help="The files are still being written."),
    click.Option(
        ["--tiling"],
        type=TILING,
        multiple=True,
        help="Preferred unit of work: tile, frame, chunk or pixel[,depth=N][,nbytes=N].",
    ),
    click.Option(["--chunks"], type=CHUNKS, help="dask chunks, such as 64MiB or 16,16,-1,-1."),
    click.Option(
        ["--io"],
        type=click.Choice(["auto", "mmap", "buffered", "direct"]),
        default="auto",
        help="How bytes are fetched.",
    ),
    click.Option(
        ["--storage", "storage_options"],
        type=PAIR,
        multiple=True,
        help="An option for the store of a URL, such as region=eu-west-1.",
    ),
    click.Option(
        ["--option", "-O", "format_options"],
        type=PAIR,
        multiple=True,
        help="An option of the format; see `dask-tiled formats NAME`.",
    ),
)


CALIBRATING = (
    click.Option(
        ["--disk"],
        metavar="SIZE",
        help='Radius of the bright disk, such as "20 mrad", which calibrates the detector.',
    ),
)
"""Options of commands for one array, of which some frames are read."""


class OpeningCommand(click.Command):
    """A command that opens files; its help lists its own options first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        own = [p for p in params if p not in OPENING]
        others = [p for p in params if p in OPENING]
        for title, some in (("Options", own), ("Options for opening", others)):
            records = [p.get_help_record(ctx) for p in some]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])


def with_options(options: Sequence[click.Option]) -> Callable[[Function], Function]:
    """Return a decorator that adds options before those of the decorators above."""

    def add(function: Function) -> Function:
        known = getattr(function, "__click_params__", [])
        function.__click_params__ = [*known, *reversed(options)]  # type: ignore[attr-defined]
        return function

    return add


files = click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")


def opened(paths: Sequence[str], options: dict[str, Any]) -> TiledArray:
    """Open files with the options of a command."""
    import dask_tiled

    disk = options.get("disk")
    path, given = arguments(paths, {k: v for k, v in options.items() if k != "disk"})
    arr: Any = dask_tiled.open_dataset(path, **given)
    return arr if disk is None else arr.calibrate(disk=disk)


def opened_all(paths: Sequence[str], options: dict[str, Any]) -> Datasets:
    """Open all datasets of files with the options of a command."""
    from dask_tiled.opening.datasets import Datasets

    return Datasets(listed(paths, options))


def listed(paths: Sequence[str], options: dict[str, Any]) -> Contents:
    """List the datasets of files with the options of a command, without importing arrays."""
    from dask_tiled.opening.listing import list_contents

    path, given = arguments(paths, options)
    return list_contents(path, given.pop("format", None), given)


def described(paths: Sequence[str], options: dict[str, Any]) -> tuple[Description, TilingScheme]:
    """Describe files with the options of a command; choose chunks without importing arrays."""
    from dask_tiled.opening.describing import describe, scheme_for, warn_of

    path, given = arguments(paths, options)
    cut = {name: given.pop(name) for name in ("tiling", "chunks", "io") if name in given}
    desc = describe(path, **given)
    warn_of(desc, opened=path, **given)
    return desc, scheme_for(desc, **cut)


def arguments(paths: Sequence[str], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Convert the options of a command to arguments of ``open_dataset``."""
    options = {name: value for name, value in options.items() if value not in (None, ())}
    named = dict(options.pop("format_options", ()))
    if "dataset" in options:
        named["dataset"] = options.pop("dataset")
    for name in ("axes", "storage_options"):
        if name in options:
            options[name] = dict(options[name])
    if "roi" in options:
        options["roi"] = _array(options["roi"])
    path = paths[0] if len(paths) == 1 else list(paths)
    return path, {**named, **options}


def _array(path: str) -> Any:
    import numpy as np

    from dask_tiled.errors import DatasetError

    try:
        return np.load(path, allow_pickle=False)
    except ValueError as error:
        raise DatasetError("not a NumPy array", path=path, found=str(error)) from error
