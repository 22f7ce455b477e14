"""NumPy's archives, compared with numpy.load."""

import zipfile

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, open_dataset
from dask_tiled.testing import check_format, counting_frames

FRAMES = counting_frames((3, 4, 5, 7), ">u2")
SAVE = {"stored": np.savez, "deflated": np.savez_compressed}


@pytest.fixture(params=SAVE)
def save(request):
    return SAVE[request.param]


@pytest.mark.parametrize(("dtype", "order"), [("<u2", "C"), (">f4", "F"), ("c8", "C"), ("?", "F")])
def test_arrays_equal_those_of_numpy(tmp_path, save, dtype, order):
    save(tmp_path / "a.npz", x=np.asarray(FRAMES.astype(dtype), order=order))
    with np.load(tmp_path / "a.npz") as told:
        expected = told["x"].astype(np.dtype(dtype).newbyteorder("="))
    assert dask_tiled.describe(tmp_path / "a.npz").format == "npz"
    check_format(tmp_path / "a.npz", expected)


def test_several_arrays(tmp_path, save):
    """The largest with two axes is the default; others have names, and are listed."""
    arrays = {"n": np.arange(4000), "small": np.eye(3), "scan": FRAMES, "text": np.array(["a"])}
    save(tmp_path / "a.npz", **arrays)
    assert open_dataset(tmp_path / "a.npz").description.metadata["npz"]["dataset"] == "scan"
    for name in ("n", "small", 1):
        expected = arrays["small" if name == 1 else name]
        found = open_dataset(tmp_path / "a.npz", dataset=name)
        np.testing.assert_array_equal(found, expected)
    assert set(dask_tiled.open_datasets(tmp_path / "a.npz")) == {"small", "scan"}
    refuses(tmp_path / "a.npz", "no such dataset", dataset="other")


def test_arrays_of_one_size_are_a_doubt(tmp_path):
    np.savez(tmp_path / "a.npz", FRAMES, FRAMES + 1)
    desc = dask_tiled.describe(tmp_path / "a.npz")
    assert [one.code for one in desc.doubts] == ["default-dataset"]
    assert not dask_tiled.describe(tmp_path / "a.npz", dataset="arr_1").doubts
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.npz", dataset=1), FRAMES + 1)


def test_frames_of_another_shape(tmp_path, save):
    save(tmp_path / "a.npz", x=FRAMES)
    found = open_dataset(tmp_path / "a.npz", sig_shape=(35,), nav_shape=(2, 6))
    np.testing.assert_array_equal(found, FRAMES.reshape(2, 6, 35))


def test_stored_arrays_are_read_in_place(tmp_path):
    """Only the bytes of the requested frames are read."""
    np.savez(tmp_path / "a.npz", x=FRAMES)
    layout = dask_tiled.describe(tmp_path / "a.npz").layout
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = archive.read("x.npy")
    offset = (tmp_path / "a.npz").read_bytes().find(content) + content.find(FRAMES.tobytes())
    assert layout.pieces.rows().offset.tolist() == [offset]


def test_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(DatasetError, match=r"a\.npz.*pickles, which are never opened"):
        open_dataset(tmp_path / "a.npz")


def test_archives_without_arrays_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.txt", "text")
    refuses(tmp_path / "a.npz", "no array", CorruptFileError, format="npz")


def test_changed_bytes_of_a_deflated_array_raise(tmp_path):
    """The checksum of the member tells."""
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).bytes(5000))
    path = tmp_path / "b.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 255, (4, 30, 30), "u1"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"b\.npz"):
        open_dataset(path).compute(scheduler="synchronous")


def test_headers_that_promise_more_than_the_member_raise(tmp_path, save):
    save(tmp_path / "a.npz", x=np.zeros((3, 4, 5), "u1"))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = archive.read("x.npy").replace(b"(3, 4, 5)", b"(9, 9, 9)")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(TruncatedFileError, match="ends inside its array"):
        open_dataset(tmp_path / "b.npz")
