"""zarr: exports open as they were, other arrays as zarr reads them."""

import gzip
import json
import pickle

import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.codecs.numcodecs
from checks import peak_memory, refused
from range_server import serving
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from dask_tiled import (
    Axis,
    CorruptFileError,
    DatasetError,
    StaleFileError,
    TilingError,
    TruncatedFileError,
    describe,
    open_dataset,
    to_zarr,
)
from dask_tiled.testing import counting_frames, write_mib, write_nrrd

FRAMES = counting_frames((6, 4, 8, 10), "uint16")
BYTES = {"name": "bytes"}
FIELDS = {"spacings": "2 0.5 3", "units": '"mrad" "nm" "s"'}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layout": "array", "compressors": None},
        {"chunks": (1, 2, 8, 5), "shards": (4, 4, 8, 10), "compressors": GzipCodec()},
    ],
    ids=str,
)
def test_exports(tmp_path, settings):
    """Pixels, axes and metadata are those of the file."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))
    to_zarr(arr, tmp_path / "out.zarr", **settings)
    found = open_dataset(tmp_path / "out.zarr")
    np.testing.assert_array_equal(found.compute(), FRAMES)
    np.testing.assert_array_equal(found[1::2, 2, :, 3].compute(), FRAMES[1::2, 2, :, 3])
    assert found.description.axes == arr.description.axes
    assert found.description.nav_shape == (6, 4)
    assert found.description.metadata["mib"].keys() == arr.description.metadata["mib"].keys()


def test_levels_of_ome_zarr(tmp_path):
    """Axes have the names, scales and units of OME-Zarr; all levels are listed."""
    axes = [{"name": "c", "type": "channel"}, {"name": "y", "unit": "micrometer"}, {"name": "x"}]
    moved = {"type": "translation", "translation": [0, 1, 2]}
    datasets = [
        {
            "path": f"s{k}",
            "coordinateTransformations": [{"type": "scale", "scale": [1, 2**k, 0.5]}, moved],
        }
        for k in range(2)
    ]
    common = [{"type": "scale", "scale": [1, 2, 2]}]
    image = {"axes": axes, "datasets": datasets, "coordinateTransformations": common}
    group = zarr.create_group(tmp_path / "x.zarr", attributes={"ome": {"multiscales": [image]}})
    for k in range(2):
        group.create_array(f"s{k}", data=FRAMES[0, :, : 8 >> k])
    found = open_dataset(tmp_path / "x.zarr")
    assert found.axes == (Axis("c"), Axis("y", "µm", 2.0, 2.0), Axis("x", "", 1.0, 4.0))
    assert found.metadata["zarr"]["levels"] == ("s0", "s1")
    smaller = open_dataset(tmp_path / "x.zarr", dataset="s1")
    assert smaller.axes[1] == Axis("y", "µm", 4.0, 2.0)
    np.testing.assert_array_equal(smaller, FRAMES[0, :, :4])


SCALED = {"path": "a", "coordinateTransformations": [{"type": "scale", "scale": [0, "x"]}]}


@pytest.mark.parametrize(
    "image",
    [
        3, [], {}, {"datasets": 3}, {"datasets": [{}]}, {"datasets": [{"path": 3}]},
        {"datasets": [{"path": "a"}]}, {"datasets": [{"path": "a"}], "axes": [{"name": "y"}]},
        {"datasets": [SCALED], "axes": [{"name": "y"}, {"name": "x"}]},
        {"datasets": [SCALED | {"coordinateTransformations": []}], "axes": [{}, {}]},
    ],
)  # fmt: skip
def test_invalid_levels_are_ignored(image, tmp_path):
    group = zarr.create_group(tmp_path / "x.zarr", attributes={"ome": {"multiscales": [image]}})
    group.create_array("a", data=FRAMES[0, 0])
    found = open_dataset(tmp_path / "x.zarr", dataset="a")
    np.testing.assert_array_equal(found, FRAMES[0, 0])
    assert found.axes == (Axis("y"), Axis("x"))


def test_exported_results_keep_their_scales(tmp_path):
    path = write_nrrd(tmp_path / "volume.nrrd", FRAMES[0], fields=FIELDS)[0]
    for arr in (open_dataset(path)[1:, ::2], open_dataset(path).sum(0)):
        to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
        found = open_dataset(tmp_path / "out.zarr")
        np.testing.assert_array_equal(found.compute(), arr.compute())
        scales = {"z": 3.0, "y": 0.5 * (1 + (arr.ndim == 3)), "x": 2.0}
        assert {axis.name: axis.scale for axis in found.description.axes} == {
            name: scales[name] for name in "zyx"[3 - arr.ndim :]
        }


def test_one_chunk_is_read_for_one_chunk(tmp_path):
    """Chunks of dask are stored chunks, and read their own files only."""
    to_zarr(da.from_array(FRAMES), tmp_path / "a.zarr", chunks=(2, 2, 8, 10), shards=None)
    arr = open_dataset(tmp_path / "a.zarr", chunks=(2, 2, 8, 10))
    assert arr.description.base_shape == (2, 2, 8, 10)
    lost = tmp_path / "a.zarr" / "data" / "c" / "2" / "1" / "0" / "0"
    lost.write_bytes(lost.read_bytes())
    np.testing.assert_array_equal(arr[:2].compute(), FRAMES[:2])
    with pytest.raises(StaleFileError, match=r"2/1/0/0"):
        arr.compute()


@pytest.mark.parametrize("name", ["codecs", "index_codecs"])
def test_shards_without_all_codecs(tmp_path, name):
    """Absent codecs have zarr's defaults."""
    pixels = np.arange(24, dtype="u2").reshape(2, 3, 4)
    path, plain = tmp_path / "a.zarr", {"compressors": None, "chunks": (1, 3, 4)}
    zarr.create_array(path, data=pixels, shards=(2, 3, 4), **plain)
    document = json.loads((path / "zarr.json").read_text())
    document["codecs"][0]["configuration"].pop(name)
    (path / "zarr.json").write_text(json.dumps(document))
    np.testing.assert_array_equal(zarr.open_array(path)[:], pixels)
    np.testing.assert_array_equal(open_dataset(path).compute(), pixels)


def test_indices_of_shards_in_big_endian_order(tmp_path):
    index = [BytesCodec(endian="big"), Crc32cCodec()]
    codec = ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec()], index_codecs=index)
    pixels = np.arange(24, dtype="u2").reshape(4, 6)
    options = {"serializer": codec, "compressors": None, "chunks": (4, 6)}
    zarr.create_array(tmp_path, data=pixels, **options)
    np.testing.assert_array_equal(open_dataset(tmp_path).compute(), pixels)


def test_shards_that_only_have_an_index(tmp_path):
    codec = ShardingCodec(chunk_shape=(2,), codecs=[BytesCodec()], index_codecs=[BytesCodec()])
    options = {"serializer": codec, "compressors": None, "fill_value": 5, "dtype": "u2"}
    zarr.create_array(tmp_path, shape=(4,), chunks=(4,), **options)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(b"\xff" * 32)  # offset and length of two absent chunks
    assert zarr.open_array(tmp_path)[:].tolist() == [5] * 4
    assert open_dataset(tmp_path).compute().ravel().tolist() == [5] * 4


PACKERS = ("Blosc", "BZ2", "GZip", "LZ4", "LZMA", "Zlib", "Zstd")
PIPELINES = {
    **{name: {"compressors": (name, {})} for name in PACKERS},
    "two compressors": {"compressors": (GzipCodec(), ZstdCodec())},
    "many compressors": {"compressors": [(name, {}) for name in PACKERS]},
    "sealed": {"compressors": (ZstdCodec(), Crc32cCodec())},
    "checksums": {
        "compressors": [("CRC32", {}), ("Adler32", {}), ("Fletcher32", {}), ("JenkinsLookup3", {})]
    },
    "shuffled": {"compressors": [("Shuffle", {}), ZstdCodec()], "dtype": "i4"},
    "differences": {"filters": ("Delta", {"dtype": "i4", "astype": "i2"}), "dtype": "i4"},
    "scaled": {
        "filters": ("FixedScaleOffset", {"scale": 10, "offset": 1, "astype": "u2", "dtype": "f8"}),
        "dtype": "f8",
    },
    "rounded": {"filters": ("Quantize", {"digits": 1, "dtype": "f4"}), "dtype": "f4"},
    "rounded bits": {"filters": ("BitRound", {"keepbits": 7}), "dtype": "f4"},
    "packed bits": {"filters": ("PackBits", {}), "dtype": "bool"},
    "another type": {"filters": ("AsType", {"encode_dtype": "f8", "decode_dtype": "i2"})},
    "transposed twice": {
        "filters": [TransposeCodec(order=(2, 0, 1)), TransposeCodec(order=(0, 2, 1))]
    },
    "truths": {"dtype": "bool", "compressors": GzipCodec()},
    "big-endian": {"serializer": BytesCodec(endian="big"), "dtype": "i4"},
    "complex in Blosc": {"compressors": BloscCodec(), "dtype": "c8"},
    "shards in shards": {
        "serializer": ShardingCodec(
            chunk_shape=(2, 2, 6),
            codecs=[ShardingCodec(chunk_shape=(1, 2, 3), codecs=[BytesCodec(), GzipCodec()])],
        ),
        "compressors": None,
    },
    "transposed shards": {
        "filters": TransposeCodec(order=(1, 0, 2)),
        "serializer": ShardingCodec(
            chunk_shape=(1, 2, 3), codecs=[TransposeCodec(order=(2, 0, 1)), BytesCodec()]
        ),
        "compressors": None,
    },
}


def codecs_of(codecs):
    """Replace names and options by codecs of numcodecs."""
    if isinstance(codecs, list):
        return [*map(codecs_of, codecs)]
    if isinstance(codecs, tuple) and isinstance(codecs[0], str):
        return getattr(zarr.codecs.numcodecs, codecs[0])(**codecs[1])
    return codecs


FRAMES_AS_CHUNKS = [
    {"dtype": ">u2", "zarr_format": 2},
    {"dtype": "<u2", "zarr_format": 2, "order": "F"},
    {"dtype": ">u2", "zarr_format": 2, "order": "F"},
    {"dtype": "u2", "serializer": BytesCodec(endian="big")},
    {"dtype": "u2", "filters": [TransposeCodec(order=(1, 0, 3, 2))]},
]


@pytest.mark.parametrize("options", FRAMES_AS_CHUNKS)
def test_frames_as_chunks_in_any_order_of_bytes_and_axes(tmp_path, options):
    path, frames = tmp_path / "frames.zarr", counting_frames((3, 2, 4, 5), "u2")
    packs = numcodecs.Zlib() if "zarr_format" in options else GzipCodec()
    grid = {"shape": frames.shape, "chunks": (1, 1, 4, 5)}
    zarr.create_array(path, **grid, compressors=packs, **options)[...] = frames
    np.testing.assert_array_equal(open_dataset(path), frames)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("options", PIPELINES.values(), ids=PIPELINES)
def test_codecs(tmp_path, options):
    """Codecs and their pipelines decode as in zarr, also with absent chunks."""
    options = {"dtype": "i2", "compressors": None, **options}
    codecs = {key: codecs_of(options.pop(key)) for key in {*options} - {"dtype", "serializer"}}
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(5, 7, 9), chunks=(4, 4, 6), fill_value=1, **options, **codecs
    )
    array[1:4, 2:5] = np.arange(81).reshape(3, 3, 9) % 7
    arr = open_dataset(tmp_path / "a.zarr")
    assert arr.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(arr.compute(), array[:])
    np.testing.assert_array_equal(arr[2, 3:, ::2].compute(), array[:][2, 3:, ::2])


WRONG_CODECS = {
    "vlen-bytes": ([{"name": "vlen-bytes"}], DatasetError),
    "an unknown one": ([BYTES, {"name": "x\x00"}], DatasetError),
    "pickle": ([BYTES, {"name": "numcodecs.pickle"}], DatasetError),
    "none": ([], CorruptFileError),
    "no list": (3, CorruptFileError),
    "no names": ([{}], CorruptFileError),
    "numbers": ([3], CorruptFileError),
    "a list": ([{"name": []}], CorruptFileError),
    "two serializers": ([BYTES, BYTES], CorruptFileError),
    "a filter of bytes": (
        [BYTES, {"name": "transpose", "configuration": {"order": [0, 1]}}],
        CorruptFileError,
    ),
    "a transpose of other axes": (
        [{"name": "transpose", "configuration": {"order": [0, 2]}}, BYTES],
        CorruptFileError,
    ),
    "a transpose of none": ([{"name": "transpose"}, BYTES], CorruptFileError),
    "shards that chunks do not fill": (
        [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 4]}},
        ],
        CorruptFileError,
    ),
    "a compressed index of shards": (
        [
            {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [2, 4], "index_codecs": [BYTES, {"name": "gzip"}]},
            }
        ],
        CorruptFileError,
    ),
    "objects": (
        [{"name": "numcodecs.astype", "configuration": {"encode_dtype": "O"}}, BYTES],
        CorruptFileError,
    ),
    "text": (
        [{"name": "numcodecs.delta", "configuration": {"dtype": "u1", "astype": "S99"}}, BYTES],
        CorruptFileError,
    ),
}


@pytest.mark.parametrize(("codecs", "error"), WRONG_CODECS.values(), ids=WRONG_CODECS)
def test_invalid_pipelines_raise(tmp_path, codecs, error):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=np.ones((4, 4), "u1"))
    document = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**document, "codecs": codecs}))
    with pytest.raises(DatasetError, match=r"codec|cannot read the document") as caught:
        open_dataset(path)
    assert (type(caught.value), caught.value.path) == (error, str(path / "zarr.json"))


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(("version", "consolidated"), [(3, True), (2, True), (2, False)])
def test_data_sets_of_xarray(tmp_path, version, consolidated):
    """The largest array opens by default; even coordinates are scales, others are kept."""
    coordinates = {"t": ("t", [0.5, 0.75, 1.0], {"units": "s"}), "x": ("x", [1.0, 2.0, 4.0, 8.0])}
    stack = ("t", "y", "x"), FRAMES[0, :3, :3, :4]
    data = xr.Dataset({"stack": stack, "mean": (("y", "x"), np.ones((3, 4)))}, coordinates)
    data.to_zarr(tmp_path / "a.zarr", zarr_format=version, consolidated=consolidated)
    arr = open_dataset(tmp_path / "a.zarr", **({} if consolidated else {"dataset": "stack"}))
    np.testing.assert_array_equal(arr.compute(), stack[1])
    uneven = Axis("x", coordinates=(1.0, 2.0, 4.0, 8.0))
    assert arr.description.axes == (Axis("t", "s", 0.25, 0.5), Axis("y"), uneven)
    assert open_dataset(tmp_path / "a.zarr", dataset="mean").shape == (3, 4)
    for name, problem in (("none", "no such array"), ("../a", "invalid path of a member")):
        with pytest.raises(DatasetError, match=problem):
            open_dataset(tmp_path / "a.zarr", dataset=name)


COORDINATES = {
    "plain": {},
    "two compressors": {"compressors": [GzipCodec(), ZstdCodec()]},
    "in shards": {"chunks": (2,), "shards": (4,)},
    "few of many": {"chunks": (1,), "stop": 3},
    "longer chunks": {"chunks": (1 << 20,)},
}


@pytest.mark.parametrize("name", COORDINATES)
def test_coordinates(tmp_path, name):
    """Coordinates are read from any chunks; unwritten ones are the fill value."""
    options = dict(COORDINATES[name])
    stop = options.pop("stop", None)
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("data", data=FRAMES[0], dimension_names=["t", "y", "x"])
    t = group.create_array("t", shape=(4,), dtype="f8", fill_value=0.75, **options)
    t[:stop] = np.array([0.75, 1, 1.25, 1.5])[:stop]
    expected = Axis("t", "", 0.25, 0.75)
    if stop is not None:
        expected = Axis("t", coordinates=(0.75, 1.0, 1.25, 0.75))
    assert open_dataset(tmp_path / "a.zarr").axes[0] == expected


def large_coordinates(folder, size, **options):
    group = zarr.create_group(folder / "a.zarr")
    shape = (size, 4, 4)
    names = ["t", "y", "x"]
    group.create_array("data", shape=shape, dtype="u1", chunks=(8, 4, 4), dimension_names=names)
    return group.create_array("t", shape=(size,), dtype="f8", **options)


@pytest.mark.parametrize("kind", ["a bomb", "nothing stored", "more than memory", "a long chunk"])
def test_coordinates_take_bounded_memory(tmp_path, kind):
    """Coordinates that are too large are not read, and listed as such."""
    size = {"nothing stored": 1 << 24, "more than memory": 1 << 31}.get(kind, 8)
    chunk = {"a long chunk": 1 << 26}.get(kind, min(size, 1 << 16))
    large_coordinates(tmp_path, size, chunks=(chunk,), compressors=GzipCodec())
    place = tmp_path / "a.zarr" / "t" / "c" / "0"
    place.parent.mkdir()
    if size == 8:
        place.write_bytes(gzip.compress(bytes(1 << 26)))
    with peak_memory() as peak:
        desc = describe(tmp_path / "a.zarr")
    assert desc.axes == (Axis("t"), Axis("y"), Axis("x"))
    is_listed = kind != "a bomb"
    assert desc.metadata["zarr"].get("unread_coordinates", ()) == ("t",) * is_listed
    assert ["are too many to read" in one.text for one in desc.doubts] == [True] * is_listed
    assert peak[0] < 16 << 20


@pytest.mark.parametrize("shards", [None, (4, 4, 8, 10)])
def test_damaged_exports_raise(tmp_path, shards):
    """A flipped bit raises wherever it is, and so does a missing chunk."""
    to_zarr(da.from_array(FRAMES), tmp_path / "a.zarr", chunks=(2, 2, 8, 10), shards=shards)
    chunk = tmp_path / "a.zarr" / "data" / "c" / "1" / "0" / "0" / "0"
    whole = chunk.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 9, dtype=int):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        chunk.write_bytes(damaged)
        with refused(chunk, kind=(CorruptFileError, TruncatedFileError)):
            open_dataset(tmp_path / "a.zarr").compute()
    chunk.unlink()
    with pytest.raises(TruncatedFileError, match="a chunk is missing"):
        open_dataset(tmp_path / "a.zarr")


def test_invalid_documents_raise(tmp_path):
    document = tmp_path / "a.zarr" / "zarr.json"
    document.parent.mkdir()
    with pytest.raises(DatasetError, match="not a file"):
        open_dataset(tmp_path / "a.zarr")
    broken = [b"{", b"{}", b'{"zarr_format": 2}', b'{"zarr_format": 3, "node_type": "x"}']
    for text in (
        *broken,
        b'{"zarr_format": 3, "node_type": "array", "shape": [-1]}',
        b'{"a":' * 9999,
    ):
        document.write_bytes(text)
        with refused(document, kind=CorruptFileError):
            open_dataset(tmp_path / "a.zarr")
    document.write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    with pytest.raises(DatasetError, match="has no array of numbers; found no arrays"):
        open_dataset(tmp_path / "a.zarr")


@pytest.mark.parametrize("seed", range(6))
def test_any_chunks_may_be_missing(tmp_path, seed):
    """Absent files, and absent chunks of shards, read as the fill value."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 5)).tolist())
    inner = tuple(rng.integers(1, 4, len(shape)).tolist())
    stored = tuple(
        n * k for n, k in zip(inner, rng.integers(1, 4, len(shape)).tolist(), strict=True)
    )
    keys = {"name": ("default", "v2")[seed % 2], "separator": "/."[seed // 2 % 2]}
    shards = {"chunks": inner, "shards": stored} if seed % 3 else {"chunks": inner}
    options = {"dtype": "i2", "fill_value": -1, "chunk_key_encoding": keys, **shards}
    array = zarr.create_array(tmp_path / "a.zarr", shape=shape, **options)
    array[...] = np.where(rng.random(shape) < 0.1, counting_frames(shape, "i2"), -1)
    for path in sorted((tmp_path / "a.zarr").rglob("*")):
        if path.is_file() and path.name != "zarr.json" and rng.random() < 0.3:
            path.unlink()
    arr = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(arr.compute(), array[...])
    assert len(arr.description.files) <= 1 + array.nchunks


@pytest.mark.slow
def test_absent_chunks_cost_nothing(tmp_path):
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(10**12, 6, 8), dtype="u2", chunks=(1, 3, 8), fill_value=7
    )
    array[10**11 + 1] = FRAMES[0, 0, :6, :8]
    arr = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(arr[10**11 : 10**11 + 3].compute(), array[10**11 : 10**11 + 3])
    assert len(arr.description.layout.pieces) < 20


def document_of(shape, **more):
    """Return the document of an array in one chunk."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 7,
        "codecs": [BYTES],
        "attributes": {},
        **more,
    }


def group_of(name):
    member = {name: {"node_type": "array", "shape": [1, 1]}}
    return {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": member}}


def image_of(name):
    levels = {"multiscales": [{"datasets": [{"path": name}]}]}
    return {"zarr_format": 3, "node_type": "group", "attributes": {"ome": levels}}


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "/x", "..", ".", "", "a" * 300, "a/" * 3000])
@pytest.mark.parametrize("place", ["dataset", "member", "level", "dimension"])
def test_invalid_names_raise(tmp_path, place, name):
    """The error names the document; names of dimensions may be any text that can be encoded."""
    document = tmp_path / "zarr.json"
    made = {
        "dataset": {"zarr_format": 3, "node_type": "group"},
        "member": group_of(name),
        "level": image_of(name),
        "dimension": document_of([2, 2, 2], dimension_names=[name, "y", "x"]),
    }
    document.write_text(json.dumps(made[place]))
    options = {"dataset": name} if place == "dataset" else {}
    if place == "dimension" and name != "\ud800":
        assert open_dataset(tmp_path, **options).dims == (name or "frame", "y", "x")
        return
    with refused(document):
        open_dataset(tmp_path, **options)


def grid_of(chunks):
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}}


REFUSED = [
    *(([1] * ndim, {}, "too many axes; expected 63", DatasetError) for ndim in (64, 65, 3000)),
    *(
        ([2, 2], grid_of(chunks), r"found chunks of shape \[", CorruptFileError)
        for chunks in ([0, 2], [-1, 2], [2.0, 2], [True, 2], ["2", 2])
    ),
    *(
        ([2, 2], {"data_type": kind}, f"unsupported data type; found {kind}", DatasetError)
        for kind in ("int128", "complex256", "string")
    ),
]


@pytest.mark.parametrize(("shape", "more", "problem", "kind"), REFUSED)
def test_documents_of_format_3_that_are_refused(tmp_path, shape, more, problem, kind):
    (tmp_path / "zarr.json").write_text(json.dumps(document_of(shape, **more)))
    with refused(tmp_path / "zarr.json", problem, kind):
        open_dataset(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"'])
def test_attributes_that_are_no_object_raise(tmp_path, text):
    zarr.create_array(tmp_path, data=np.ones((4, 4), "u1"), zarr_format=2)
    (tmp_path / ".zattrs").write_text(text)
    with refused(tmp_path / ".zattrs", "not an object", CorruptFileError):
        open_dataset(tmp_path)


def test_most_axes(tmp_path):
    (tmp_path / "zarr.json").write_text(json.dumps(document_of([1] * 63)))
    assert open_dataset(tmp_path).compute().ravel().tolist() == [7]


def test_too_many_chunks_raise(tmp_path):
    """Such an array can be described, but not opened."""
    (tmp_path / "zarr.json").write_text(json.dumps(document_of([2**55, 4, 4])))
    assert describe(tmp_path).nav_shape == (2**55,)
    with refused(tmp_path / "zarr.json", "too many chunks", TilingError):
        open_dataset(tmp_path)


def rewritten(path, **mark):
    """Change the metadata of an export; describe it."""
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["dask_tiled"] |= mark
    (path / "zarr.json").write_text(json.dumps(document))
    return describe(path)


def deep(levels):
    return {"a": deep(levels - 1)} if levels else 1


AXIS = {"name": "a", "units": "nm", "scale": 2.0, "offset": 1.0}


@pytest.mark.parametrize(
    "axes",
    [
        [{**AXIS, "scale": 10**400}] * 2, [{**AXIS, "scale": float("nan")}] * 2,
        [{**AXIS, "scale": 0}] * 2, [{"units": "nm"}] * 2, [[], "x"], {"a": 1},
    ],
)  # fmt: skip
def test_invalid_axes_are_ignored(tmp_path, axes):
    to_zarr(da.zeros((4, 5)), tmp_path / "a.zarr", layout="array")
    assert rewritten(tmp_path / "a.zarr", axes=axes).axes == (Axis("y"), Axis("x"))


@pytest.mark.parametrize("size", [4, 3])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("labels", [*"abcd"]), ("colours", ["#ff0000", "", "#00ff00", "#0000ff"]),
        ("coordinates", [0.0, 1.0, 4.0, 9.0]),
    ],
)  # fmt: skip
def test_lists_of_an_axis_have_its_length(tmp_path, name, values, size):
    to_zarr(da.zeros((4, 5)), tmp_path / "a.zarr", layout="array")
    told = {"units": "", "scale": 1.0, "offset": 0.0, name: values[:size]}
    more = {"coordinate_units": "s"} if name == "coordinates" else {}
    kept = {name: tuple(values), **more} if size == 4 else {}
    axes = rewritten(tmp_path / "a.zarr", axes=[told | more, told]).axes
    assert axes == (Axis("y", **kept), Axis("x"))


def test_invalid_facts_are_ignored(tmp_path):
    """Facts have known names, units and values; NaN keeps descriptions equal."""
    to_zarr(da.zeros((4, 5)), tmp_path / "a.zarr", layout="array")
    facts = {
        "beam_energy": {"value": True, "unit": "V", "where": ["a"]},
        "exposure_time": {"value": float("nan"), "unit": "s", "where": ["a"]},
        "camera_length": {"value": 10**400, "unit": "m", "where": ["a"]},
        "convergence_angle": {"value": 3.0, "unit": "deg", "where": ["a"]},
        "detector": {"value": "\x1b[31m", "unit": "", "where": ["a"]},
        "date": {"value": "yesterday", "unit": "", "where": ["a"]},
        "gain": [1],
        "defocus": {"value": 0.0, "unit": "m", "where": ["a", "b"]},
    }
    desc = rewritten(tmp_path / "a.zarr", instrument=facts, metadata={"x": {"y": float("nan")}})
    assert dict(desc.instrument) == {"defocus": (0.0, "m", ("a", "b"))}
    assert pickle.loads(pickle.dumps(desc)) == desc


def test_deeply_nested_documents_raise(tmp_path):
    to_zarr(da.zeros((4, 5)), tmp_path / "a.zarr", layout="array")
    with pytest.raises(CorruptFileError, match="nested levels"):
        rewritten(tmp_path / "a.zarr", metadata=deep(300))


# Format 2


OLD = {
    "defaults": {},
    "truths": {"dtype": "bool", "fill_value": True},
    "complex": {"dtype": ">c8", "fill_value": 1 + 2j},
    "not a number": {"dtype": "<f4", "fill_value": np.nan},
    "no fill value": {"fill_value": None},
    "columns first, packed bits": {
        "dtype": "bool",
        "order": "F",
        "filters": [numcodecs.PackBits()],
    },
    "uncompressed, columns first": {"compressors": None, "order": "F", "dtype": ">u2"},
    "folders": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "shuffled": {"filters": [numcodecs.Shuffle(2), numcodecs.Zlib()], "compressors": None},
    "differences": {
        "dtype": ">i4",
        "filters": [numcodecs.Delta(">i4", "<i2")],
        "compressors": numcodecs.LZ4(),
    },
    "scaled": {"dtype": "f8", "filters": [numcodecs.FixedScaleOffset(1, 10, "f8", ">u2")]},
    "Blosc": {"compressors": numcodecs.Blosc("lz4", shuffle=2)},
    "gzip": {"compressors": numcodecs.GZip()},
    "Zstandard": {"compressors": numcodecs.Zstd()},
}


def old_array(path, **options):
    """Write an array of format 2 with absent chunks."""
    options = {"dtype": "u2", "fill_value": 1, "zarr_format": 2, **options}
    array = zarr.create_array(path, shape=(5, 7, 9), chunks=(2, 3, 4), **options)
    array[1:3, 2:5] = np.arange(54).reshape(2, 3, 9) % 7
    return array


@pytest.mark.parametrize("name", OLD)
def test_format_2(tmp_path, name):
    """Arrays equal zarr's, also with either separator from a server that lists nothing."""
    array = old_array(tmp_path / "a.zarr", **OLD[name])
    expected = array[:]
    arr = open_dataset(tmp_path / "a.zarr")
    assert arr.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(arr.compute(), expected)
    np.testing.assert_array_equal(arr[2, 3:, ::2].compute(), expected[2, 3:, ::2])
    if name not in {"defaults", "folders"}:
        return
    with serving(tmp_path) as server:
        server.lists = False
        for path in ("a.zarr", "a.zarr/.zarray"):
            remote = open_dataset(server.url(tmp_path / path))
            np.testing.assert_array_equal(remote.compute(), expected)


def test_requests_for_chunks_are_bounded(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", shape=(10_000_001, 1), chunks=(1, 1), dtype="u1")
    with serving(tmp_path) as server:
        server.lists = False
        with pytest.raises(DatasetError, match=r"too many chunks; expected 10000000; found"):
            describe(server.url(tmp_path / "a.zarr"))


UNREAD = {
    "objects": ({"dtype": "|O"}, "unsupported data type; found \\|O"),
    "records": ({"dtype": [["a", "<i4"]]}, "unsupported data type"),
    "dates": ({"dtype": "<M8[ns]"}, "unsupported data type"),
    "pickles": ({"filters": [{"id": "pickle"}]}, "unsupported codec; .* found numcodecs.pickle"),
    "categories": ({"filters": [{"id": "categorize"}]}, "unsupported codec"),
    "another version": ({"zarr_format": 1}, "invalid zarr 2 metadata; found zarr_format 1"),
    "another order": ({"order": "K"}, "invalid zarr 2 metadata"),
    "a compressor without a name": ({"compressor": {}}, "invalid zarr 2 metadata"),
    "no shape": ({"shape": None}, "zarr cannot read the document"),
    "no type": ({"dtype": "abc"}, "invalid zarr 2 metadata"),
    "a type of many digits": ({"dtype": "9" * 5000}, "invalid zarr 2 metadata"),
    "a filter between compressors": (
        {"filters": [{"id": "zlib"}, {"id": "delta", "dtype": "u2"}]},
        "invalid codecs",
    ),
}


@pytest.mark.parametrize(("change", "problem"), UNREAD.values(), ids=UNREAD)
def test_unsupported_documents_of_format_2_raise(tmp_path, change, problem):
    old_array(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with refused(path, problem):
        open_dataset(tmp_path / "a.zarr")


def test_shards_too_short_for_their_index_raise(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(8,), chunks=(2,), shards=(8,), dtype="u2")[...] = 1
    document = json.loads((path / "zarr.json").read_text("utf8"))
    document["shape"] = [1 << 34]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 34]
    (path / "zarr.json").write_text(json.dumps(document), "utf8")
    with pytest.raises(TruncatedFileError, match="a shard is too short"):
        describe(path)
