"""Write Zeiss CZI files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_TYPES = {
    ("|u1", 1): 0, ("<u2", 1): 1, ("<f4", 1): 2, ("|u1", 3): 3, ("<u2", 3): 4, ("<f4", 3): 8,
    ("|u1", 4): 9, ("<c8", 1): 10, ("<i4", 1): 12, ("<f8", 1): 13,
}  # fmt: skip


class Tile(NamedTuple):
    """A tile for :func:`write_czi`.

    Attributes
    ----------
    start : mapping
        Start along each dimension by its letter: X and Y, and others such as C, Z, T, S, M.
    pixels : array
        (y, x), or (y, x, samples) with samples blue, green, red, and optionally alpha.
    ratio : int
        Pixels of full resolution per pixel along an axis, for tiles of a pyramid.
    """

    start: Mapping[str, int]
    pixels: npt.ArrayLike
    ratio: int = 1


def write_czi(
    path: StrPath,
    tiles: Iterable[Tile],
    *,
    compression: int = 0,
    scaling: Mapping[str, float] | None = None,
    channels: Sequence[str] = (),
    colours: Sequence[str] = (),
    scenes: Mapping[int, str] | None = None,
    facts: str = "",
    times: Sequence[float] = (),
    part: int = 0,
    schema: bytes = b"DV",
) -> Path:
    """Write a CZI file of tiles.

    Parameters
    ----------
    compression
        0 for none, 1 JPEG, 2 LZW, 4 JPEG XR, 5 Zstandard, 6 Zstandard after a byte split.
    scaling
        Pixel sizes in m, by dimension.
    channels, scenes
        Names of channels, and of scenes by their numbers.
    colours
        Colours of channels in the display settings, as ``#AARRGGBB``.
    facts
        XML to insert below ``Information``.
    times
        Acquisition times of all positions along T, in seconds.
    part, schema
        Values other than 0 and ``DV`` make invalid files: one file with one kind of entry is
        written.
    """
    path, entries = Path(path), []
    encode = _ENCODERS.get(compression, _plain)
    with path.open("wb") as file:
        file.write(bytes(1024))
        for tile in tiles:
            pixels = np.asarray(tile.pixels)
            pixels = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
            entry = _entry(tile, pixels, compression, file.tell(), part, schema)
            entries.append(entry)
            data, more = encode(pixels), b"<METADATA/>"
            head = struct.pack("<iiq", len(more), 0, len(data)) + entry
            content = head.ljust(256, b"\0") + more + data
            file.write(_segment(b"ZISRAWSUBBLOCK", content))
        directory = file.tell()
        content = struct.pack("<i", len(entries)).ljust(128, b"\0") + b"".join(entries)
        file.write(_segment(b"ZISRAWDIRECTORY", content))
        metadata = file.tell()
        xml = _xml(scaling or {}, channels, colours, scenes or {}, facts).encode()
        content = struct.pack("<ii", len(xml), 0).ljust(256, b"\0") + xml
        file.write(_segment(b"ZISRAWMETADATA", content))
        attachments = 0
        if times:
            attached = file.tell()
            content = struct.pack("<ii", 8 + 8 * len(times), len(times))
            content += np.array(times, "<f8").tobytes()
            entry = struct.pack(
                "<2s10xqi16s8s80s", b"A1", attached, 0, b"", b"CZTIMS", b"TimeStamps"
            )
            head = struct.pack("<i12x", len(content)) + entry
            file.write(_segment(b"ZISRAWATTACH", head.ljust(256, b"\0") + content))
            attachments = file.tell()
            content = struct.pack("<i", 1).ljust(256, b"\0") + entry
            file.write(_segment(b"ZISRAWATTDIR", content))
        file.seek(0)
        head = struct.pack("<ii", 1, 0).ljust(48, b"\0")
        head += struct.pack("<iqqiq", 0, directory, metadata, 0, attachments)
        file.write(_segment(b"ZISRAWFILE", head.ljust(512, b"\0")))
    return path


def _segment(name: bytes, content: bytes) -> bytes:
    room = -(-len(content) // 32) * 32
    head = struct.pack("<16sqq", name, room, len(content))
    return head + content.ljust(room, b"\0")


def _entry(
    tile: Tile, pixels: npt.NDArray[Any], compression: int, at: int, part: int, schema: bytes
) -> bytes:
    kind = _TYPES[pixels.dtype.str, (*pixels.shape, 1)[2]]
    head = struct.pack(
        "<2siqiiB5xi", schema, kind, at, part, compression, tile.ratio > 1, len(tile.start)
    )
    inner = b""
    for letter, start in reversed([*tile.start.items()]):
        stored = {"Y": pixels.shape[0], "X": pixels.shape[1]}.get(letter, 1)
        size = stored * tile.ratio if letter in "YX" else 1
        inner += struct.pack("<4siifi", letter.encode(), start, size, 0.0, stored)
    return head + inner


def _xml(
    scaling: Mapping[str, float],
    channels: Sequence[str],
    colours: Sequence[str],
    scenes: Mapping[int, str],
    facts: str,
) -> str:
    items = "".join(
        f'<Distance Id="{axis}"><Value>{value!r}</Value></Distance>'
        for axis, value in scaling.items()
    )
    exposure = "<ExposureTime>2500000</ExposureTime>"
    named = "".join(
        f'<Channel Id="Channel:{k}" Name="{name}">{exposure}</Channel>'
        for k, name in enumerate(channels)
    )
    listed = "".join(f'<Scene Index="{k}" Name="{name}"/>' for k, name in scenes.items())
    dimensions = f"<Channels>{named}</Channels><S><Scenes>{listed}</Scenes></S>"
    image = "<AcquisitionDateAndTime>2024-05-06T07:08:09Z</AcquisitionDateAndTime>"
    image += f"<Dimensions>{dimensions}</Dimensions>"
    information = f"<Information><Image>{image}</Image>{facts}</Information>"
    scales = f"<Scaling><Items>{items}</Items></Scaling>"
    shown = "".join(f"<Channel><Color>{colour}</Color></Channel>" for colour in colours)
    display = f"<DisplaySetting><Channels>{shown}</Channels></DisplaySetting>" if colours else ""
    return f"<ImageDocument><Metadata>{information}{scales}{display}</Metadata></ImageDocument>"


def _plain(pixels: npt.NDArray[Any]) -> bytes:
    return pixels.tobytes()


def _zstd(pixels: npt.NDArray[Any]) -> bytes:
    from numcodecs import Zstd

    return bytes(Zstd().encode(np.ascontiguousarray(pixels)))


def _zstd_1(pixels: npt.NDArray[Any]) -> bytes:
    if pixels.itemsize != 2:
        return b"\x01" + _zstd(pixels)
    halves = pixels.view(np.uint8).reshape(-1, 2).T
    return b"\x03\x01\x01" + _zstd(halves)


def _by_imagecodecs(name: str, pixels: npt.NDArray[Any], **options: Any) -> bytes:
    import imagecodecs

    colours = pixels.ndim == 3 and name != "lzw"
    order = [2, 1, 0, 3][: pixels.shape[-1]]
    pixels = np.ascontiguousarray(pixels[..., order]) if colours else pixels
    data = pixels.tobytes() if name == "lzw" else pixels
    return bytes(getattr(imagecodecs, f"{name}_encode")(data, **options))


_ENCODERS: Mapping[int, Callable[[npt.NDArray[Any]], bytes]] = {
    1: lambda pixels: _by_imagecodecs("jpeg", pixels, level=95),
    2: lambda pixels: _by_imagecodecs("lzw", pixels),
    4: lambda pixels: _by_imagecodecs("jpegxr", pixels, level=1.0),
    5: _zstd,
    6: _zstd_1,
}
