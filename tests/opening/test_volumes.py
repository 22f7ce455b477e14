"""`open_volumes`: order of files, pixels, and reductions."""

import gzip
import pickle

import dask
import numpy as np
import pytest
from checks import on_tiles, peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import (
    DatasetError,
    DoubtWarning,
    StaleFileError,
    TiledArray,
    TilingRequest,
    open_volumes,
)
from dask_tiled.testing import (
    counting_frames,
    write_gis,
    write_mib,
    write_mrc,
    write_npy,
    write_raw,
)

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (4, 6, 8)
PIXELS = np.random.default_rng(0).integers(0, 1000, (12, *SHAPE)).astype("u2")
NAMES = ("sum", "mean", "min", "max", "var", "std", "any", "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("volumes")
    for number, volume in enumerate(PIXELS):
        write_npy(folder / f"v{number}.npy", volume)
    return folder


def test_pattern_sorts_naturally(folder):
    arr = open_volumes(folder / "v*.npy")
    assert type(arr) is TiledArray
    assert (arr.shape, arr.dtype) == (PIXELS.shape, PIXELS.dtype)
    assert arr.description.dims == ("volume", "frame", "y", "x")
    assert (arr.description.nav_shape, arr.description.sig_shape) == ((12,), SHAPE)
    np.testing.assert_array_equal(arr.compute(), PIXELS)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr))[3, 1:].compute(), PIXELS[3, 1:])


def test_list_keeps_its_order(folder):
    numbers = [7, 2, 11, 2]
    arr = open_volumes([folder / f"v{number}.npy" for number in numbers])
    np.testing.assert_array_equal(arr.compute(), PIXELS[numbers])
    np.testing.assert_array_equal(arr[1::2, ::2, 3].compute(), PIXELS[numbers][1::2, ::2, 3])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [None, (5, 2, 6, 8)], ids=str)
def test_reductions_run_on_tiles(folder, name, chunks):
    arr = open_volumes(folder / "v*.npy", chunks=chunks)
    for axis in (0, (1, 2, 3), None):
        found, expected = getattr(arr, name)(axis=axis), getattr(PIXELS, name)(axis=axis)
        assert found.dtype == expected.dtype
        assert on_tiles(found)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-10)


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_tilings_of_volumes(folder, data):
    """Any tiling of frames with three axes gives the same results."""
    by = data.draw(st.sampled_from(["tile", "frame", "chunk", "pixel"]))
    depth = data.draw(st.none() | st.integers(1, 12))
    request = TilingRequest(by, depth=depth, nbytes=data.draw(st.none() | st.integers(400, 5000)))
    with dask.config.set({"array.chunk-size": data.draw(st.integers(400, 5000))}):
        arr = open_volumes(folder / "v*.npy", tiling=request)
    np.testing.assert_array_equal(arr.compute(), PIXELS)
    np.testing.assert_array_equal(arr.sum(0).compute(), PIXELS.sum(0))
    doubled = dask_tiled.map_tiles(lambda tile, _: tile * 2, arr, tiling=request)
    np.testing.assert_array_equal(doubled.compute(), PIXELS * 2)
    greatest = dask_tiled.map_tiles(lambda tile, _: tile.max(axis=(1, 2, 3)), arr)
    np.testing.assert_array_equal(greatest.compute(), PIXELS.max(axis=(1, 2, 3)))
    masks = np.ones((2, *SHAPE), "f4")
    sums = dask_tiled.tiles.apply_masks(arr, masks)
    np.testing.assert_allclose(sums.compute()[:, 1], PIXELS.sum((1, 2, 3)), rtol=1e-6)


def test_scans(tmp_path):
    """Volumes may be scans, of quad detectors with turned quarters."""
    scans = PIXELS[:, :, :, None].repeat(64, 3).repeat(2, 2)[:3, :, :, :, 0]
    scans = np.broadcast_to(scans[..., None], (3, 4, 12, 64, 64)).copy()
    for number, scan in enumerate(scans):
        write_mib(tmp_path / f"scan{number}.mib", scan, kind="U16", quad=True)
    arr = open_volumes(tmp_path / "scan*.mib", nav_shape=(4, 12))
    assert arr.shape == scans.shape
    np.testing.assert_array_equal(arr.compute(), scans)
    np.testing.assert_array_equal(arr.sum(0).compute(), scans.sum(0))


def test_raw_and_other_options(tmp_path):
    for number, volume in enumerate(PIXELS[:3]):
        write_raw(tmp_path / f"{number}.raw", volume)
    options = {"dtype": "u2", "sig_shape": SHAPE[1:], "nav_shape": (2, 2)}
    arr = open_volumes(tmp_path / "*.raw", "raw", **options, io="buffered", chunks=-1)
    np.testing.assert_array_equal(arr.compute(), PIXELS[:3].reshape(3, 2, 2, 6, 8))
    fewer = open_volumes(tmp_path / "*.raw", "raw", dtype="u2", sig_shape=SHAPE[1:])
    np.testing.assert_array_equal(fewer.compute(), PIXELS[:3])


def test_compressed_volumes_are_not_split(tmp_path):
    volumes = PIXELS[:5].astype("i2")
    for number, volume in enumerate(volumes):
        path = tmp_path / f"{number}.mrc"
        write_mrc(path, volume)
        path.with_suffix(".mrc.gz").write_bytes(gzip.compress(path.read_bytes()))
    with dask.config.set({"array.chunk-size": "500 B"}):
        arr = open_volumes(tmp_path / "*.mrc.gz")
    assert arr.chunks[1:] == ((4,), (6,), (8,))
    np.testing.assert_array_equal(arr.compute(), volumes)
    np.testing.assert_array_equal(arr.sum(0).compute(), volumes.sum(0))
    difference = arr[1, 2:] - arr[3, 2:]
    np.testing.assert_array_equal(difference.compute(), volumes[1, 2:] - volumes[3, 2:])


def test_chunked_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    options = [{"chunks": (2, 3, 8), "compression": "gzip"}, {"chunks": (2, 3, 8), "shuffle": True}]
    for number, volume in enumerate(PIXELS[:4]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("data", data=volume, **options[number % 2])
    arr = open_volumes(tmp_path / "*.h5")
    np.testing.assert_array_equal(arr.compute(), PIXELS[:4])
    np.testing.assert_array_equal(arr[1:, 1:3, 2:5, 3].compute(), PIXELS[1:4, 1:3, 2:5, 3])
    np.testing.assert_array_equal(arr.max(0).compute(), PIXELS[:4].max(0))


def test_volumes_of_several_files(tmp_path):
    """A pattern that matches all files of a volume lists it once; a list may repeat it."""
    for number, volume in enumerate(PIXELS[:3]):
        write_gis(tmp_path / f"v{number}.ima", volume, minf={})
    np.testing.assert_array_equal(open_volumes(tmp_path / "v*").sum(0), PIXELS[:3].sum(0))
    twice = open_volumes([tmp_path / "v0.ima", tmp_path / "v0.dim"])
    np.testing.assert_array_equal(twice, PIXELS[[0, 0]])


# Errors


@pytest.mark.parametrize(
    ("other", "problem"),
    [(PIXELS[0, 1:], "shape"), (PIXELS[0].astype("f4"), "dtype"), (PIXELS[0, 0], "shape")],
)
def test_different_volumes_are_refused(folder, tmp_path, other, problem):
    path = write_npy(tmp_path / "other.npy", other)
    with pytest.raises(DatasetError, match=problem) as caught:
        open_volumes([folder / "v0.npy", folder / "v1.npy", path])
    assert "other.npy" in str(caught.value)


def test_volumes_that_cannot_be_stacked(tmp_path):
    path = write_raw(tmp_path / "scan.raw", PIXELS[0])
    options = {"dtype": "u2", "sig_shape": SHAPE[1:]}
    for more in ({"roi": [2, 1]}, {"sync_offset": 1}, {"nav_shape": (5,)}):
        with pytest.raises(DatasetError, match="order") as caught:
            open_volumes([path], "raw", **options, **more)
        assert "scan.raw" in str(caught.value)
    corrections = dask_tiled.Corrections(dark=np.ones(SHAPE[1:]))
    with pytest.raises(DatasetError, match="corrected"):
        open_volumes([path], "raw", **options, corrections=corrections)
    with pytest.raises(FileNotFoundError):
        open_volumes(tmp_path / "*.npy")


def test_errors_name_the_file(tmp_path):
    paths = [write_npy(tmp_path / f"v{number}.npy", PIXELS[number]) for number in range(4)]
    arr = open_volumes(paths)
    (tmp_path / "v2.npy").unlink()
    for found in (arr, arr.sum(0), arr.std(0), arr[2] + arr[1]):
        with pytest.raises(StaleFileError, match=r"v2\.npy"):
            found.compute()


@pytest.mark.slow
def test_memory_does_not_grow_with_volumes(tmp_path):
    base = np.arange(1 << 18, dtype="f4").reshape(16, 128, 128)
    paths = [write_npy(tmp_path / f"v{number}.npy", base + number) for number in range(40)]
    open_volumes(paths).mean(0)[0].compute()
    with peak_memory() as peak:
        found = open_volumes(paths, chunks=(-1, 4, 128, 128)).mean(0).compute()
    np.testing.assert_allclose(found, base + 39 / 2)
    assert peak[0] < 4 * base.nbytes


def test_volumes_of_other_scaling_are_refused(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    for name, slope in {"a": 2.0, "b": 3.0}.items():
        image = nibabel.Nifti1Image(PIXELS[0].astype("i2"), np.eye(4))
        image.header.set_slope_inter(slope, 0)
        nibabel.save(image, tmp_path / f"{name}.nii")
    with pytest.raises(DatasetError, match="scaling; expected"):
        open_volumes(tmp_path / "*.nii", scaled=True)
    assert open_volumes(tmp_path / "*.nii").shape == (2, *PIXELS[0].T.shape)


def test_doubts_and_missing_frames_are_told_once(tmp_path):
    """One warning for each kind, however many files are in doubt."""
    for k in range(4):
        write_mib(tmp_path / f"{k}_a.mib", counting_frames((6, 4, 8), "u2"), hdr=False)
    with pytest.warns(DoubtWarning, match=r"0_a\.mib: 6 frames .* 3 more files") as caught:
        open_volumes(tmp_path / "*.mib")
    assert len(caught) == 1
    with pytest.warns(DoubtWarning) as caught:
        open_volumes([tmp_path / "2_a.mib"])
    assert "more files" not in str(caught[0].message)
