"""LiberTEM: `from_libertem` takes its parameters, and its analyses run on opened arrays."""

import inspect

import h5py
import numpy as np
import pytest
import tifffile
from libertem_reader import libertem_reads

from dask_tiled import DatasetError, describe, from_libertem, open_dataset
from dask_tiled.bridges.libertem import COMMON, EMPTY, INSTEAD, OWN
from dask_tiled.testing import counting_frames, write_frms6, write_mib, write_raw, write_tvips

pytestmark = pytest.mark.filterwarnings("ignore")  # LiberTEM's imports warn

FRAMES = counting_frames((6, 8, 16, 20), "uint16")
REAL = {
    "blo": {"path": "blo/test2.blo"},
    "dm": {"path": "dm/ncempy/dmTest_3D_int16_64,65,66.dm4"},
    "empad": {"path": "empad/scan_x4_y4.raw", "nav_shape": (4, 4)},
    "hdf5": {"path": "hdf5/emd/py4DSTEM_size2x3x4x5.h5"},
    "mib": {
        "path": "mib/Merlin_Single_Quad/Single_9_Frame_CounterDepth_12_Rows_256.mib",
        "nav_shape": (2, 4),
        "sync_offset": 1,
        "disable_glob": True,
    },
    "npy": {"path": "npy/lfw_subset.npy"},
    "ser": {"path": "ser/old/64x64x5_TEM_preview_1.ser"},
}


def same(found, expected):
    """Compare with frames that LiberTEM read; NaN marks frames missing there."""
    np.testing.assert_array_equal(found, np.nan_to_num(expected))


@pytest.mark.slow
@pytest.mark.parametrize("kind", REAL)
def test_real_files_with_its_parameters(data, tmp_path, kind):
    params = REAL[kind] | {"path": str(data / REAL[kind]["path"])}
    theirs = libertem_reads(tmp_path, {kind: (kind, params)})[kind]["frames"]
    found = from_libertem(kind, **params)
    assert found.shape == theirs.shape
    same(found, theirs)


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "scan.raw", FRAMES)


@pytest.mark.slow
def test_deprecated_names_and_other_frame_shapes(raw, tmp_path):
    params = {"path": str(raw), "dtype": "<u2"}
    jobs = {
        "shapes": params | {"scan_size": (6, 8), "detector_size": (16, 20)},
        "flat": params | {"nav_shape": (4, 5), "sig_shape": (320,), "sync_offset": -3},
    }
    theirs = libertem_reads(tmp_path, {name: ("raw", one) for name, one in jobs.items()})
    for name, one in jobs.items():
        same(from_libertem("raw", **one), theirs[name]["frames"])
    mib = write_mib(tmp_path / "scan.mib", FRAMES)
    reshaped = {"path": str(mib), "nav_shape": (6, 8), "sig_shape": (8, 40)}
    theirs = libertem_reads(tmp_path, {"mib": ("mib", reshaped)})["mib"]["frames"]
    same(from_libertem("mib", **reshaped), theirs)


def test_dark_frames(tmp_path):
    frames = FRAMES[..., :8, :8]
    path, *_ = write_frms6(tmp_path / "a", frames, dark=frames[0, :3], scan_shape=(6, 8))
    for enable in (None, False):
        found = from_libertem("frms6", path, enable_offset_correction=enable)
        expected = open_dataset(path, corrections=None if enable is False else "dataset")
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_offsets_count_from_the_first_frame(tmp_path):
    """A sync_offset counts from a TVIPS file's first frame, though its scan begins later."""
    frames = counting_frames((25, 6, 8), "u2")
    places = [divmod(k, 5) for k in range(20)]
    path, *_ = write_tvips(
        tmp_path / "scan", frames, positions=[(5, 5)] * 3 + places + [(0, 0)] * 2, frame_header=120
    )
    assert describe(path).metadata["tvips"]["scan_start"] == 3
    jobs = {
        f"{offset}": ("tvips", {"path": str(path), "nav_shape": (4, 5), "sync_offset": offset})
        for offset in (None, 0, 2, 4, -2)
    }
    theirs = libertem_reads(tmp_path, jobs)
    for name, (kind, params) in jobs.items():
        same(from_libertem(kind, **params), theirs[name]["frames"])


def test_auto(tmp_path):
    """ "auto" detects the format, and takes its parameters."""
    frames = FRAMES[..., :8, :8]
    path, *_ = write_frms6(tmp_path / "a", frames, dark=frames[0, :3], scan_shape=(6, 8))
    np.testing.assert_array_equal(from_libertem("auto", path), from_libertem("frms6", path))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = FRAMES[0]
        file["y"] = FRAMES[1]
    np.testing.assert_array_equal(from_libertem("auto", tmp_path / "a.h5", ds_path="y"), FRAMES[1])
    tiff = tmp_path / "a.tif"  # not supported by LiberTEM
    tifffile.imwrite(tiff, FRAMES[0])
    np.testing.assert_array_equal(from_libertem("auto", tiff, nav_shape=(8,)), FRAMES[0])


class DirectBackend:
    """Backend with the class name of one of LiberTEM's."""


def test_backends(raw):
    params = {"path": raw, "dtype": "u2", "nav_shape": (6, 8), "sig_shape": (16, 20)}
    for given in ({"io_backend": None}, {"io_backend": DirectBackend()}, {"enable_direct": True}):
        np.testing.assert_array_equal(from_libertem("raw", **params, **given), FRAMES)
    with pytest.raises(DatasetError, match=r"invalid io_backend.*MMapBackend.*found str"):
        from_libertem("raw", **params, io_backend="mmap")


def test_parameters_without_a_counterpart(raw):
    """Errors name the parameter and the alternative."""
    for name, hint in INSTEAD.items():
        with pytest.raises(DatasetError) as caught:
            from_libertem("raw", raw, **{name: 3})
        assert f"LiberTEM's {name} has no equivalent" in str(caught.value)
        assert caught.value.hint == hint
    shapes = {"dtype": "u2", "nav_shape": (6, 8), "sig_shape": (16, 20)}
    for kind, params, said in (
        ("raw", {"nav_shap": 3}, "raw has no parameter 'nav_shap'.*'nav_shape'"),
        ("mib", {"ds_path": "x"}, "mib has no parameter 'ds_path'"),
        ("mbi", {}, "unknown LiberTEM data set.*mean 'mib'"),
        ("memory", {}, "use the array itself"),
        ("raw", shapes | {"scan_size": (6, 8)}, "scan_size and nav_shape are the same"),
        (
            "frms6",
            {"enable_offset_correction": False, "gain_map_path": "x"},
            "with the dark frames",
        ),
        ("blo", {"endianess": ">"}, "endianess"),
        ("npy", {"files": "x"}, "no parameter 'files'"),
        ("k2is", {"sync_offset": 0}, "from the first frame of K2IS files"),
    ):
        with pytest.raises(DatasetError, match=said):
            from_libertem(kind, raw, **params)
    with pytest.raises(DatasetError, match="path is missing"):
        from_libertem("mib")
    mib = write_mib(raw.with_suffix(".mib"), FRAMES)
    with pytest.raises(DatasetError, match=r"a different number of pixels.*\(16, 20\).*\(16, 21\)"):
        from_libertem("mib", mib, sig_shape=(16, 21))


@pytest.mark.thorough
def test_all_parameters_of_libertem_are_listed():
    pytest.importorskip("libertem")
    from libertem.io.dataset import filetypes, get_dataset_cls
    from libertem.io.dataset.dm import StackedDMDataSet
    from libertem.io.dataset.dm_single import SingleDMDataSet

    assert filetypes.keys() == {*OWN, *EMPTY}
    for kind in filetypes.keys() - EMPTY:
        classes = (StackedDMDataSet, SingleDMDataSet) if kind == "dm" else (get_dataset_cls(kind),)
        names = {name for one in classes for name in inspect.signature(one.__init__).parameters}
        names -= {"self", "path", "files"}
        assert names - INSTEAD.keys() == COMMON | OWN[kind], kind


@pytest.mark.slow
def test_analyses_on_arrays(tmp_path):
    """Sums and masks equal those on LiberTEM's own data set."""
    from libertem.api import Context
    from libertem.udf.masks import ApplyMasksUDF
    from libertem.udf.sum import SumUDF

    path = write_mib(tmp_path / "scan.mib", FRAMES)
    arr = open_dataset(path, nav_shape=(6, 8), chunks=(2, 8, 16, 20))
    masks = np.random.default_rng(0).random((3, 16, 20)).astype("f4")
    with Context.make_with("inline") as context:
        own = context.load("mib", path=str(path), nav_shape=(6, 8))
        wrapped = context.load("dask", dask_array=arr, sig_dims=2, min_size=1)
        assert len(list(wrapped.get_partitions())) == 3
        under = ApplyMasksUDF(mask_factories=lambda: masks, mask_count=3)
        found, expected = (context.run_udf(ds, under)["intensity"].data for ds in (wrapped, own))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        found = context.run_udf(wrapped, SumUDF())["intensity"].data
        np.testing.assert_array_equal(found, FRAMES.sum(axis=(0, 1)))
