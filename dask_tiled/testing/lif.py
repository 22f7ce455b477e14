"""Write Leica LIF and LOF files."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_NUMBERS = {"x": 1, "y": 2, "z": 3, "t": 4, "e": 5, "m": 10}
"""Numbers of dimensions; e is the emission wavelength."""


def write_lif(
    path: StrPath,
    images: Mapping[str, npt.ArrayLike],
    axes: str,
    *,
    version: int = 2,
    lengths: Mapping[str, float] | None = None,
    channels: Sequence[str] = (),
    tags: Sequence[int] = (),
    positions: Sequence[tuple[float, float]] = (),
    flipped: bool = False,
    stamps: Sequence[int] = (),
    old_stamps: bool = False,
    hardware: Mapping[str, str] | None = None,
) -> Path:
    """Write images by name; a path with suffix ``.lof`` takes one image.

    Parameters
    ----------
    axes
        A letter for each axis of all images, slow ones first: x, y, z, t, e, m, c or s; the
        samples, s, are last.
    version
        Version of a LIF file, 1 or 2.
    lengths
        Distance from the first position to the last, by axis, in m or s; by default 1.
    channels, tags
        Names and colour tags of channels or samples.
    positions
        Positions of tiles, y and x in m.
    flipped
        Mark the tiles as flipped.
    stamps, old_stamps
        Time stamps in ticks, and whether each is an element of its own, as in older files.
    hardware
        Hardware settings of the microscope.
    """
    path, blocks, elements = Path(path), [], []
    for number, (name, image) in enumerate(images.items()):
        array = np.asarray(image)
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        more = _channels(stored, axes, channels, tags) + _dimensions(stored, axes, lengths or {})
        inner = f"<ImageDescription>{more}</ImageDescription>"
        inner = _attachments(hardware or {}, positions, flipped=flipped) + inner
        inner += _stamps(stamps, old=old_stamps)
        block = f"MemBlock_{number}"
        elements.append(
            f"<Element Name={quoteattr(name)}><Data><Image>{inner}</Image></Data>"
            f'<Memory Size="{stored.nbytes}" MemoryBlockID="{block}"/><Children/></Element>'
        )
        blocks.append((block, stored.tobytes()))
    if path.suffix == ".lof":
        head = f'<LMSDataContainerHeader Version="2">{elements[0]}</LMSDataContainerHeader>'
        middle = struct.pack("<BIBIBQ", 0x2A, 2, 0x2A, 0, 0x2A, len(blocks[0][1]))
        path.write_bytes(_text("LMS_Object_File") + middle + blocks[0][1] + _text(head))
        return path
    xml = f'<LMSDataContainerHeader Version="{version}"><Element Name="project"><Data/>'
    xml += '<Memory Size="0" MemoryBlockID="MemBlock_none"/>'
    xml += f"<Children>{''.join(elements)}</Children></Element></LMSDataContainerHeader>"
    parts = [_text(xml)]
    for block, content in [("MemBlock_none", b""), *reversed(blocks)]:
        label = block.encode("utf-16-le")
        size = struct.pack("<I" if version == 1 else "<Q", len(content))
        before = b"\x2a" + size + b"\x2a" + struct.pack("<I", len(block)) + label
        parts.append(struct.pack("<II", 0x70, len(before)) + before + content)
    path.write_bytes(b"".join(parts))
    return path


def _text(text: str) -> bytes:
    data = text.encode("utf-16-le")
    return struct.pack("<IIBI", 0x70, len(data) + 5, 0x2A, len(data) // 2) + data


def _channels(
    stored: npt.NDArray[np.generic], axes: str, names: Sequence[str], tags: Sequence[int]
) -> str:
    axis = next((axes.index(letter) for letter in "cs" if letter in axes), None)
    count, step = (1, 0) if axis is None else (stored.shape[axis], stored.strides[axis])
    kind, bits = int(stored.dtype.kind == "f"), 8 * stored.dtype.itemsize
    found = ""
    for k in range(count):
        name, tag = names[k] if names else "Gray", tags[k] if tags else 0
        found += f'<ChannelDescription DataType="{kind}" ChannelTag="{tag}" Resolution="{bits}"'
        found += ' NameOfMeasuredQuantity="" Min="0" Max="1" Unit="" IsLUTInverted="0"'
        found += f' LUTName={quoteattr(name)} BytesInc="{k * step}" BitInc="0"/>'
    return f"<Channels>{found}</Channels>"


def _dimensions(stored: npt.NDArray[np.generic], axes: str, lengths: Mapping[str, float]) -> str:
    found = ""
    for letter, count, step in reversed([*zip(axes, stored.shape, stored.strides, strict=True)]):
        if letter in _NUMBERS:
            unit = "s" if letter == "t" else "m"
            found += f'<DimensionDescription DimID="{_NUMBERS[letter]}" NumberOfElements="{count}"'
            found += f' Origin="0" Length="{lengths.get(letter, 1.0)!r}" Unit="{unit}"'
            found += f' BitInc="0" BytesInc="{step}"/>'
    return f"<Dimensions>{found}</Dimensions>"


def _attachments(
    hardware: Mapping[str, str], positions: Sequence[tuple[float, float]], *, flipped: bool
) -> str:
    facts = " ".join(f"{name}={quoteattr(value)}" for name, value in hardware.items())
    found = '<Attachment Name="Other"><A/></Attachment>'
    found += f'<Attachment Name="HardwareSetting"><Settings {facts}/></Attachment>'
    if positions:
        tiles = "".join(f'<Tile PosX="{x!r}" PosY="{y!r}"/>' for y, x in positions)
        found += f'<Attachment Name="TileScanInfo" FlipX="{int(flipped)}">{tiles}</Attachment>'
    return found


def _stamps(stamps: Sequence[int], *, old: bool) -> str:
    halves = ((stamp >> 32, stamp & 0xFFFFFFFF) for stamp in stamps)
    told = "".join(f'<TimeStamp HighInteger="{a}" LowInteger="{b}"/>' for a, b in halves)
    told = told if old else " ".join(f"{stamp:x}" for stamp in stamps)
    return f"<TimeStampList>{told}</TimeStampList>" if stamps else ""
