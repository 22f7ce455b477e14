"""Mutations: damage to bits, fields, numbers in texts, blocks, and whole files."""

import gzip
import json
import random
import re
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

from fuzzing.packings import unpacked

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
TEXT_BYTES = 1 << 16
"""Bytes of a file in which numbers are searched."""
NUMBERS = [
    *(
        b"0",
        b"-1",
        b"1",
        b"2",
        b"-0",
        b"3.7",
        b"1e9",
        b"1e400",
        b"-1e-400",
        b"nan",
        b"inf",
        b"-inf",
    ),
    *(b"65535", b"65536", b"2147483647", b"2147483648", b"4294967295", b"4294967296"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1" + b"0" * 18),
    *(
        b"9" * 20,
        b"9" * 400,
        b"9" * 5000,
        b"0x10",
        b"1_0",
        b"",
        b" ",
        b"1 2",
        b"1,5",
        b"+7",
        b"00012",
    ),
    *("\u0663".encode(), "\u00b2".encode(), b"\xff", b"true", b"null", b"None", b"'", b'"', b"%s"),
]
POWERS = sorted({
    *(sign * (1 << bit) + delta for bit in range(64) for sign in (1, -1) for delta in (-1, 0, 1)),
    *(0, 3, 5, 7, 10, 100, 1000, 10**6, 10**9, 10**18),
})  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e30, 1e300, 1e38, float("nan"), float("inf"), -1e18]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**18,
    10**400,
    1e308,
    "",
    "x",
    [],
    {},
    [[[]]],
    "9" * 5000,
]
"""Replacements for values of JSON."""


@dataclass
class Mutation:
    """Damaged files, notes on the damage, and the pixels that they must hold, if known."""

    files: dict[str, bytes]
    notes: list[str] = field(default_factory=list)
    pixels: np.ndarray | None = None


def mutate(rng: random.Random, seed, seeds, others) -> Mutation:
    """Damage a seed, perhaps with parts of other seeds or of ``others``, files of other formats."""
    mutation = Mutation(dict(seed.files))
    if rng.random() < seed.pixel_share and seed.places:
        change_pixel(rng, seed, mutation)
    elif rng.random() < 0.1:
        damage_files(rng, seed, mutation, others)
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            name = target(rng, seed, mutation.files)
            content = mutation.files.get(name)
            if content is not None:
                content, note = damaged(rng, content, seed, name, seeds)
                mutation.files[name] = content
                mutation.notes.append(f"{name}: {note}")
    return mutation


def target(rng, seed, files):
    """Choose a file, mostly the one that is opened."""
    path = seed.options["path"]
    first = path[0] if isinstance(path, list) else path
    return first if rng.random() < 0.6 else rng.choice(list(files))


# Whole files


def change_pixel(rng, seed, mutation):
    """Change a bit of a pixel; the resulting pixels are known."""
    place = rng.choice(seed.places)
    frames = seed.expected.reshape(-1, *seed.expected.shape[seed.expected.ndim - seed.sig_dims :])
    at, bit = rng.randrange(place.nbytes), 1 << rng.randrange(8)
    content, raw = place.changed(mutation.files[place.name], at, bit)
    mutation.files[place.name] = content
    changed = frames.copy()
    changed[place.number] = unpacked(place.packing, raw, place.dtype, frames[0].shape)
    mutation.pixels = changed.reshape(seed.expected.shape)
    where = (
        f"{place.packing}, in the stream at byte {place.stream}" if place.stream else place.packing
    )
    mutation.notes.append(f"{place.name}: a bit of a pixel, at byte {place.at + at}, {where}")


def damage_files(rng, seed, mutation, others):
    """Remove, empty, swap, replace or truncate a whole file."""
    files, names = mutation.files, list(mutation.files)
    name = rng.choice(names)
    how = rng.choice(("lost", "empty", "swapped", "of another format", "cut"))
    if how == "lost" and len(names) > 1:
        del files[name]
    elif how == "swapped" and len(names) > 1:
        other = rng.choice(names)
        files[name], files[other] = files[other], files[name]
    elif how == "of another format":
        files[name] = rng.choice(others)
    elif how == "empty":
        files[name] = b""
    else:
        files[name] = files[name][: rng.randrange(len(files[name]) + 1)]
    mutation.notes.append(f"{name}: {how}")


# One file


def damaged(rng, content, seed, name, seeds):
    """Damage the bytes of a file; return them and a note."""
    if content[:2] == b"\x1f\x8b" and rng.random() < 0.7:
        try:
            inner = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            inner = None
        if inner is not None:
            inner, note = damaged(rng, inner, seed, name, seeds)
            return gzip.compress(inner, 1, mtime=0), f"unpacked, {note}"
    if is_text(content) and rng.random() < 0.8:
        return damaged_text(rng, content)
    how = rng.choices(KINDS, WEIGHTS)[0]
    if how is spliced:
        return spliced(rng, content, rng.choice(list(rng.choice(seeds).files.values())))
    return how(rng, content, lambda: place_in(rng, content, seed, name))


def is_text(content):
    head = content[:512]
    return bool(head) and sum(byte < 9 or 14 <= byte < 32 or byte > 126 for byte in head) < 8


def place_in(rng, content, seed, name):
    """Choose a byte, mostly one outside of the known pixels."""
    size = max(1, len(content))
    chance = rng.random()
    if chance < 0.25:
        return rng.randrange(min(size, 512))
    if chance < 0.35:
        return max(0, size - 1 - rng.randrange(min(size, 1024)))
    spans = [
        (one.at, one.at + one.nbytes)
        for one in seed.places
        if one.name == name and one.stream is None
    ]
    for _ in range(20):
        place = rng.randrange(size)
        if chance > 0.95 or not any(first <= place < stop for first, stop in spans):
            break
    return place


def flipped(rng, content, place):
    data, notes = bytearray(content), []
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = place()
        if at < len(data):
            data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)))
            notes.append(f"byte {at} is {data[at]}")
    return bytes(data), ", ".join(notes)


def numbered(rng, content, place):
    """Write a boundary value in either byte order, mostly where a field begins."""
    at, order = place(), rng.choice("<>")
    if rng.random() < 0.15:
        kind, value = rng.choice("fd"), rng.choice(FLOATS)
        value = max(min(value, 3e38), -3e38) if kind == "f" and abs(value) < float("inf") else value
        raw = struct.pack(order + kind, value)
    else:
        size, value = rng.choice((1, 2, 4, 4, 8, 8)), rng.choice(POWERS)
        raw = (value % (1 << 8 * size)).to_bytes(size, "little" if order == "<" else "big")
    at -= at % len(raw) if rng.random() < 0.7 else 0
    return content[:at] + raw + content[at + len(raw) :], f"{raw.hex()} at byte {at}"


def cut(rng, content, place):
    at = place()
    return content[:at], f"cut at byte {at}"


def inserted(rng, content, place):
    at, size = place(), rng.choice((1, 2, 4, 16, 100, 5000))
    raw = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size), content[:size]))
    return content[:at] + raw + content[at:], f"{len(raw)} bytes inserted at byte {at}"


def removed(rng, content, place):
    at, size = place(), rng.choice((1, 2, 4, 16, 100))
    return content[:at] + content[at + size :], f"{size} bytes removed at byte {at}"


def moved(rng, content, place):
    """Copy a block over another one, or insert it."""
    source, at, size = place(), place(), rng.choice((2, 4, 8, 16, 64, 512))
    block = content[source : source + size]
    skip = size if rng.random() < 0.7 else 0
    return content[:at] + block + content[at + skip :], f"{size} bytes of {source} at {at}"


def exchanged(rng, content, place):
    """Exchange two small fields."""
    size = rng.choice((2, 4, 8))
    a, b = sorted((place(), place()))
    if b - a < size:
        return flipped(rng, content, place)
    one, other = content[a : a + size], content[b : b + size]
    changed = content[:a] + other + content[a + size : b] + one + content[b + size :]
    return changed, f"{size} bytes of {a} and {b} exchanged"


def extended(rng, content, place):
    raw = rng.choice((b"\0", b"\xff", content)) * rng.choice((1, 1, 3))
    return content + raw[: 1 << 18], f"{min(len(raw), 1 << 18)} bytes at the end"


def spliced(rng, content, other):
    a, b = rng.randrange(len(content) + 1), rng.randrange(len(other) + 1)
    b = a if rng.random() < 0.5 else b
    return content[:a] + other[b:], f"byte {a}, then from byte {b} of another file"


KINDS = (flipped, numbered, cut, inserted, removed, moved, exchanged, extended, spliced)
WEIGHTS = (30, 40, 5, 4, 4, 6, 4, 2, 5)


# Text: headers with lines, XML, JSON and TOML


def damaged_text(rng, content):
    if content.lstrip()[:1] in {b"{", b"["} and rng.random() < 0.5:
        try:
            return damaged_json(rng, json.loads(content))
        except (ValueError, RecursionError):
            pass
    return rng.choices((number, line, tag, letters), (60, 20, 10, 10))[0](rng, content)


def number(rng, content):
    """Replace a number in a text by another one, of the same length or not."""
    found = list(NUMBER.finditer(content, 0, TEXT_BYTES))
    if not found:
        return letters(rng, content)
    match, value = rng.choice(found), rng.choice(NUMBERS)
    if rng.random() < 0.3:
        value = value[: len(match[0])].ljust(len(match[0]))
    changed = content[: match.start()] + value + content[match.end() :]
    return changed, f"{value[:40]} for {match[0][:40]} at byte {match.start()}"


def line(rng, content):
    """Remove, repeat, exchange or join lines."""
    lines = content.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.choice(("lost", "repeated", "exchanged", "joined", "repeated often"))
    if how == "lost":
        del lines[a]
    elif how == "exchanged":
        lines[a], lines[b] = lines[b], lines[a]
    elif how == "joined":
        lines[a : a + 2] = [b"".join(lines[a : a + 2])]
    else:
        lines[b:b] = [lines[a]] * (500 if how == "repeated often" and len(lines[a]) < 200 else 1)
    return b"\n".join(lines), f"line {a} {how}"


def tag(rng, content):
    """Replace a tag of XML, a quoted text or a value; without any, damage letters."""
    tags = list(
        re.finditer(rb"<[^<>]{1,500}>|\"[^\"\n]{0,200}\"|=[^\n]{0,100}", content[:TEXT_BYTES])
    )
    if not tags:
        return letters(rng, content)
    match = rng.choice(tags)
    raw = rng.choice((b"", match[0] * 2, match[0] * 300, b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;"))
    changed = content[: match.start()] + raw + content[match.end() :]
    return changed, f"{raw[:40]} for {match[0][:40]} at byte {match.start()}"


def letters(rng, content):
    """Replace a letter, often a separator."""
    places = [m.start() for m in re.finditer(rb"[=:,;\n<>\[\]{}\"'()/]", content[:TEXT_BYTES])]
    at = rng.choice(places) if places and rng.random() < 0.6 else rng.randrange(len(content) + 1)
    raw = rng.choice(
        (b"", b"\0", b"\xff", b"\xc3", b" ", b"\n", b"\r", b"=", b"..", b"/", b"A" * 9999)
    )
    return content[:at] + raw + content[at + 1 :], f"{raw[:20]} at byte {at}"


def damaged_json(rng, document):
    """Replace, remove, copy or nest a value of a document."""
    root = [document]
    places = list(walk(root))
    holder, key = rng.choice(places)
    was = repr(holder[key])[:40]
    how = rng.random()
    if how < 0.6:
        holder[key] = rng.choice(VALUES)
    elif how < 0.75:
        del holder[key]
    elif how < 0.85:
        other, name = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    elif how < 0.9:
        text = "[" * 2000 + "]" * 2000
        holder[key] = "@deep@"
        return json.dumps(root[0]).replace('"@deep@"', text).encode(), f"{key!r} is deep"
    else:
        holder[key] = [holder[key]] * rng.choice((2, 40))
    return json.dumps(root[0] if root else None).encode(), f"{key!r} was {was}"


def walk(value):
    """Yield holder and key of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, (dict, list)):
            yield from walk(item)
