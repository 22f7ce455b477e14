"""Expanding XML, JSON, TOML, text and chunks of zarr take little time and memory."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from bombs import BESIDE, BOMBS, PLACES

import dask_tiled
from dask_tiled import CorruptFileError, describe, open_dataset
from dask_tiled.formats.frms6.descriptor import _read_hdr
from dask_tiled.formats.raw_csr import read_toml
from dask_tiled.formats.ser import emi
from dask_tiled.formats.tools import text as markup
from dask_tiled.formats.tools.text import parse_pairs, parse_xml
from dask_tiled.formats.tools.volume import PATTERN
from dask_tiled.model.instrument import _number


class CountedBytes(bytes):
    """Bytes that count the slices taken of them."""

    parts = 0

    def __getitem__(self, key):
        self.parts += 1
        return super().__getitem__(key)


@contextmanager
def limited(seconds=10):
    """Fail if the work takes much processor time, as work of quadratic cost would."""

    def give_up(*_):
        raise AssertionError(f"more than {seconds} s of the processor")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("bomb", BOMBS)
def test_refusing_ends_the_parsing(bomb):
    """The parser gets no more of a document than it needs to refuse it."""
    text = CountedBytes(BOMBS[bomb]())
    with pytest.raises(CorruptFileError):
        parse_xml(text, "a.xml", take={"P": lambda _: None})
    most = markup.MAX_COUNT * 30 // markup.BLOCK_BYTES + 1
    assert text.parts <= max(most, markup.MAX_TOKEN // markup.BLOCK_BYTES + 2)
    assert text.parts < len(text) / markup.BLOCK_BYTES / 2 or len(text) < 100_000


@pytest.mark.parametrize(
    ("place", "bomb"),
    [(place, bomb) for place in PLACES for bomb in (BOMBS if place == "TIA" else [*BOMBS][::4])],
)
def test_bombs_in_files(tmp_path, place, bomb):
    """Bombs raise CorruptFileError, or are left out of metadata that pixels do not need."""
    path, options = PLACES[place](tmp_path, BOMBS[bomb]())
    if place in BESIDE:
        desc = describe(path)
        assert "root:" not in str(desc.metadata)
        assert len(str(desc.metadata)) < 100_000
        if place == "TIA":
            values = desc.metadata["emi"].values()
            assert sum(str(one).startswith("not read: ") for one in values) >= 1
    else:
        with pytest.raises(CorruptFileError, match="the XML cannot be read"):
            open_dataset(path, **options)


def test_depth_of_elements_is_limited():
    for depth, within in ((markup.MAX_DEPTH, True), (markup.MAX_DEPTH + 1, False)):
        text = b"<a>" * depth + b"</a>" * depth
        with nullcontext() if within else pytest.raises(CorruptFileError, match="nested levels"):
            parse_xml(text, "a.xml")


@pytest.mark.thorough
def test_long_xml_is_read():
    """Long text, CDATA sections, namespaces and many elements are read."""
    text = (
        b"<a xmlns='u' x='1'><![CDATA[<&]]>" + b"\n" * 500_000 + b"<p:b xmlns:p='v' p:y='2'/></a>"
    )
    root = parse_xml(text, "a.xml")
    assert root.tag == "{u}a"
    assert root.attrib == {"x": "1"}
    assert root.text == "<&" + "\n" * 500_000
    assert [(one.tag, one.attrib) for one in root] == [("{v}b", {"{v}y": "2"})]
    taken = []
    many = b"<a>" + b"<b><c/></b>" * 60_000 + b"</a>"
    assert not len(parse_xml(many, "a.xml", take={"b": taken.append}))
    assert len(taken) == 60_000


def test_long_tags_are_read():
    """Recent versions of expat look at an incomplete tag again once they have twice as much."""
    root = parse_xml(b"<a>" + b"<b x='%s'>1</b>" % (b"1" * 40_000) * 20 + b"</a>", "a.xml")
    assert [(len(one.attrib["x"]), one.text) for one in root] == [(40_000, "1")] * 20


@pytest.mark.parametrize(
    "encoding", ["foo", "idna", "hex", "utf-7", "utf-16", "punycode", "x" * 99]
)
def test_unsupported_encodings_raise(encoding):
    text = f"<?xml version='1.0' encoding='{encoding}'?><a>\xe9</a>".encode("latin1")
    with pytest.raises(CorruptFileError):
        parse_xml(text, "a.xml")


def test_objects_share_a_limit(tmp_path):
    """Objects below the limit may exceed it together."""
    one = b"<ObjectInfo>" + b"<a/>" * (markup.MAX_COUNT // 3) + b"</ObjectInfo>"
    (tmp_path / "a.emi").write_bytes(emi.MAGIC + one * 9)
    objects = list(emi.read_objects(str(tmp_path / "a.emi")).values())[1:]
    assert len(objects) == 9
    assert sum(isinstance(found, dict) for found in objects) == 2
    assert str(objects[-1]).startswith("not read: ")


JSON = {
    "lists in lists": "[" * 10**6,
    "objects in objects": '{"a":' * 10**6,
    "lists": "[" + "[]," * 10**6 + "1]",
    "keys": "{" + ",".join(f'"{k}":1' for k in range(400_000)) + "}",
    "the same key": "{" + '"a":1,' * 400_000 + '"a":1}',
    "digits": "1" * 10**6,
    "few brackets": "[" * 66 + "]" * 66,
}


@pytest.mark.parametrize("kind", JSON)
def test_json(kind):
    for coded in (JSON[kind], JSON[kind].encode()):
        with pytest.raises(ValueError, match=r"more than|limit"):
            markup.parse_json(coded)


TOML = {
    "a key of many parts": ".".join("a" * 30_000) + " = 1",
    "a table of many parts": "[" + ".".join("a" * 30_000) + "]",
    "arrays in arrays": "a = " + "[" * 60_000,
    "tables in tables": "a = " + "{a=" * 20_000,
    "digits": "a = " + "1" * 60_000,
    "length": "#" * 70_000,
}


@pytest.mark.parametrize("kind", TOML)
def test_toml(tmp_path, kind):
    path = tmp_path / "a.toml"
    path.write_text(TOML[kind])
    with limited(3), pytest.raises(CorruptFileError) as caught:
        read_toml(str(path))
    assert caught.value.path == str(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.thorough
def test_pairs_are_limited_to_a_mib():
    with limited():
        pairs = parse_pairs("".join(f"{k}=\n" for k in range(3_000_000)), "=")
    assert 100_000 < len(pairs) < 200_000


def test_a_line_of_blanks(tmp_path):
    """The time of Python's configparser grows at least with the square of the blanks."""
    path = tmp_path / "a.hdr"
    path.write_text("[measurementInfo]\nb" + " " * 60_000 + "x")
    with limited(), pytest.raises(CorruptFileError):
        _read_hdr(str(path))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (PATTERN.fullmatch, "%d" + " " * 4090 + "x"),
        (PATTERN.fullmatch, "%d 1 1 1" + " " * 4000 + "x"),
        (lambda text: _number(text, "V", "V"), "1" * 1_000_000 + "x1"),
        (lambda text: emi._tree(parse_xml(f"<a>{text}</a>".encode(), "a")), "1" * 1_000_000 + "x"),
    ],
)
def test_regular_expressions(read, text):
    with limited():
        read(text)


# Chunks of zarr


EXPANDING = """
import bz2, gzip, json, lzma, re, struct, sys, zlib
from pathlib import Path
import dask, numcodecs, numpy as np
import dask_tiled

dask.config.set(scheduler="synchronous")
SIZE = 32 << 20
ZEROS = bytes(SIZE)
BYTES, GZIP = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}

def numcodec(name, **configuration):
    return {"name": f"numcodecs.{name}", "configuration": configuration}

def packed(name):
    return numcodecs.get_codec({"id": name}).encode(ZEROS)

zipped = gzip.compress(ZEROS)
shard = zipped + struct.pack("<QQ", 0, len(zipped))
sharding = {
    "chunk_shape": [8, 4, 4], "codecs": [BYTES, GZIP], "index_codecs": [BYTES],
}
nested = {**sharding, "codecs": [{"name": "sharding_indexed", "configuration": sharding}]}
names = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
BOMBS = {
    "vlen-bytes": ("uint8", [{"name": "vlen-bytes"}], struct.pack("<I", SIZE) + bytes(100)),
    "vlen-utf8": ("uint8", [{"name": "vlen-utf8"}], struct.pack("<I", SIZE) + bytes(100)),
    "truths": ("bool", [BYTES, GZIP], zipped),
    "transposed": ("uint8", [TRANSPOSE, BYTES, GZIP], zipped),
    "gzip in gzip": ("uint8", [BYTES, GZIP, GZIP], gzip.compress(gzip.compress(ZEROS))),
    "gzip in zstd": ("uint8", [BYTES, GZIP, {"name": "zstd"}], packed("zstd")),
    "zlib in blosc": ("uint8", [BYTES, numcodec("zlib"), {"name": "blosc"}], packed("blosc")),
    "sealed": ("uint8", [BYTES, GZIP, numcodec("crc32")], numcodecs.CRC32().encode(zipped)),
    "shuffled": ("uint8", [BYTES, numcodec("shuffle"), GZIP], zipped),
    "packed bits": ("bool", [numcodec("packbits"), BYTES, GZIP], zipped),
    "differences": ("uint8", [numcodec("delta", dtype="u1"), BYTES, GZIP], zipped),
    "text": ("uint8", [numcodec("astype", encode_dtype=f"S{SIZE}"), BYTES, GZIP], zipped),
    "a transposed shard": (
        "uint8",
        [{"name": "transpose", "configuration": {"order": [0, 1, 2]}},
         {"name": "sharding_indexed", "configuration": sharding}],
        shard,
    ),
    "a shard in a shard": (
        "uint8",
        [{"name": "sharding_indexed", "configuration": nested}],
        shard + struct.pack("<QQ", 0, len(shard)),
    ),
    **{name: ("uint8", [BYTES, {"name": name}], packed(name)) for name in names[::6]},
    **{f"numcodecs.{one}": ("uint8", [BYTES, numcodec(one)], packed(one)) for one in names},
}

def write(name, dtype, codecs, chunk):
    grid = {"name": "regular", "configuration": {"chunk_shape": [8, 4, 4]}}
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [8, 4, 4], "data_type": dtype,
        "chunk_grid": grid, "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": codecs, "attributes": {},
    }
    path = Path(name) / "c/0/0/0"
    path.parent.mkdir(parents=True)
    path.write_bytes(chunk)
    (Path(name) / "zarr.json").write_text(json.dumps(document))

def memory(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

write("honest", "uint8", [BYTES, GZIP, GZIP], gzip.compress(gzip.compress(bytes(128))))
assert not dask_tiled.open_dataset("honest").compute().any()
for name, bomb in BOMBS.items():
    write(name, *bomb)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    try:
        dask_tiled.open_dataset(name).compute()
    except dask_tiled.DatasetError as error:
        assert not isinstance(error.__cause__, MemoryError), name
        assert name in error.path, (name, error)
    else:
        raise AssertionError(name)
    print(name, (memory("VmHWM") - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is known on Linux only"
)
def test_chunks_of_zarr_that_expand(tmp_path):
    """Bombs in every codec, and in nested codecs, raise without taking memory."""
    env = {**os.environ, "PYTHONPATH": str(Path(dask_tiled.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", EXPANDING]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    taken = {line.rpartition(" ")[0]: int(line.split()[-1]) for line in done.stdout.splitlines()}
    assert len(taken) == 23
    assert {name: mib for name, mib in taken.items() if mib > 16} == {}
