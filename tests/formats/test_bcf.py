"""Bruker maps: packings, containers, damage, and real files against RosettaSciIO."""

import struct

import numpy as np
import pytest
from checks import axes_text, refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import CorruptFileError, TruncatedFileError, describe, open_dataset
from dask_tiled.testing import check_format, write_bcf

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 3, (7, 5, 300)).astype("u4")
COUNTS[2, 1:4] = COUNTS[4] = COUNTS[:, :, 200:] = 0
CONTAINERS = [
    {"chunk": 700},
    {"packed": True},
    {"packed": True, "block": 1500},
    {"packed": True, "block": 100},
    {"packed": True, "block": 37000, "chunk": 65536},
]


@pytest.mark.parametrize(
    ("packing", "container"), [*enumerate([{}] * 4), *((2, one) for one in CONTAINERS)], ids=str
)
def test_packings(tmp_path, packing, container):
    """Maps have empty pixels and lines, and lines in several chunks and blocks."""
    path = write_bcf(tmp_path / "map.bcf", COUNTS, packing=packing, **container)
    check_format(path, COUNTS, cuts=4)
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr.sum(axis=(0, 1)).compute(), COUNTS.sum(axis=(0, 1)))
    np.testing.assert_array_equal(arr.sum(axis=2).compute(), COUNTS.sum(axis=2))


def test_large_counts(tmp_path):
    """Counts of up to 4 bytes are read, and summed in 8 bytes; larger ones raise."""
    counts = COUNTS.astype("u8")
    for k, offset in enumerate((7, 200, 60_000, (1 << 32) - 10)):
        counts[k, 0] += offset
    path = write_bcf(tmp_path / "map.bcf", counts, packing=2)
    np.testing.assert_array_equal(open_dataset(path).compute(), counts)
    total = open_dataset(path).sum(axis=(0, 1)).compute()
    np.testing.assert_array_equal(total, counts.sum(axis=(0, 1)))
    counts[3, 0, 5] = 1 << 32
    path = write_bcf(tmp_path / "more.bcf", counts, packing=2)
    with refused(path, "a line is damaged", CorruptFileError, detailed=True):
        open_dataset(path).compute()


def test_axes_and_facts(tmp_path):
    desc = describe(write_bcf(tmp_path / "map.bcf", COUNTS))
    assert axes_text(desc) == "scan_y 0.25 µm, scan_x 0.5 µm, energy 0.01-0.45 keV"
    assert desc.instrument["beam_energy"].value == 20_000
    assert desc.instrument["magnification"].value == 1000


def test_channels(tmp_path):
    path = write_bcf(tmp_path / "map.bcf", COUNTS)
    assert open_dataset(path, channels=512).shape == (7, 5, 512)
    np.testing.assert_array_equal(open_dataset(path, channels=200).compute(), COUNTS[..., :200])
    with refused(path, "a line is damaged", CorruptFileError):
        open_dataset(path, channels=100).compute()
    for wrong in 0, 1 << 17, 2.5:
        refuses(path, "channels", channels=wrong)


def patched(path, at, value):
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack("<i", value)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (0x128, 100, "invalid container"),
        (0x144, 0, "invalid container"),
        (0x140, 1 << 28, "ends inside the tree"),
        (0x140, -5, "ends inside the tree"),
        (0x118 + 4096 + 32, -3, "leads nowhere"),
        (0x118 + 4096 + 32 + 4, 1 << 30, "longer than the file"),
        (0x118 + 2 * 4096 + 32, 1 << 28, "ends inside"),
    ],
)
def test_damaged_containers(tmp_path, at, value, match):
    path = write_bcf(tmp_path / "map.bcf", COUNTS)
    patched(path, at, value)
    refuses(path, match)


def test_damaged_maps(tmp_path):
    path = write_bcf(tmp_path / "map.bcf", COUNTS)
    content = path.read_bytes()
    start = content.index(struct.pack("<iiII", 7, 5, 4096, 1))
    patched(path, start, 0)
    refuses(path, "invalid size of the map", CorruptFileError)
    patched(path, start, 8)
    refuses(path, "the map ends early", TruncatedFileError, detailed=True)
    patched(path, start, 7)
    patched(path, start + 0x1A0, 6)
    refuses(path, "a pixel or line is damaged", CorruptFileError)
    refuses(path, "no such entry", content=content.replace(b"SpectrumData0\0", b"SpectrumDataX\0"))
    path.write_bytes(content.replace(b"<CalibLin>1E-2", b"<CalibLin>none"))
    assert describe(path).axes[-1].scale == 1
    refuses(
        path,
        "the XML cannot be read",
        content=content.replace(b"</TRTSpectrumDatabase>", b"</TRTSpectrumDatabas>>"),
    )


def test_scattered_chunks(tmp_path):
    path = write_bcf(tmp_path / "map.bcf", COUNTS, chunk=1100)
    content = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<i", content, 0x118 + 1100 + 32 + 512)
    at = 0x118 + first * 1100 + 32
    (number,) = struct.unpack_from("<I", content, at)
    content[at : at + 4] = struct.pack("<I", number + 5)
    refuses(path, "scattered chunks are not supported", content=content)


@by_row(rows_of("bcf"))
def test_real_file_equals_rosettasciio(row):
    path = path_of(row)
    pixels = open_dataset(path).compute()
    assert pixels.dtype == "u4"
    assert_equals_row(pixels.astype(row["dtype"]), row)
    scale, offset = row["axes"].split("Energy")[1].split(" ")[2::2][:2]
    axis = describe(path).axes[-1]
    assert axis.scale == pytest.approx(float(scale), rel=1e-6)
    assert axis.offset == pytest.approx(float(offset), rel=1e-6)
