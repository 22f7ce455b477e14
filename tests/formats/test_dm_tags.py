"""Tags of DM files: values of every kind, and damaged or hostile files."""

import struct

import pytest

import dask_tiled
from dask_tiled import CorruptFileError, TruncatedFileError
from dask_tiled.formats.dm.descriptor import sniff
from dask_tiled.formats.dm.tags import TagArray, read_tags
from dask_tiled.testing import counting_frames, write_dm, write_tags

ONE_WORD = b"%%%%" + (1).to_bytes(8, "big")
"""Bytes before the type of a number, in version 4."""


@pytest.mark.parametrize("version", [3, 4])
def test_tags(tmp_path, version):
    tags = {"a": 1, "b": [2.5, {"c": (3, -4)}], "text": "µm", "long": "x" * 600, "on": True}
    found = read_tags(write_tags(tmp_path / "a", {**tags, "raw": b"\0\1"}, version=version))
    long = found.pop("long")
    assert isinstance(long, TagArray)
    assert (long.dtype, long.length, long.nbytes) == ("<H", 600, 1200)
    assert (tmp_path / "a").read_bytes()[long.offset :].startswith(b"x\0x\0")
    del tags["long"]
    assert found == {**tags, "b": {"0": 2.5, "1": {"c": (3, -4)}}, "raw": (0, 1)}
    assert read_tags(tmp_path / "a", ("b", "1")).keys() == {"a", "b"}


def test_big_endian_values(tmp_path):
    """A number, a text, a record and an array, in version 3."""
    values = {
        b"number": ((3,), struct.pack(">i", -7)),
        b"text": ((20, 4, 2), "µm".encode("utf-16-be")),
        b"record": ((15, 0, 2, 0, 6, 0, 6), struct.pack(">2f", 0.5, -2)),
        b"array": ((20, 15, 0, 2, 0, 2, 0, 2, 2), struct.pack(">4h", 5, -6, 7, -8)),
    }
    content = struct.pack(">3IBBI", 3, 0, 0, 0, 0, len(values))
    for label, (info, data) in values.items():
        content += struct.pack(">BH", 21, len(label)) + label + b"%%%%"
        content += struct.pack(f">{len(info) + 1}I", len(info), *info) + data
    (tmp_path / "a").write_bytes(content)
    expected = {"number": -7, "text": "µm", "record": (0.5, -2), "array": ((5, -6), (7, -8))}
    assert read_tags(tmp_path / "a") == expected


def test_deep_and_endless_groups_raise(tmp_path):
    tags = {}
    for _ in range(100):
        tags = {"a": tags}
    with pytest.raises(CorruptFileError, match="nested too deeply"):
        read_tags(write_tags(tmp_path / "deep", tags))
    endless = struct.pack(">IQIBBQ", 4, 8, 1, 0, 0, 2**64 - 1) + (b"\x14\0\0" + bytes(18)) * 50_000
    (tmp_path / "wide").write_bytes(endless)
    with pytest.raises(TruncatedFileError):
        read_tags(tmp_path / "wide")


def test_sniff_recognises_dm_files_only(tmp_path):
    head = write_dm(tmp_path / "a.bin", counting_frames((5, 6), "u2")).read_bytes()
    assert sniff("a.bin", head) is None
    assert "K2" in sniff("a.gtg", head)
    assert all(sniff("a.bin", head[:n]) for n in range(27))
    assert dask_tiled.describe(tmp_path / "a.bin").format == "dm"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"Dimensions", b"Dimension5", "not an image"),
        (b"%%%%", b"%%%&", "not a value"),
        (ONE_WORD + b"\0", ONE_WORD + b"\1", "unknown value type"),
    ],
)
def test_invalid_tags_raise(tmp_path, old, new, problem):
    path = write_dm(tmp_path / "a.dm4", counting_frames((5, 6), "u2"), thumbnail=False)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(CorruptFileError, match=problem):
        dask_tiled.describe(path, "dm")
