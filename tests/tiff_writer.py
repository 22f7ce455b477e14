"""Pack directories of TIFF files by hand, for files that no library writes."""

import struct

FORMS = {1: "B", 2: "B", 3: "H", 4: "I", 5: "2I"}


def directory(entries, at, *, order="<", following=0, apart=()):
    """Return the directory (IFD) at a place of a file, with the values behind it.

    An entry is (type, value, ...) by its tag, or (type, {count: place}) for values elsewhere.
    Values of the tags ``apart`` are behind the directory though they would fit into it.
    """
    behind = at + 2 + 12 * len(entries) + 4
    fields, values = struct.pack(f"{order}H", len(entries)), b""
    for tag, (kind, *numbers) in sorted(entries.items()):
        if isinstance(numbers[0], dict):
            ((count, place),) = numbers[0].items()
            content = struct.pack(f"{order}I", place)
        else:
            count = len(numbers)
            content = struct.pack(f"{order}{count}{FORMS[kind]}", *numbers)
        if len(content) > 4 or tag in apart:
            place, values = behind + len(values), values + content
            content = struct.pack(f"{order}I", place)
        fields += struct.pack(f"{order}HHI4s", tag, kind, count, content)
    return fields + struct.pack(f"{order}I", following) + values


def head(first, order="<"):
    """Return the header of a file whose first directory is at a place."""
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", first)
