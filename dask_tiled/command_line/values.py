"""Types of option values: parsers of text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click


class Typed(click.ParamType):  # type: ignore[type-arg]
    """An option type with a parser, which raises ValueError for invalid text."""

    def __init__(self, name: str, read: Callable[[str], Any], example: str) -> None:
        self.name = name
        self.read = read
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; defaults are parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError:
            self.fail(f"expected something like {self.example}, found {value!r}", param, ctx)


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse ``64,64`` or ``64x64``."""
    return tuple(map(int, re.split("[,x]", text)))


def read_scan(text: str) -> tuple[int, ...] | str:
    """Parse the sizes of a scan, or ``auto``."""
    return text if text == "auto" else read_sizes(text)


def read_value(text: str) -> Any:
    """Parse JSON or comma-separated numbers; any other text is returned unchanged."""
    with suppress(ValueError):
        return json.loads(text)
    with suppress(ValueError):
        return read_sizes(text)
    return {"True": True, "False": False, "None": None, "none": None, "nan": float("nan")}.get(
        text, text
    )


def read_pair(text: str) -> tuple[str, Any]:
    """Parse ``key=value``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(text)
    return key, read_value(value)


def read_chunks(text: str) -> Any:
    """Parse chunks: ``64MiB``, ``auto``, ``16,16,auto,-1`` or ``scan_y=16,scan_x=16``."""
    parts = [part.strip() for part in text.split(",")]
    if "=" in text:
        return dict(map(read_pair, parts))
    sizes = tuple(part if part == "auto" else read_value(part) for part in parts)
    if len(sizes) == 1:
        return sizes[0]
    if not all(size == "auto" or isinstance(size, int) for size in sizes):
        raise ValueError(text)
    return sizes


def read_disk(text: str) -> tuple[float | str, ...]:
    """Parse ``128,128,20`` or ``0 mrad,0 mrad,20 mrad``: positions and a radius."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(parts):
        raise ValueError(text)
    told = zip(map(read_value, parts), parts, strict=True)
    return tuple(x if isinstance(x, int | float) else text for x, text in told)


def read_tiling(text: str) -> Any:
    """Parse a tiling request: ``frame``, or ``tile,depth=16,nbytes=1048576``."""
    from dask_tiled.tiling.negotiation import TilingRequest

    by, *others = text.split(",")
    wishes = dict(map(read_pair, others))
    if wishes.keys() - {"depth", "nbytes"}:
        raise ValueError(text)
    return TilingRequest(by, **wishes)  # type: ignore[arg-type]


def read_compressor(text: str) -> Any:
    """Parse ``auto``, ``none``, a codec as ``zstd`` or ``zstd:5``, or as in ``zarr.json``."""
    if text in {"auto", "none"}:
        return {"auto": "auto", "none": None}[text]
    if text.startswith(("{", "[")):
        return json.loads(text)
    name, colon, level = text.partition(":")
    return {"name": name, "configuration": {"level": int(level)} if colon else {}}


def read_levels(text: str) -> bool | int:
    """Parse the number of levels of a pyramid: ``auto``, or a number."""
    return True if text == "auto" else int(text)


def read_duration(text: str) -> float:
    """Parse a duration in seconds: ``3h55m``, ``90s`` or ``1.5h``."""
    parts = re.fullmatch(
        r"(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s?)?", text.replace(" ", "")
    )
    if parts is None or not any(parts.groups()):
        raise ValueError(text)
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return 3600 * hours + 60 * minutes + seconds


def read_stall(text: str) -> float | str:
    """Parse a duration, or ``auto``."""
    return text if text == "auto" else read_duration(text)


def read_bytes(text: str) -> int:
    """Parse a number of bytes: ``100GiB``."""
    from dask.utils import parse_bytes

    return int(parse_bytes(text))


def read_part(text: str) -> tuple[int, int]:
    """Parse a part of several: ``3/16``."""
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError(text)
    return int(number), int(count)


def read_cluster(text: str) -> tuple[str, int]:
    """Parse the kind of a cluster and its number of jobs: ``slurm`` or ``slurm:8``."""
    kind, colon, count = text.partition(":")
    if not kind.isalpha() or (colon and int(count) < 1):
        raise ValueError(text)
    return kind.lower(), int(count) if colon else 1


SIZES = Typed("sizes", read_sizes, "64,64")
SCAN = Typed("sizes", read_scan, "64,64 or auto")
VALUE = Typed("value", read_value, "0")
PAIR = Typed("key=value", read_pair, "key=value")
CHUNKS = Typed("chunks", read_chunks, "64MiB, 16,16,-1,-1 or scan_y=16")
DISK = Typed("y,x,radius", read_disk, "128,128,20 or 0 mrad,0 mrad,20 mrad")
TILING = Typed("request", read_tiling, "frame, or tile,depth=16,nbytes=1048576")
COMPRESSOR = Typed("codec", read_compressor, "auto, none, zstd:5, or a codec as JSON")
LEVELS = Typed("levels", read_levels, "auto or 3")
BYTES = Typed("bytes", read_bytes, "100GiB")
DURATION = Typed("duration", read_duration, "3h55m, 90s or 1.5h")
STALL = Typed("duration", read_stall, "10m, 90s or auto")
CLUSTER = Typed("kind:count", read_cluster, "slurm:8")
PART = Typed("part", read_part, "3/16")
PATH = click.Path(readable=False)
"""A path that is not checked before it is opened: errors are those of the system."""
