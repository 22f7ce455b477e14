"""HyperSpy signals: axes and metadata as RosettaSciIO's readers return them."""

import sys
import time
import warnings

import dask.array as da
import numpy as np
import pytest
import rsciio
from checks import on_tiles
from formats_table import ONE_OF_EACH
from manifest import by_file

import dask_tiled
from dask_tiled import DatasetError, TiledArray, file_reader, open_dataset, to_hyperspy
from dask_tiled.opening.stored_results import stored_results
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_seq

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import hyperspy.api as hs

FRAMES = counting_frames((5, 7, 8, 16), "uint16")
AXES = [(1.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.125, "1/nm")]
TAGS = {
    "Microscope Info": {"Voltage": 2e5, "STEM Camera Length": 120.0, "Illumination Mode": "STEM"}
}

# Files for which both readers agree; the docs explain the differences for others.
FILES = [
    "blo/test2.blo",
    "dm/2D/multi_signal.dm3",
    "dm/2D/test_STEM_image.dm3",
    "dm/2D/test-MonarcCL_spectrum-SI.dm4",
    "dm/ncempy/dmTest_3D_int16_64,65,66.dm4",
    "hspy/example2_v3.1.hspy",
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd",
    "more/hdf5/fei_example_dpc_titles.emd",
    "more/ripple/test_ripple_sdim-1_ndim-2_float32_meta.rpl",
    "more/tiff/FEI-Helios-Ebeam-8bits.tif",
    "more/tiff/JEOL-SightX-TEM-mag-dummy.tif",
    "more/tiff/test_tiff_Zeiss_SEM_512pix.tif",
    "ser/old/16x16-line_profile_diagonal_10x1024_1.ser",
]
# RosettaSciIO stores these in metres, rounded or without units, as text, or as in the file.
OTHERWISE = {
    "Stage.x", "Stage.y", "Stage.z", "Stage.rotation", "Stage.tilt_alpha", "Stage.tilt_beta",
    "General.time", "Signal.signal_type", "General.original_filename",
}  # fmt: skip
OF_FILE = {
    "blo/test2.blo": {"camera_length"},
    "dm/2D/test-MonarcCL_spectrum-SI.dm4": {"dwell_time"},
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd": {"magnification"},
    "more/tiff/test_tiff_Zeiss_SEM_512pix.tif": {"magnification"},
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "scan.dm4"
    write_dm(path, FRAMES, calibrations=AXES, tags=TAGS)
    return path


def axes_of(signal):
    """Return the axes of a signal in array order."""
    return [
        (axis.name, axis.units, axis.scale, axis.offset, axis.size, axis.navigate)
        for axis in signal.axes_manager._axes
    ]


def flat(tree, before=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def loaded(path, file_format=None):
    """Load all signals of a file; eagerly through RosettaSciIO, which leaves lazy files open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown metadata
        found = hs.load(str(path), lazy=file_format is not None, file_format=file_format)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format(name, sample_of):
    options = {**sample_of(name).options}
    path = options.pop("path")
    field = {"field": 0} if name == "beton" else {}
    read, *_ = file_reader(path, **field, **options)
    arr = open_dataset(path, **field, **options)
    desc = arr.description
    assert [axis["name"] for axis in read["axes"]] == [*desc.dims]
    assert [axis["size"] for axis in read["axes"]] == [*desc.shape]
    assert [axis["index_in_array"] for axis in read["axes"]] == [*range(arr.ndim)]
    assert sum(axis["navigate"] for axis in read["axes"]) == desc.nav_ndim
    signal = to_hyperspy(read["data"])
    assert signal._lazy
    assert signal.axes_manager.signal_dimension == len(desc.sig_shape)
    assert type(signal.data) is TiledArray
    np.testing.assert_array_equal(signal.data, arr)


@pytest.fixture
def utc():
    """Set the local time zone to UTC: RosettaSciIO converts times to local time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@by_file([{"file": name} for name in FILES], "row")
@pytest.mark.usefixtures("utc")
def test_real_files_as_rosettasciio_reads_them(data, row):
    """All signals agree in pixels, axes, and the metadata that both readers provide."""
    path = data / row["file"]
    ours = {one.metadata.General.title: one for one in loaded(path, file_format=dask_tiled)}
    theirs = {one.metadata.General.title: one for one in loaded(path)}
    if len(theirs) == 1:
        ours = dict(zip(theirs, ours.values(), strict=True))
    assert ours.keys() == theirs.keys()
    for title, their in theirs.items():
        our = ours[title]
        np.testing.assert_array_equal(our.data, their.data)
        for one in (our, their):
            one.axes_manager.convert_units()  # SER axes are in metres here, in nanometres there
        for (_, *given), (_, *expected) in zip(axes_of(our), axes_of(their), strict=True):
            assert given[0] == expected[0]
            np.testing.assert_allclose(given[1:3], expected[1:3], rtol=1e-6, atol=1e-12)
            assert given[3:] == expected[3:]
        said = [dict(flat(one.metadata.as_dictionary())) for one in (our, their)]
        left = OTHERWISE | OF_FILE.get(row["file"], set())
        if not said[0]["General.title"]:
            left = left | {"General.title"}
        for key in said[0].keys() & said[1].keys():
            a, b = (one[key] for one in said)
            if not key.startswith(("_", "General.FileIO")) and not key.endswith(tuple(left)):
                assert a == (pytest.approx(b, rel=1e-6) if isinstance(a, float) else b), key


def test_hspy_files_keep_their_metadata(data):
    path = data / "hspy" / "example2_v3.1.hspy"
    (our,), (their,) = loaded(path, file_format=dask_tiled), loaded(path)
    said = [one.metadata.as_dictionary() for one in (our, their)]
    for one in said:
        one.pop("_HyperSpy")
        one["General"].pop("FileIO")
    assert said[0] == said[1]


def test_axes_and_metadata(path):
    """Metadata is in HyperSpy's units, and original_metadata holds all headers."""
    (signal,) = loaded(path, file_format=dask_tiled)
    assert isinstance(signal, hs.signals.Signal2D)
    assert axes_of(signal) == [
        ("scan_y", "nm", 0.5, -0.5, 5, True),
        ("scan_x", "nm", 0.5, -1.0, 7, True),
        ("y", "1/nm", 0.25, -1.0, 8, False),
        ("x", "1/nm", 0.125, 0.0, 16, False),
    ]
    assert signal.metadata.General.original_filename == "scan.dm4"
    assert signal.metadata.Acquisition_instrument.TEM.beam_energy == 200.0
    assert signal.original_metadata.dm.tags.get_item("Microscope Info").Voltage == 2e5
    (read,) = file_reader(path, lazy=False)
    assert type(read["data"]) is np.ndarray
    np.testing.assert_array_equal(read["data"], FRAMES)


def test_computed_signals(path):
    """HyperSpy's slices and sums run on tiles, and signals of computed arrays keep their axes."""
    signal = to_hyperspy(path)
    part = signal.inav[1:3, 2]
    assert type(part.data) is TiledArray
    np.testing.assert_array_equal(part.data, FRAMES[2, 1:3])
    assert on_tiles(signal.sum(axis=signal.axes_manager.signal_axes).data)
    arr = open_dataset(path)
    image = to_hyperspy(arr.sum(axis=(2, 3)))
    assert axes_of(image) == [
        ("scan_y", "nm", 0.5, -0.5, 5, False),
        ("scan_x", "nm", 0.5, -1.0, 7, False),
    ]
    assert image.metadata.Acquisition_instrument.TEM.beam_energy == 200.0
    pattern = to_hyperspy(arr[:, 3].mean(axis=0))
    assert [axis[0] for axis in axes_of(pattern)] == ["y", "x"]
    spectra = to_hyperspy(arr.sum(axis=(1, 2)))
    assert isinstance(spectra, hs.signals.Signal1D)
    assert [axis[-1] for axis in axes_of(spectra)] == [True, False]
    plain = to_hyperspy(da.zeros((3, 4, 5)))
    assert [axis[-1] for axis in axes_of(plain)] == [True, False, False]
    np.testing.assert_array_equal(image.data, FRAMES.sum(axis=(2, 3)))


@pytest.mark.thorough
def test_several_datasets(data):
    path = data / "more" / "hdf5" / "Test_SI_16x16_215_kx.emd"
    titles = [one["metadata"]["General"]["title"] for one in file_reader(path)]
    assert titles[0] == "EDS"
    assert titles[5:10] == ["HAADF", "C", "Ca", "O", "Cu"]
    (one,) = file_reader(path, dataset="Ca")
    assert one["data"].shape == (16, 16)


def test_by_suffix(tmp_path):
    """HyperSpy finds the reader through RosettaSciIO's list of plugins."""
    path = write_seq(tmp_path / "movie.seq", FRAMES[0])
    ours = {"name": "dask-tiled", "name_aliases": [], "file_extensions": ["seq"], "writes": False}
    rsciio.IO_PLUGINS.append(ours | {"api": "dask_tiled"})
    try:
        np.testing.assert_array_equal(loaded(path)[0].data, FRAMES[0])
    finally:
        rsciio.IO_PLUGINS.pop()


def test_wrong_arguments(tmp_path, monkeypatch):
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    with pytest.raises(DatasetError, match="no option 'nav_shap'"):
        file_reader(path, nav_shap=(5, 7))
    with pytest.raises(DatasetError, match=r"already open.*nav_shape"):
        to_hyperspy(open_dataset(path), nav_shape=(5, 7))
    monkeypatch.setitem(sys.modules, "hyperspy.io", None)
    with pytest.raises(ImportError, match=r'pip install "dask-tiled\[hyperspy\]"'):
        to_hyperspy(path)


@pytest.mark.thorough
def test_results_stored_with_an_export(tmp_path):
    """The stored sum becomes the navigator; other results are further signals."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES[..., :8, :8].copy()))
    beside = {"mean": arr.mean((0, 1)), "dark": arr[..., :2].sum((2, 3)), "sum": arr.sum((2, 3))}
    dask_tiled.to_zarr(arr, tmp_path / "out.zarr", with_results=beside)
    expected = beside["sum"].compute()
    signal = to_hyperspy(tmp_path / "out.zarr")
    np.testing.assert_array_equal(signal.navigator.data, expected)
    assert signal.navigator.axes_manager.signal_shape == expected.shape[::-1]
    for lazy in (True, False):
        found = hs.load(tmp_path / "out.zarr/zarr.json", lazy=lazy, file_format=dask_tiled)
        assert [one.metadata.General.title for one in found] == ["", "mean", "dark", "sum"]
        np.testing.assert_array_equal(found[0].navigator.data, expected)
        np.testing.assert_array_equal(found[1].data, beside["mean"].compute())
    assert to_hyperspy(open_dataset(tmp_path / "out.zarr")[1:]).navigator is None


def test_stored_results_do_not_apply_to_reordered_frames(tmp_path):
    frames = FRAMES.reshape(-1, *FRAMES.shape[2:])[..., :8, :8].copy()
    arr = open_dataset(write_mib(tmp_path / "scan.mib", frames), nav_shape=len(frames))
    dask_tiled.to_zarr(arr, tmp_path / "out.zarr", with_results={"rows": arr.sum(2)})
    backwards = range(len(frames))[::-1]
    assert [*stored_results(open_dataset(tmp_path / "out.zarr"))] == ["rows"]
    assert not stored_results(open_dataset(tmp_path / "out.zarr", roi=backwards))
