"""Write MetaMorph stacks by the published layout: one page, whose planes follow without gaps."""

import struct

from tiff_writer import directory, head


def write_stk(
    path,
    planes,
    *,
    order="<",
    rows=None,
    distances=None,
    times=None,
    wavelengths=None,
    pixel=None,
    unit="um",
):
    """Write planes of (plane, y, x).

    ``distances`` are pairs of integers, ``times`` pairs of a day and milliseconds, ``wavelengths``
    integers in nm, ``pixel`` two pairs of integers.
    """
    count, height, width = planes.shape
    rows = rows or height
    content = bytearray(8)

    def put(form, *numbers):
        place = len(content)
        content.extend(struct.pack(order + form, *numbers))
        content.extend(bytes(len(content) % 2))
        return place

    pixels = planes.astype(planes.dtype.newbyteorder(order)).tobytes()
    start = put(f"{len(pixels)}s", pixels)
    heights = [min(rows, height - k) for k in range(0, height, rows)]
    sizes = [one * width * planes.itemsize for one in heights]
    offsets = [start + sum(sizes[:k]) for k in range(len(sizes))]
    entries = {
        256: (4, width),
        257: (4, height),
        258: (3, 8 * planes.itemsize),
        259: (3, 1),
        262: (3, 1),
        273: (4, *offsets),
        277: (3, 1),
        278: (4, rows),
        279: (4, *sizes),
    }
    facts = {}
    if pixel is not None:
        facts = {3: 1, 4: put("2I", *pixel[0]), 5: put("2I", *pixel[1])}
        facts[6] = put(f"I{len(unit) + 1}s", len(unit) + 1, unit.encode() + b"\0")
    facts[1] = 0  # MinScale, a number and no offset
    pairs = [number for pair in sorted(facts.items()) for number in pair]
    places = {33628: (4, {len(facts): put(f"{len(pairs)}I", *pairs)})}
    if distances is not None or times is not None:
        table = []
        for k in range(count):
            day, now = times[k] if times else (2_460_000, 0)
            table += [*(distances[k] if distances else (0, 1)), day, now, day, now]
        places[33629] = 5, {count: put(f"{6 * count}I", *table)}
    if wavelengths is not None:
        table = [number for wave in wavelengths for number in (wave, 1)]
        places[33630] = 5, {count: put(f"{2 * count}I", *table)}
    places[33631] = 4, {count: put("H", 0)}
    content[:8] = head(len(content), order)
    path.write_bytes(content + directory(entries | places, len(content), order=order))
    return path
