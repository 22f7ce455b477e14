"""``dask-tiled info``: description of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dask_tiled.command_line.failures import check_complete
from dask_tiled.command_line.opening import (
    OPENING,
    OpeningCommand,
    described,
    files,
    listed,
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
@with_options(OPENING)
def info(files: tuple[str, ...], *, whole: bool, as_json: bool, **options: Any) -> None:
    """Show what a file contains, how it is read, and its metadata.

    Only headers are read.
    """
    desc, scheme = described(files, options)
    quiet = {**options, "doubts": "ignore"}  # the description has told of them
    contents = None if options["dataset"] is not None else listed(files, quiet)
    if as_json:
        show_json(_values(desc, scheme) | {"datasets": [*contents.keys] if contents else None})
    else:
        _show(desc, scheme, contents, whole=whole)
    check_complete(files[0], desc, options["doubts"])


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
