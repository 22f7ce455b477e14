"""Codecs given to `from_pieces`: zarr 3 codec documents and numcodecs configurations."""

import pickle
import sys
import zlib

import numcodecs
import numpy as np
import pytest
import zarr

from dask_tiled import CorruptFileError, DatasetError, Piece, from_pieces, to_references
from dask_tiled.codecs.pipeline import Pipeline, of_numcodecs
from dask_tiled.codecs.shards import index_size
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((4, 6, 8), "u2")
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
SHARDS = {"chunk_shape": [1, 3, 4], "codecs": ["bytes", "crc32c"], "index_location": "start"}
PIPELINES = [
    ["bytes"],
    [TURNED, BIG, GZIP, {"name": "crc32c"}],
    [{"name": "sharding_indexed", "configuration": SHARDS}],
    [{"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}}, "bytes", {"name": "zstd"}],
    ["bytes", {"name": "numcodecs.shuffle"}, {"name": "numcodecs.zlib"}],
]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes each plane encoded, and returns the pieces."""

    def write(encode):
        parts = [encode(PIXELS[k : k + 1]) for k in range(4)]
        (tmp_path / "a.bin").write_bytes(b"".join(parts))
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        return [
            Piece(tmp_path / "a.bin", (k, 0, 0), (1, 6, 8), ends[k], nbytes=len(part))
            for k, part in enumerate(parts)
        ]

    return write


def by_zarr(codecs):
    """Return a function that encodes a chunk through zarr, as an array of one chunk."""

    def encode(pixels):
        told = [{"name": one} if isinstance(one, str) else dict(one) for one in codecs]
        for one in told:
            given = {"level": 3, "checksum": False} if one["name"] == "zstd" else {}
            given |= {"endian": "little"} if one["name"] == "bytes" else {}
            one["configuration"] = given | one.get("configuration", {})
            if "codecs" in one["configuration"]:
                whole = {"name": "bytes", "configuration": {"endian": "little"}}
                crc = {"name": "crc32c"}
                one["configuration"] |= {"codecs": [whole, crc], "index_codecs": [whole, crc]}
        contents = {}
        document = {
            "zarr_format": 3, "node_type": "array", "shape": pixels.shape, "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": pixels.shape}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": told,
        }  # fmt: skip
        store = zarr.storage.MemoryStore(contents)
        array = zarr.Array.from_dict(zarr.storage.StorePath(store), document)
        array[...] = pixels
        return contents["c/0/0/0"].to_bytes()

    return encode


def opened(pieces, codecs, **options):
    options = {"shape": PIXELS.shape, "dtype": "u2", "sig_ndim": 2, **options}
    return from_pieces(pieces, decoders=[("<u2", codecs)], **options)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning")
@pytest.mark.parametrize("codecs", PIPELINES, ids=lambda c: "-".join(str(x)[:20] for x in c))
def test_chunks_encoded_by_zarr(written, codecs):
    pieces = written(by_zarr(codecs))
    arr = opened(pieces, codecs)
    np.testing.assert_array_equal(arr, PIXELS)
    again = pickle.loads(pickle.dumps(arr))
    assert again.name == arr.name
    np.testing.assert_array_equal(again[1:, 2], PIXELS[1:, 2])
    np.testing.assert_array_equal(opened(pieces, codecs, sig_ndim=3), PIXELS)


@pytest.mark.parametrize("codecs", [[BIG, GZIP], [TURNED, BIG, GZIP, {"name": "crc32c"}]])
def test_references_have_the_documents(written, codecs):
    arr = opened(written(by_zarr(codecs)), codecs)
    refs = to_references(arr, zarr_format=3)
    array = zarr.open_array(zarr.storage.FsspecStore.from_url("reference://", storage_options={
        "fo": refs, "remote_protocol": "file", "asynchronous": True,
    }), path="data", mode="r")  # fmt: skip
    names = [one["name"] for one in codecs]
    assert [codec.to_dict()["name"] for codec in array.metadata.codecs] == names
    np.testing.assert_array_equal(array[...], PIXELS)


def test_pieces_of_several_shapes(tmp_path):
    """Codecs without shapes apply to pieces of any shape; codecs with shapes check each piece."""
    content = b""
    pieces = []
    for first, last in ((0, 2), (2, 6)):
        part = numcodecs.GZip().encode(np.ascontiguousarray(PIXELS[0, first:last], ">u2"))
        piece = Piece(tmp_path / "a", (first, 0), (last - first, 8), len(content), nbytes=len(part))
        pieces.append(piece)
        content += part
    (tmp_path / "a").write_bytes(content)
    arr = opened(pieces, [BIG, GZIP], shape=(6, 8))
    np.testing.assert_array_equal(arr, PIXELS[0])
    shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 8]}}
    with pytest.raises(DatasetError, match="shards of"):
        opened(pieces, [shards], shape=(6, 8))


@pytest.mark.parametrize(
    ("codecs", "size"),
    [(["bytes"], 48), (["bytes", "crc32c"], 52), ([BIG, "crc32c"], 52), (["bytes", GZIP], 0)],
)
def test_indices_of_shards(codecs, size):
    """Three chunks have two numbers of 8 bytes each; other codecs are refused."""
    if size:
        assert index_size({"index_codecs": codecs}, 3) == size
    else:
        with pytest.raises(ValueError, match="a shard index"):
            index_size({"index_codecs": codecs}, 3)


@pytest.mark.parametrize(
    ("codec", "config", "kernel"),
    [
        ("blosc", {"cname": "lz4"}, "blosc"),
        ("numcodecs.blosc", {"cname": "lz4hc"}, "blosc"),
        ("blosc", {"cname": "zstd"}, ""),
        ("dask_tiled.bitshuffle", {"cname": "lz4", "elementsize": 2}, "bitshuffle"),
        ("dask_tiled.bitshuffle", {"cname": "lz4", "elementsize": 0}, ""),
        ("dask_tiled.bitshuffle", {"cname": "", "elementsize": 2}, ""),
        ("gzip", {}, ""),
    ],
)
def test_pipelines_with_a_kernel(codec, config, kernel):
    documents = ["bytes", {"name": codec, "configuration": config}]
    assert Pipeline(documents, (4, 5), np.dtype("u2")).kernel[0] == kernel
    assert Pipeline([BIG, documents[1]], (4, 5), np.dtype("u2")).kernel[0] == ""


@pytest.mark.parametrize(
    ("codecs", "dtype", "can_encode"),
    [
        (["bytes"], "u2", True),
        ([BIG, GZIP, "crc32c"], "c8", True),
        ([TURNED, "bytes"], "u2", False),
        (PIPELINES[2], "u2", False),
        (["bytes"], "?", True),
        (["bytes"], "S3", False),
        (["bytes", "numcodecs.zlib"], "u2", False),
    ],
)
def test_pipelines_that_encode(codecs, dtype, can_encode):
    assert Pipeline(codecs, (4, 6, 8), np.dtype(dtype)).can_encode == can_encode


def test_codecs_of_numcodecs_only(written):
    """Codecs of numcodecs without a fast path decode, and their output size is checked."""
    pieces = written(lambda part: numcodecs.get_codec({"id": "base64"}).encode(part.copy()))
    assert of_numcodecs({"id": "a", "b": 1}) == {"name": "numcodecs.a", "configuration": {"b": 1}}
    for codecs in ({"id": "base64"}, ["bytes", "numcodecs.base64"]):
        arr = opened(pieces, codecs)
        np.testing.assert_array_equal(arr, PIXELS)
    short = [piece._replace(nbytes=piece.nbytes - 4) for piece in pieces]
    with pytest.raises(CorruptFileError, match=r"a\.bin.*base64; found 9\d bytes"):
        opened(short, {"id": "base64"}).compute()


@pytest.mark.parametrize(
    ("codecs", "problem"),
    [
        (["bytes", "nope"], "unsupported codec.*found nope"),
        (["bytes", "numcodecs.nope"], r'found numcodecs\.nope.*pip install "numcodecs\['),
        ({"id": "nope"}, "found numcodecs.nope"),
        ({"level": 1}, "invalid codecs"),
        ([GZIP], "neither bytes nor sharding_indexed"),
        ([], "neither bytes nor sharding_indexed"),
        (["bytes", TURNED], "transpose after bytes"),
        (["bytes", "bytes"], "bytes after bytes"),
        ([{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"], "of 3 axes"),
        (["bytes", {"name": "numcodecs.zlib", "configuration": {"levle": 1}}], "levle"),
        (["bytes", {"name": "gzip", "configuration": {"level": object()}}], "JSON"),
        ([{"names": "bytes"}], "invalid codecs"),
        ([3], "invalid codecs"),
        ([{"name": "bytes", "configuration": [1]}], "invalid codecs"),
    ],
)
def test_invalid_documents_are_refused(written, codecs, problem):
    pieces = written(bytes)
    with pytest.raises(DatasetError, match=problem):
        opened(pieces, codecs)


@pytest.mark.parametrize("told", [{}, {"cname": "lz4"}, {"cname": "lz4", "elementsize": "two"}])
def test_invalid_configurations_raise_on_decoding(written, told):
    codecs = ["bytes", {"name": "dask_tiled.bitshuffle", "configuration": told}]
    with pytest.raises(DatasetError, match=r"a\.bin.*cannot be decoded"):
        opened(written(bytes), codecs).compute()


def test_errors_name_the_damaged_piece(written):
    pieces = written(by_zarr([BIG, GZIP, {"name": "crc32c"}]))
    path = pieces[2].file
    content = bytearray(path.read_bytes())
    content[pieces[2].offset + 12] ^= 1
    path.write_bytes(content)
    arr = opened(pieces, [BIG, GZIP, {"name": "crc32c"}])
    np.testing.assert_array_equal(arr[:2], PIXELS[:2])
    with pytest.raises(CorruptFileError, match=rf"byte {pieces[2].offset}.*CRC32C"):
        arr.compute()


def test_codecs_that_need_imagecodecs(written, monkeypatch):
    pieces = written(bytes)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(DatasetError, match=r'imagecodecs.*pip install "dask-tiled\['):
        opened(pieces, ["bytes", "dask_tiled.lzf"])


@pytest.mark.parametrize("rows", [1, 5])
def test_missing_and_surplus_rows_raise(written, rows):
    """Frames decoded in batches are checked for size: a single row is not broadcast."""
    document = {"name": "dask_tiled.rows", "configuration": {"axis": -1, "bits": 16}}
    codecs = [document, {"name": "numcodecs.zlib"}]
    pieces = written(lambda plane: zlib.compress(plane[:, :rows, :1].tobytes()))
    narrow = [
        Piece(one.file, (k, 0, 0), (1, 6, 1), one.offset, nbytes=one.nbytes)
        for k, one in enumerate(pieces)
    ]
    arr = opened(narrow, codecs, shape=(4, 6, 1))
    with pytest.raises(CorruptFileError, match=rf"byte 0.*{rows}"):
        arr.compute()
