"""Write Zeiss LSM files: pages of planes in turns with thumbnails, with offsets modulo 2**32."""

import struct

import imagecodecs
import numpy as np
from tiff_writer import directory, head


def write_lsm(
    path, frames, *, order=None, lzw=False, wrap=1 << 32, gap=0, first="image", info=None
):
    """Write frames of (page, c, y, x).

    ``order`` is that of the pages' strips in the file, ``gap`` the number of bytes that are left
    out, without disk space, before each of them; ``info`` holds numbers of positions and times.
    """
    pages, channels, height, width = frames.shape
    thumb = np.arange(4 * 3, dtype="u1").reshape(4, 3)
    size = 2 + 12 * 12 + 4 + 8 * channels * 2
    facts = bytearray(struct.pack("<2I", 0x0400494C, 500).ljust(500, b"\0"))
    places, times = info or (0, 1)
    stacks = pages // times // max(1, places)
    struct.pack_into("<5i", facts, 8, width, height, stacks, channels, times)
    struct.pack_into("<3d", facts, 40, 1e-7, 2e-7, 5e-7)
    struct.pack_into("<H", facts, 88, 6)
    struct.pack_into("<d", facts, 112, 1.5)
    struct.pack_into("<2i", facts, 264, places, 0)
    ifds = [8 + size * k for k in range(2 * pages)]
    facts_at = ifds[-1] + size
    end = facts_at + len(facts)
    strips = {}
    with open(path, "wb") as file:
        for page in range(pages) if order is None else order:
            stored = [plane.astype("<u2").tobytes() for plane in frames[page]]
            stored = [imagecodecs.lzw_encode(one) for one in stored] if lzw else stored
            parts = {2 * page: stored, 2 * page + 1: [thumb.tobytes()]}
            for number in sorted(parts, reverse=first == "thumbnail"):
                strips[number] = []
                end += gap
                for part in parts[number]:
                    file.seek(end)
                    file.write(part)
                    strips[number].append(end)
                    end += len(part)
        file.seek(0)
        file.write(head(ifds[0]))
        for number, at in enumerate(ifds):
            is_thumb = number % 2
            count = 1 if is_thumb else channels
            shape = thumb.shape if is_thumb else (height, width)
            bits = 8 if is_thumb else 16
            entries = {
                254: (4, is_thumb),
                256: (4, shape[1]),
                257: (4, shape[0]),
                258: (3, *[bits] * count),
                259: (3, 5 if lzw and not is_thumb else 1),
                262: (3, 1),
                273: (4, *(place % wrap for place in strips[number])),
                277: (3, count),
                279: (4, *[shape[0] * shape[1] * bits // 8] * count),  # also if compressed
                284: (3, 2),
                **({} if is_thumb or number else {34412: (1, {len(facts): facts_at})}),
            }
            following = ifds[number + 1] if number + 1 < len(ifds) else 0
            apart = (258,) if count == 2 else ()  # as Zeiss stores two
            file.seek(at)
            file.write(directory(entries, at, following=following, apart=apart))
        file.seek(facts_at)
        file.write(facts)
    return path
