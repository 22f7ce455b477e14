"""Write EER files: electron events of frames in BigTIFF."""

import struct

import numpy as np

FACTS = b"""<metadata>
<item name="commercialName">Falcon 4</item>
<item name="exposureTime" unit="s">3.5</item>
<item name="numberOfFrames">700</item>
<item name="sensorPixelSize.height" unit="m">6.25e-10</item>
<item name="sensorPixelSize.width" unit="m">6.5e-10</item>
<item name="timestamp">2022-07-18T15:40:36.141-08:00</item>
</metadata>"""
BITS = {65000: (8, 2, 2), 65001: (7, 2, 2), 65002: (5, 1, 3)}
"""Bits of the number to skip and of places in a pixel, by compression; the last ones vary."""


def coded(frame, bits):
    """Return the stream of a frame in words of 16 bits: bits of each number, the lowest first."""
    skip, *places = bits
    most, at, codes = (1 << skip) - 1, 0, []
    for pixel in [*np.flatnonzero(frame).tolist(), frame.size]:
        gap = pixel - at
        codes += [(most, skip)] * (gap // most)
        codes += [(gap % most, skip), *((pixel % (1 << n), n) for n in places)]
        at = pixel + 1
    codes = codes[: -len(places)]  # no event is behind the frame
    stream = sum(value << sum(n for _, n in codes[:k]) for k, (value, _) in enumerate(codes))
    return stream.to_bytes(-(-sum(n for _, n in codes) // 16) * 2 + 2, "little")


def write_eer(path, streams, shape, compression, bits, *, image=None, facts=FACTS, rows=None):
    """Write a BigTIFF file of streams; an image may precede them."""
    pages = [(1, 16, image.tobytes())] if image is not None else []
    pages += [(compression, 1, stream) for stream in streams]
    data = bytearray(struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16))
    for number, (coding, depth, stored) in enumerate(pages):
        at = len(data)
        entries = [(256, 4, 1, shape[1]), (257, 4, 1, shape[0]), (258, 3, 1, depth)]
        entries += [(259, 3, 1, coding), (262, 3, 1, 1), (277, 3, 1, 1)]
        entries += [(278, 4, 1, rows or shape[0])]
        if facts and not number:
            entries += [(65001, 7, len(facts), None)]
        if coding == 65002:
            entries += [(65007 + k, 3, 1, n) for k, n in enumerate(bits)]
        end = at + 8 + 20 * (len(entries) + 2) + 8
        twice = 1 + (1 << 32) if rows else 1  # two strips of one place
        entries += [
            (tag, 4, 1 + bool(rows), n * twice) for tag, n in ((273, end), (279, len(stored)))
        ]
        after = end + len(stored)
        data += struct.pack("<Q", len(entries))
        for tag, kind, count, value in sorted(entries):
            data += struct.pack("<HHQQ", tag, kind, count, after if value is None else value)
        told = facts if facts and not number else b""
        following = after + len(told) if number + 1 < len(pages) else 0
        data += struct.pack("<Q", following) + stored + told
    path.write_bytes(data)
    return path
