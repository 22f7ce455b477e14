"""``dask-tiled info``: description of files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dask_tiled.command_line.failures import DOUBTFUL, Failure, check_complete
from dask_tiled.command_line.opening import (
    CALIBRATING,
    OPENING,
    OpeningCommand,
    described,
    files,
    listed,
    opened,
    with_options,
)
from dask_tiled.command_line.printing import json_option, section, show, show_json, tree_rows

if TYPE_CHECKING:
    from dask_tiled.model.description import Description
    from dask_tiled.opening.listing import Contents
    from dask_tiled.tiling.scheme import TilingScheme

MOST_FACTS, MOST_LETTERS, MOST_ROWS = 40, 100, 20


@click.command(cls=OpeningCommand)
@files
@click.option("--all", "whole", is_flag=True, help="Print all metadata and datasets, untruncated.")
@json_option
@with_options((*CALIBRATING, *OPENING))
def info(files: tuple[str, ...], *, whole: bool, as_json: bool, **options: Any) -> None:
    """Show what a file contains, how it is read, and its metadata.

    Of a folder, and of several files that are not one scan, a table: a row for each picture, or
    with --json a line. Only headers are read.
    """
    from dask_tiled.errors import DatasetError, DoubtError

    if any(map(_is_folder, files)):
        _show_many(files, options, whole=whole, as_json=as_json)
        return
    try:
        desc, scheme = _described(files, options)
    except DatasetError as error:
        if len(files) == 1 or isinstance(error, DoubtError):
            raise
        click.echo(f"dask-tiled: not one scan: {' '.join(str(error).split())}", err=True)
        _show_many(files, options, whole=whole, as_json=as_json)
        return
    quiet = {**options, "doubts": "ignore", "disk": None}  # the description has told of them
    contents = None if options["dataset"] is not None else listed(files, quiet)
    if as_json:
        show_json(_values(desc, scheme) | {"datasets": [*contents.keys] if contents else None})
    else:
        _show(desc, scheme, contents, whole=whole)
    check_complete(files[0], desc, options["doubts"])


def _described(files: tuple[str, ...], options: dict[str, Any]) -> tuple[Description, TilingScheme]:
    """Describe files; only the size of a disk is measured in pixels."""
    if options["disk"] is None:
        return described(files, options)
    from dask_tiled.opening.arrays import scheme_of

    arr: Any = opened(files, options)
    return arr.description, scheme_of(arr)


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder, and not itself a dataset."""
    from dask_tiled.formats.registry import completed

    return os.path.isdir(path) and completed(path) == path


def _show_many(
    files: tuple[str, ...], options: dict[str, Any], *, whole: bool, as_json: bool
) -> None:
    """Print a table of pictures, or a line of JSON for each.

    Fail if a given file cannot be opened, or if ``--strict`` refuses some.
    """
    from dask_tiled.cataloguing.catalogue import catalogue
    from dask_tiled.command_line.catalogue import show_catalogue
    from dask_tiled.model.mark import json_value

    ctx = click.get_current_context()
    for option in (*CALIBRATING, *OPENING):
        name = str(option.name)
        if name != "doubts" and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option.opts[0]} applies to one dataset, not to many.", ctx)
    found = catalogue(list(files), thumbnails=False)
    if as_json:
        for row in found:
            value = json_value(row.as_dict() | {"files": row.files})
            click.echo(json.dumps(value, allow_nan=False))
    else:
        show_catalogue(found, whole=whole)
    given = {os.path.abspath(path) for path in files}
    problems = [row.path for row in found if row.problem] + [*found.problems]
    bad = [path for path in problems if path in given]
    doubtful = [row.path for row in found if row.problem or row.lacking or row.doubts]
    if bad:
        raise Failure(f"{bad[0]}: cannot be opened{_more(bad)}")
    if doubtful and options["doubts"] == "raise":
        raise Failure(f"{doubtful[0]}: in doubt or incomplete{_more(doubtful)}", DOUBTFUL)


def _more(paths: list[str]) -> str:
    return f", and {len(paths) - 1} more" if paths[1:] else ""


def _show(
    desc: Description, scheme: TilingScheme, contents: Contents | None, *, whole: bool
) -> None:
    """Print sections: the file, its datasets, chunks, and facts."""
    facts = list(tree_rows(desc.metadata))
    some = facts if whole else [(k, _cropped(v)) for k, v in facts[:MOST_FACTS]]
    if len(some) < len(facts):
        some.append(("...", f"{len(facts) - len(some)} more lines: pass --all or --json"))
    rows = desc.rows()
    if headers := _header_fields(desc):
        rows.append(("frame headers", ", ".join(headers)))
    shown = [section("File", rows), section("Chunks", scheme.reasons), section("Facts", some)]
    if contents is not None and len(contents.keys) > 1:
        most = len(contents.keys) if whole else MOST_ROWS
        told = ((name, ", ".join(filter(None, more))) for name, *more in contents.rows(most)[1:])
        shown.insert(1, section("Datasets", told))
    show(*shown)


def _cropped(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 4]} ..."


def _header_fields(desc: Description) -> tuple[str, ...]:
    """Return the fields of the frame headers."""
    from dask_tiled.errors import DatasetError
    from dask_tiled.opening.describing import headers_of

    try:
        return headers_of(desc).dtype.names or ()
    except DatasetError:
        return ()


def _values(desc: Description, scheme: TilingScheme) -> dict[str, Any]:
    from dask_tiled.model.doubts import as_json

    return {
        "format": desc.format,
        "files": [file.path for file in desc.files],
        "nav_shape": desc.nav_shape,
        "sig_shape": desc.sig_shape,
        "dtype": str(desc.dtype),
        "nbytes": desc.nbytes,
        "axes": [
            {**axis.as_json(), "size": n} for axis, n in zip(desc.axes, desc.shape, strict=True)
        ],
        "missing_frames": desc.layout.count_missing(),
        "complete": desc.complete,
        "doubts": as_json(desc.doubts),
        "frames_not_shown": desc.layout.selection.ignored(),
        "frame_headers": _header_fields(desc),
        "chunks": scheme.chunks,
        "tile_shape": scheme.tile_shape,
        "reasons": dict(scheme.reasons),
        "metadata": desc.metadata,
    }
