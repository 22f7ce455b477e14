"""FFCV files: values that FFCV wrote, sets of files, objects, and damage."""

import hashlib
import json
from itertools import chain

import numpy as np
import pytest
from checks import refuses

from dask_tiled import CorruptFileError, DatasetError, ImageField, describe, open_dataset, to_beton
from dask_tiled.reading.buffered import Buffered

pytestmark = pytest.mark.usefixtures("synchronous")
REAL = ("all_fields_idx", "all_fields_w1", "dtypes_page4M", "scalars_only")


def equals(found, wanted):
    """Compare a value with the recorded value that FFCV read."""
    if isinstance(wanted, dict) and "shape" in wanted:
        stored = np.ascontiguousarray(found).astype(wanted["dtype"])
        same = hashlib.sha256(stored.tobytes()).hexdigest() == wanted["sha256"]
        return same and list(found.shape) == wanted["shape"]
    if isinstance(wanted, dict) and "hex" in wanted:
        return found.hex() == wanted["hex"]
    return (json.loads(found) if isinstance(found, str) else found) == wanted


@pytest.mark.parametrize("name", REAL)
def test_real_files_equal_ffcv(data, name):
    record = json.loads((data / "beton" / f"{name}.json").read_text())
    path = data / "beton" / f"{name}.beton"
    for number, key in enumerate(record["samples"][0]):
        arr = open_dataset(path, field=number)
        assert arr.description.dims[0] == "sample"
        values = arr.compute()
        assert len(values) == record["n"]
        assert all(map(equals, values, [sample[key] for sample in record["samples"]]))
        assert equals(arr[-1].compute(), record["samples"][-1][key])


def test_description_lists_fields(data):
    desc = describe(data / "beton" / "all_fields_w1.beton", field="byt")
    facts = desc.metadata["beton"]
    assert facts["field"] == "byt"
    assert facts["fields"]["arr"] == "array of float32, shape (3, 4)"
    assert list(facts["fields"]) == ["flt", "int", "img", "byt", "arr", "jsn", "tch"]
    refuses(data / "beton" / "all_fields_w1.beton", "'tch'", field="toch")


def write(path, **fields):
    types = fields.pop("types", None)
    to_beton(path, fields, types, page_size=1 << 21, progress=False)
    return path


class Samples(list):
    """A data set of tuples."""


def test_empty_bytes_do_not_overlap_neighbours(tmp_path):
    """FFCV itself reads unwritten memory for arrays beside empty bytes."""
    arrays = [np.full((3,), i, "u2") for i in range(6)]
    texts = [b"" if i % 2 else bytes([i]) * i for i in range(6)]
    samples = Samples(zip(texts, arrays, strict=True))
    types = {"text": "bytes", "array": ("u2", (3,))}
    to_beton(tmp_path / "a.beton", samples, types, progress=False)
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.beton", field="array"), arrays)
    found = open_dataset(tmp_path / "a.beton", field="text").compute()
    assert found.dtype == object
    assert found.tolist() == texts


@pytest.mark.parametrize("mode", ["raw", "jpg", "proportion"])
def test_images_of_one_size_are_pixels(tmp_path, mode):
    image = np.add.outer(np.arange(24), np.arange(32)).astype("u1")
    images = np.stack([image, image + 20, image + 40])[..., None].repeat(3, 3)
    types = {"image": ImageField(mode, quality=95)}
    arr = open_dataset(write(tmp_path / "a.beton", image=images, types=types))
    assert (arr.shape, arr.dtype) == ((3, 24, 32, 3), np.uint8)
    assert np.abs(arr.compute().astype(int) - images).max() <= (0 if mode == "raw" else 6)
    np.testing.assert_array_equal(arr[1, 3:9], arr.compute()[1, 3:9])


def test_images_of_several_sizes_are_objects(tmp_path):
    images = [np.full((4 + i, 9, 3), 30 * i, "u1") for i in range(5)]
    for mode in ("raw", "jpg"):
        path = tmp_path / f"{mode}.beton"
        samples = Samples((image,) for image in images)
        to_beton(path, samples, {"image": ImageField(mode)}, progress=False)
        arr = open_dataset(path)
        assert (arr.shape, arr.dtype) == ((5,), object)
        for found, image in zip(arr.compute(), images, strict=True):
            np.testing.assert_allclose(found, image, atol=0 if mode == "raw" else 2)
        np.testing.assert_array_equal(arr[3].compute(), arr.compute()[3])


def test_files_are_one_array(tmp_path):
    parts = np.split(np.arange(70, dtype="i4").reshape(10, 7), [3, 3, 8])
    texts = [[{"part": k, "row": i} for i in range(len(part))] for k, part in enumerate(parts)]
    for k, (part, text) in enumerate(zip(parts, texts, strict=True)):
        samples = Samples(zip(part, text, strict=True))
        types = {"x": ("i4", (7,)), "text": "json"}
        to_beton(tmp_path / f"{k}.beton", samples, types, progress=False)
    arr = open_dataset(tmp_path / "*.beton", field="x")
    np.testing.assert_array_equal(arr, np.concatenate(parts))
    found = open_dataset(tmp_path / "*.beton", field="text").compute()
    assert [json.loads(text) for text in found] == list(chain.from_iterable(texts))
    write(tmp_path / "9.beton", x=np.zeros((2, 7), "i8"))
    with pytest.raises(DatasetError, match="different fields"):
        open_dataset(tmp_path / "*.beton")


def test_file_without_samples_is_an_empty_array(tmp_path):
    path = write(tmp_path / "a.beton", x=np.zeros((0, 5), "f4"), label=np.zeros(0, "i8"))
    assert open_dataset(path).compute().shape == (0, 5)
    assert open_dataset(path, field="label").compute().shape == (0,)
    assert open_dataset(path, field="label").dtype == np.int64


def test_scattered_samples_are_read_once_in_file_order(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 300, 2000)
    values = rng.integers(0, 1 << 15, (2000, 40)).astype("u2")
    samples = Samples(zip(values, map(bytes, lengths.tolist()), strict=True))
    to_beton(tmp_path / "a.beton", samples, {"x": ("u2", (40,)), "pad": "bytes"}, progress=False)
    arr = open_dataset(tmp_path / "a.beton", io="buffered")
    read, windows = [], Buffered.windows

    def reading(self, ranges, limit=None):
        for window in windows(self, ranges, limit):
            read.append(ranges.offsets)
            yield window

    monkeypatch.setattr(Buffered, "windows", reading)
    order = rng.integers(0, 2000, 5000)
    np.testing.assert_array_equal(arr[order], values[order])
    assert 0 < len(read) < 10
    assert all((np.diff(offsets) >= 0).all() for offsets in read)


def numbers_in(texts):
    return np.array([json.loads(text)["n"] for text in texts], "i8")


def test_array_of_objects_works_in_dask(tmp_path):
    samples = Samples(({"n": i},) for i in range(200))
    to_beton(tmp_path / "a.beton", samples, {"meta": "json"}, progress=False)
    arr = open_dataset(tmp_path / "a.beton", chunks=50)
    values = arr.map_blocks(numbers_in, dtype="i8")
    assert values.sum().compute() == sum(range(200))
    assert arr[[150, 3]].compute().tolist() == ['{"n": 150}', '{"n": 3}']
    again = open_dataset(tmp_path / "a.beton", chunks=50)
    assert again.name == arr.name


def test_chunks_of_objects_are_sized_by_their_bytes(tmp_path):
    samples = Samples((bytes(10_000),) for _ in range(1000))
    to_beton(tmp_path / "a.beton", samples, {"text": "bytes"}, progress=False)
    import dask

    with dask.config.set({"array.chunk-size": "1 MiB"}):
        arr = open_dataset(tmp_path / "a.beton")
    assert 8 <= arr.npartitions <= 32


def damaged(path, at, data):
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("at", "data", "problem"),
    [
        (0, b"\3", "version"),
        (4, b"\1", "page size"),
        (8, b"\xff" * 7, "beyond the file"),
        (24, b"\xff", "a custom type"),
        (24 + 17, b"\xff" * 8, "larger than a page"),
        (24 + 17 + 264, b"[[]]", "an invalid type"),
        (24 + 17 + 256, b'\x0d\0\0\0\0\0\0\0[["","f4,("]]', "an invalid type"),
        (24 + 17 + 256, b'\x0f\0\0\0\0\0\0\0[{"a":1,"b":2}]', "an invalid type"),
        (24 + 17, b"\0" * 8 + b"\0" * 7 + b"\x80", "larger than a page"),
        (24 + 1041, b"\xff" * 8, "outside of the pages"),
    ],
)
def test_damaged_file_raises(tmp_path, at, data, problem):
    path = write(tmp_path / "a.beton", x=np.zeros((3, 4), "f4"))
    with pytest.raises(DatasetError, match=problem) as caught:
        open_dataset(damaged(path, at, data), "beton")
    assert caught.value.path == str(path)


def test_damaged_jpeg_raises(tmp_path):
    images = np.zeros((3, 16, 16, 3), "u1")
    path = write(tmp_path / "a.beton", image=images, types={"image": ImageField("jpg")})
    arr = open_dataset(damaged(path, 1 << 21, b"\0" * 40))
    with pytest.raises(CorruptFileError, match="sample 0"):
        arr.compute()
    assert arr[1].compute().max() <= 1
