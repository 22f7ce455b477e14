"""Options of conversions."""

from __future__ import annotations

import click

from dask_tiled.command_line.values import (
    CHUNKS,
    CLUSTER,
    COMPRESSOR,
    DISK,
    DURATION,
    LEVELS,
    PAIR,
    PART,
    PATH,
    STALL,
)

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
        help="Results to store, for zarr in the same pass: bf, abf, adf, haadf, sum, com, mean,"
        " max.",
    ),
    click.Option(
        ["--maps-disk"],
        type=DISK,
        help="For detectors: centre (y, x) and radius of the bright disk; found by default.",
    ),
)

# Options have the names of the parameters of convert_all.
BATCH = (
    click.Option(
        ["--to", "suffix"],
        default=".zarr",
        metavar="SUFFIX",
        show_default=True,
        help="Format of the results.",
    ),
    click.Option(
        ["--name"],
        default="{stem}",
        show_default=True,
        help="Path of results in OUT/; fields: {stem}, {suffix}, {folder}, {picture}, {number}.",
    ),
    click.Option(
        ["--pattern"], multiple=True, help="Names of files in folders, such as '*_master.h5'."
    ),
    click.Option(
        ["--recursive/--no-recursive"], default=True, help="Search folders in folders (default)."
    ),
    click.Option(
        ["--jobs", "-j"],
        type=click.IntRange(1),
        show_default="processors",
        help="Files at a time, which share the processors; on a cluster by its threads.",
    ),
    click.Option(
        ["--part"],
        type=PART,
        metavar="N/COUNT",
        help="A part of the files, such as 3/16: for an array of batch jobs.",
    ),
    click.Option(
        ["--scheduler"],
        metavar="ADDRESS",
        help="Use the workers of a dask cluster, such as tcp://host:8786.",
    ),
    click.Option(
        ["--cluster"],
        type=CLUSTER,
        metavar="KIND[:COUNT]",
        help="Use jobs of a batch system, such as slurm:8, by dask-jobqueue.",
    ),
    click.Option(
        ["--watch"], is_flag=True, help="Go on, and convert new datasets when they are complete."
    ),
    click.Option(
        ["--quiet"],
        type=DURATION,
        default=10.0,
        show_default="10s",
        help="With --watch: time without changes before a dataset is converted.",
    ),
    click.Option(
        ["--deadline"], type=DURATION, help="Stop after a time such as 3h55m, to be resumed."
    ),
    click.Option(
        ["--stall"],
        type=STALL,
        default="auto",
        show_default="1h; 100s for headers",
        help="Time after which a file that does not advance has failed.",
    ),
    click.Option(["--update"], is_flag=True, help="Convert changed sources again."),
    click.Option(
        ["--report"],
        type=PATH,
        metavar="FILE",
        help="Table of outcomes, .csv or .json; of a part, its name has the part.",
    ),
)

COMPARING = tuple(one for one in BATCH if one.name not in {"update", "watch", "quiet"})
"""Options of batches that only compare results with their sources."""
