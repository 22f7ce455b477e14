"""Headers drawn with hypothesis: trees, directories, documents, texts and fields.

Flipped bytes hardly ever form a tree in a tree, or a directory that leads to itself.
"""

import json
import struct
import zlib
from functools import cache

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from dask_tiled.formats import blo, mgh, seq
from dask_tiled.formats.frms6 import header as frms6
from dask_tiled.formats.mrc import header as mrc_header
from dask_tiled.formats.ser import descriptor as ser
from dask_tiled.formats.tvips import descriptor as tvips
from fuzzing.mutators import NUMBERS, POWERS, VALUES, Mutation

SHARE = 8
"""Number of mutations of which one is drawn."""
BATCH = 50
"""Number drawn at once, so that a structure does not depend on the number of mutations."""
PIXELS = bytes(range(256)) * 8

hostile = st.sampled_from(POWERS)
small = st.integers(0, 12)


def mostly(right, wrong):
    """Draw a valid value seven times of eight: most structures must not be refused at once."""
    return st.integers(0, 7).flatmap(lambda k: wrong if k == 7 else right)


# Trees of tags, as in Digital Micrograph


SIMPLE = {2: 2, 3: 4, 4: 2, 5: 4, 6: 4, 7: 8, 8: 1, 9: 1, 10: 1, 11: 8, 12: 8}
"""Item sizes of the types of a tag."""
NAMES = ["Data", "DataType", "Dimensions", "PixelDepth", "Calibrations", "Units", "ImageData"]


def tag(info, data):
    return {"info": info, "data": data}


length = mostly(small, hostile)
kind = mostly(st.sampled_from(sorted(SIMPLE)), small)
number_tag = st.builds(
    lambda k, n: tag([k], n.to_bytes(8, "little")[: SIMPLE.get(k, 4)]), kind, small
)
array_tag = st.builds(lambda k, n: tag([20, k, n], PIXELS[:64]), kind, length)
struct_tag = st.builds(
    lambda n, kinds: tag([15, 0, n, *(x for k in kinds for x in (0, k))], PIXELS[:64]),
    length,
    st.lists(kind, max_size=4),
)
leaf = st.one_of(number_tag, array_tag, struct_tag)


def group(children):
    return st.lists(st.tuples(mostly(st.sampled_from(NAMES), st.just("")), children), max_size=4)


tree = st.recursive(leaf, group, max_leaves=8)


@st.composite
def picture(draw):
    """Draw a mostly valid entry of ImageList."""
    sizes = draw(st.lists(mostly(st.integers(1, 8), hostile), min_size=1, max_size=4))
    types = draw(mostly(st.just((10, 2, 2)), st.tuples(small, small, hostile)))
    dimensions = [("", tag([5], (n % (1 << 32)).to_bytes(4, "little"))) for n in sizes]
    data = [
        ("Data", draw(mostly(st.just(tag([20, 4, 1024], PIXELS)), tree))),
        ("DataType", tag([5], types[1].to_bytes(4, "little"))),
        ("Dimensions", draw(mostly(st.just(dimensions), tree))),
        ("PixelDepth", tag([5], (types[2] % (1 << 32)).to_bytes(4, "little"))),
        ("Calibrations", draw(tree)),
    ]
    return [("ImageData", data), (draw(st.sampled_from(NAMES)), draw(tree))]


@st.composite
def dm(draw):
    version = draw(mostly(st.sampled_from((3, 4)), small))
    long = ">Q" if version == 4 else ">I"
    shift = draw(mostly(st.just(0), hostile))

    def packed(n):
        return struct.pack(long, n % (1 << 8 * struct.calcsize(long)))

    def written(node):
        if isinstance(node, dict):
            head = b"%%%%" + packed(len(node["info"])) + b"".join(map(packed, node["info"]))
            return head + node["data"]
        content = b"\1\0" + packed(len(node))
        for name, child in node:
            text, raw = name.encode(), written(child)
            size = packed(len(raw) + shift) if version == 4 else b""
            kind = b"\x15" if isinstance(child, dict) else b"\x14"
            content += kind + struct.pack(">H", len(text)) + text + size + raw
        return content

    pictures = [("", one) for one in draw(st.lists(picture(), min_size=1, max_size=2))]
    root = written([("ImageList", pictures), ("DocumentTags", draw(tree))])
    return struct.pack(">I", version) + packed(len(root) + shift) + b"\0\0\0\1" + root + bytes(8)


# Directories, as in TIFF


TAGS = (256, 257, 258, 259, 262, 270, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 330, 339)


@st.composite
def tiff(draw):
    order, big = draw(st.sampled_from("<>")), draw(st.booleans())
    size, places = ("Q", 16) if big else ("I", 8)
    limit = 1 << (64 if big else 32)

    def packed(kind, *values):
        return struct.pack(order + kind, *values)

    count, start = draw(st.integers(1, 3)), places + 2048
    begin = b"II" if order == "<" else b"MM"
    begin += packed("HHH", 43, 8, 0) if big else packed("H", 42)
    content = (begin + packed(size, start)).ljust(places, b"\0") + PIXELS
    right = {256: 16, 257: 8, 258: 16, 259: 1, 262: 1, 273: places, 277: 1, 278: 8, 279: 256}
    width = (8 if big else 2) + 9 * (20 if big else 12) + (8 if big else 4)
    for k in range(count):
        entries = dict.fromkeys(right)
        for tag in draw(st.lists(st.sampled_from(TAGS), max_size=2)):
            entries[tag] = draw(st.tuples(st.integers(0, 19), hostile, hostile))
        made = []
        for tag, wrong in sorted(entries.items())[:9]:
            kind, number, value = wrong or (4, 1, right[tag])
            made.append(packed(f"HH{size}{size}", tag, kind, number % limit, value % limit))
        following = start + width * (k + 1) if k + 1 < count else 0
        following = draw(mostly(st.just(following), st.sampled_from((start, 1, *POWERS))))
        content += packed("Q" if big else "H", len(made)) + b"".join(made)
        content += packed(size, following % limit)
    return content


# Documents, as in zarr


value = st.recursive(
    st.sampled_from(VALUES[:-1]) | small,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=6,
)


def document(right, **keys):
    """Draw a JSON object of mostly valid values."""
    return st.fixed_dictionaries(
        {key: mostly(st.just(one), value) for key, one in right.items()}
        | {key: mostly(one, value) for key, one in keys.items()}
    )


codec = document({"name": "bytes", "configuration": {"endian": "little"}})
boxes = st.just([2, 2]) | st.lists(length, max_size=5)
shards = document(
    {"name": "sharding_indexed"},
    configuration=document(
        {"index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        chunk_shape=boxes,
        codecs=st.lists(codec, min_size=1, max_size=2),
    ),
)
zarr = document(
    {"zarr_format": 3, "node_type": "array", "data_type": "uint16", "fill_value": 0},
    shape=st.just([4, 4]) | st.lists(length, max_size=5),
    chunk_grid=document({"name": "regular"}, configuration=document({}, chunk_shape=boxes)),
    chunk_key_encoding=document({"name": "default", "configuration": {"separator": "."}}),
    codecs=st.lists(codec | shards, min_size=1, max_size=1) | st.lists(codec | shards, max_size=3),
).map(lambda made: json.dumps(made).encode())


# Texts of keys and values, as in NRRD, MetaImage and EDF


def text(begin, line, end, keys, room=0):
    """Draw a header whose lines may be missing, repeated or invalid, padded to ``room`` bytes."""
    number = st.sampled_from(NUMBERS)
    numbers = st.lists(mostly(small.map(b"%d".__mod__), number), max_size=5).map(b" ".join)
    lines = [st.just(line % (key.encode(), str(right).encode())) for key, right in keys.items()]
    names = st.sampled_from([key.encode() for key in keys])
    wrong = st.builds(lambda key, more: line % (key, more), names, numbers)
    drawn = st.tuples(*(mostly(one, st.just(b"") | wrong) for one in lines))
    more = st.lists(wrong, max_size=2)
    begun = st.builds(lambda a, b: begin + b"".join((*a, *b)), drawn, more)
    return begun.map(lambda lines: lines.ljust(room - len(end)) + end + PIXELS)


nrrd = text(
    b"NRRD0004\n", b"%s: %s\n", b"\n",
    {"type": "uint16", "dimension": 3, "sizes": "8 4 2", "endian": "little", "encoding": "raw",
     "spacings": "1 1 1", "byte skip": 0, "line skip": 0},
)  # fmt: skip
metaimage = text(
    b"ObjectType = Image\n", b"%s = %s\n", b"ElementDataFile = LOCAL\n",
    {"NDims": 3, "DimSize": "8 4 2", "ElementType": "MET_USHORT", "ElementNumberOfChannels": 1,
     "BinaryData": True, "HeaderSize": 0, "ElementSpacing": "1 1 1"},
)  # fmt: skip
edf = text(
    b"{\n", b"%s = %s ;\n", b"}\n",
    {"EDF_BinarySize": 2048, "ByteOrder": "LowByteFirst", "DataType": "UnsignedShort", "Dim_1": 64,
     "Dim_2": 16, "Size": 2048, "EDF_HeaderSize": 512}, 512,
)  # fmt: skip


# Tables of fields, written into the header of a seed


def fields(*tables):
    table = {name: field for table in tables for name, field in table.items()}
    return st.dictionaries(st.sampled_from(sorted(table)), length, min_size=1, max_size=4).map(
        lambda drawn: [(*table[name], value) for name, value in drawn.items()]
    )


def with_fields(content, drawn):
    """Write numbers into fields, in the byte order of the fields."""
    data = bytearray(content)
    for at, kind, value in drawn:
        dtype = np.dtype(kind)
        raw = (value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
        data[at : at + dtype.itemsize] = raw[::-1] if dtype.byteorder == ">" else raw
    return bytes(data)


STRUCTURES = {
    "dm": dm(),
    "tiff": tiff(),
    "zarr": zarr,
    "nrrd": nrrd,
    "metaimage": metaimage,
    "edf": edf,
    "ser": fields(ser.START),
    "blo": fields(blo.FIELDS),
    "seq": fields(seq.FIELDS),
    "mgh": fields(mgh.FIELDS),
    "mrc": fields(mrc_header.FIELDS),
    "frms6": fields(frms6.FIELDS),
    "tvips": fields(tvips.SERIES),
    "planted": value.map(lambda made: json.dumps(made).encode()),
}


@cache
def batch(format, seed_number, number):
    """Draw some structures, the same in every run."""
    structures = []

    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seeded(zlib.crc32(f"{format} {seed_number} {number}".encode()))
    @given(STRUCTURES[format])
    def draw(structure):
        structures.append(structure)

    draw()
    return structures


def drawn(format, seed_number, number, seeds):
    """Replace the header of a seed by a drawn structure."""
    structures = batch(format, seed_number, number // BATCH)
    header, seed = structures[number % BATCH % len(structures)], seeds[0]
    path = seed.options["path"]
    content = with_fields(seed.files[path], header) if isinstance(header, list) else header
    return seed, Mutation({**seed.files, path: content}, [f"{path}: drawn, {header!r}"[:2000]])
