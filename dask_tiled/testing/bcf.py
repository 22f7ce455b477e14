"""Write Bruker's maps of X-ray spectra."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_XML = """<?xml version="1.0" encoding="WINDOWS-1252" standalone="yes"?>
<TRTSpectrumDatabase><ClassInstance Type="TRTSpectrumDatabase">
<ClassInstance Type="TRTSEMData"><HV>20</HV><Mag>1000</Mag><DX>0,5</DX><DY>0.25</DY></ClassInstance>
<SpectrumData0><ClassInstance Type="TRTSpectrum"><ClassInstance Type="TRTSpectrumHeader">
<ChannelCount>{channels}</ChannelCount><CalibAbs>-4.5E-1</CalibAbs><CalibLin>1E-2</CalibLin>
</ClassInstance></ClassInstance></SpectrumData0></ClassInstance></TRTSpectrumDatabase>
"""


def write_bcf(
    path: StrPath,
    counts: npt.ArrayLike,
    *,
    packing: int = 1,
    packed: bool = False,
    chunk: int = 4096,
    block: int = 1 << 19,
) -> Path:
    """Write a map of X-ray spectra; pixels without counts are left out.

    Parameters
    ----------
    counts
        Numbers of pulses, (y, x, channel).
    packing
        0 or 1 for pulses of 16 or 12 bits, 2 for runs of counts, 3 for runs of counts and a pulse.
    packed
        Pack the map and the XML by zlib.
    chunk, block
        Bytes of a chunk of the container, and of a block before it is packed.
    """
    path, every = Path(path), np.asarray(counts).astype(np.int64)
    height, width, channels = every.shape
    spectra = struct.pack("<iiII", height, width, 4096, 1).ljust(0x1A0, b"\0")
    for line in every:
        pixels = [_pixel(x, one, packing) for x, one in enumerate(line) if one.any()]
        spectra += len(pixels).to_bytes(4, "little") + b"".join(pixels)
    contents = {"HeaderData": _XML.format(channels=channels).encode(), "SpectrumData0": spectra}
    room, entries = chunk - 32, b""
    tree = -(-512 * len(contents) // room)
    chunks = [b""] * tree
    for name, content in contents.items():
        stored = _packed(content, block) if packed else content
        count, first = -(-len(stored) // room), len(chunks) + 1
        tables = -(-4 * count // room)
        numbers = np.arange(first + tables, first + tables + count, dtype="<u4").tobytes()
        for whole in (numbers, stored):
            chunks += [whole[at : at + room] for at in range(0, len(whole), room)]
        entry = struct.pack("<iQ", first, len(stored)).ljust(0xE0, b"\0") + name.encode()
        entries += entry.ljust(512, b"\0")
    chunks[:tree] = [entries[at : at + room] for at in range(0, len(entries), room)]
    header = b"AAMVHFSS".ljust(0x124, b"\0") + struct.pack("<fI", 2.6, chunk)
    header = header.ljust(0x140, b"\0") + struct.pack("<III", 1, len(contents), len(chunks) + 1)
    with path.open("wb") as file:
        file.write(header.ljust(0x118 + chunk, b"\0"))  # the first chunk is part of the header
        for number, content in enumerate(chunks, 1):
            file.write(struct.pack("<i", number + 1).ljust(32, b"\0") + content.ljust(room, b"\0"))
    return path


def _packed(content: bytes, block: int) -> bytes:
    """Pack blocks by zlib, each after its length."""
    parts = [zlib.compress(content[at : at + block]) for at in range(0, len(content), block)]
    header = b"AACS" + struct.pack("<III", block, 0, len(parts))
    told = [struct.pack("<I", len(part)).ljust(16, b"\0") + part for part in parts]
    return header.ljust(0x80, b"\0") + b"".join(told)


def _pixel(column: int, counts: npt.NDArray[np.int64], packing: int) -> bytes:
    """Write a pixel: its header, and pulses or runs of counts."""
    further, data = b"", b""
    if packing < 2:
        pulses = np.repeat(np.arange(len(counts)), counts)
        number = len(pulses)
        data = pulses.astype("<u2").tobytes() if packing == 0 else _twelve_bits(pulses)
    else:
        number = int(packing == 3)
        if number:
            last = int(np.flatnonzero(counts)[-1])
            further, counts = struct.pack("<H", last), counts.copy()
            counts[last] -= 1
        runs = [_run(counts[at : at + 200]) for at in range(0, len(counts), 200)]
        data = b"".join(runs) + bytes(4)
    header = struct.pack("<IHHIHHHI", column, 0, 0, 0, packing, 0, number, len(data))
    return header + data + further


def _twelve_bits(pulses: npt.NDArray[np.int64]) -> bytes:
    """Write half bytes, the highest first, in words whose bytes are swapped."""
    halves = (pulses[:, None] >> np.array([8, 4, 0]) & 15).reshape(-1)
    halves = np.pad(halves, (0, -len(halves) % 4))
    return (halves[::2] << 4 | halves[1::2]).astype("u1").view(">u2").astype("<u2").tobytes()


def _run(counts: npt.NDArray[np.int64]) -> bytes:
    """Write a run of counts in as few bytes as hold them, relative to the smallest."""
    least = int(counts.min())
    if not counts.any():
        return bytes([0, len(counts)])
    rest = counts - least
    bits = max(int(rest.max()).bit_length(), (least.bit_length() + 1) // 2, 1)
    size = next(n for n in (1, 2, 4, 8) if bits <= 4 * n)
    values = rest.astype(f"<u{size // 2 or 1}")
    if size == 1:
        pairs = np.pad(values, (0, len(values) % 2)).reshape(-1, 2)
        values = (pairs[:, 0] | pairs[:, 1] << 4).astype("u1")
    return bytes([size, len(counts)]) + least.to_bytes(size, "little") + values.tobytes()
