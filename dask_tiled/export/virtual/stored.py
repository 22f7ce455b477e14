"""Find the chunks of an opened array that are byte ranges, and their zarr codecs."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import Any, Literal

from dask_tiled.codecs.array_codecs import ARRAY_CODECS
from dask_tiled.codecs.byte_codecs import DEFLATE, as_numcodecs
from dask_tiled.codecs.image_codecs import IMAGE_CODECS, PREDICTORS, ROWS
from dask_tiled.codecs.pipeline import BYTES
from dask_tiled.export.decoders import PIPELINE
from dask_tiled.export.virtual.byte_ranges import ByteRanges, refused
from dask_tiled.export.virtual.stored_blocks import stored_blocks
from dask_tiled.export.virtual.stored_frames import stored_frames
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import ceil_div

CORE = {"blosc", "crc32c", "gzip", "zstd"}
"""Codecs that many readers support on their own in format 2, and combined in format 3."""
OURS = {ROWS, DEFLATE, *IMAGE_CODECS, *PREDICTORS}
"""Codecs without an equivalent in zarr: our codec decodes the whole pipeline."""


def stored(
    desc: Description, zarr_format: Literal[2, 3] | None
) -> tuple[ByteRanges, dict[str, Any]]:
    """Return the chunks of an array, and options of :func:`zarr.create_array` for their codecs.

    ``zarr_format=None`` chooses the format that more readers support.

    Raise a DatasetError if the chunks are not byte ranges, or the format has no such codecs.
    """
    if not desc.conversion.nothing:
        raise refused(desc, "are corrected, scaled or converted when they are read")
    if desc.layout.overlapping or desc.layout.partial:
        raise refused(desc, "lie in pieces that overlap, or that do not cover the array")
    ranges = stored_blocks(desc) or stored_frames(desc)
    full = len(ranges.chunks) == math.prod(map(ceil_div, desc.shape, ranges.shape))
    usual = None
    if full and zarr_format != 3:
        usual = _in_format_2(ranges, ours=zarr_format == 2)
    if zarr_format == 2 and usual is None:
        lacking = "codecs" if full else "a fill value for missing chunks"
        raise refused(desc, f"need {lacking} that only zarr format 3 has")
    return ranges, usual or _in_format_3(ranges)


def _in_format_3(ranges: ByteRanges) -> dict[str, Any]:
    from zarr.codecs import BytesCodec
    from zarr.errors import ZarrUserWarning
    from zarr.registry import get_codec_class

    from dask_tiled.export.codecs import ReadingCodec

    if any(one["name"] in OURS for one in ranges.codecs):
        chunk = {"codecs": ranges.codecs, "shape": ranges.shape, "dtype": ranges.dtype.name}
        edge = {"edge": ranges.edge} if ranges.edge else {}
        ours = ReadingCodec.from_dict({"name": PIPELINE, "configuration": chunk | edge})
        return {"serializer": BytesCodec(), "compressors": ours, "fill_value": ranges.fill}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # numcodecs is not in zarr's core
        made = [get_codec_class(one["name"]).from_dict(one) for one in ranges.codecs]
    lead = sum(one["name"] in ARRAY_CODECS for one in ranges.codecs)
    packs = {"filters": made[:lead], "compressors": made[lead + 1 :]}
    return {**packs, "serializer": made[lead], "fill_value": ranges.fill}


def _in_format_2(ranges: ByteRanges, *, ours: bool) -> dict[str, Any] | None:
    """Return options for format 2; None if its codecs do not suffice.

    With ``ours``, codecs of this package may be used: readers then need the package.
    """
    import_module("dask_tiled.export.filters")
    codecs = [one for one in ranges.codecs if one["name"] != BYTES]
    names = {one["name"] for one in codecs}
    if len(names) > 1 and names <= CORE:
        return None
    if any(name.startswith("dask_tiled.") for name in names) and not ours:
        return None
    found = [_numcodec(ranges, **one) for one in codecs]
    if None in found:
        return None
    packs = {"filters": found[:-1] or None, "compressors": found[-1] if found else None}
    return {"zarr_format": 2, "dtype": ranges.dtype, **packs}


def _numcodec(ranges: ByteRanges, name: str, configuration: dict[str, Any]) -> Any:
    """Return the equivalent numcodecs codec; None if there is none."""
    if name in PREDICTORS:
        told = {"shape": ranges.shape, "dtype": ranges.dtype.str}
        return as_numcodecs(name, configuration | told)
    if name == ROWS or name in ARRAY_CODECS or ranges.edge:
        return None
    # White of bilevel images may be stored as 0 or 1, and JPEG headers may state another colour
    # space.
    colours = ranges.dtype.kind == "b" or "colorspace_jpeg" in configuration
    return None if name in IMAGE_CODECS and colours else as_numcodecs(name, configuration)
