"""DM3 and DM4 files: real ones against independent readers, synthetic ones in every shape."""

import math
import pickle

import numpy as np
import pytest
from checks import refuses
from manifest import by_file, manifest

import dask_tiled
from dask_tiled import Axis, CorruptFileError, DatasetError
from dask_tiled.formats.dm.packed import stored_bytes
from dask_tiled.testing import Gap, check_format, counting_frames, write_dm, write_tags

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = manifest("DM3/DM4")
RAMP = "dm/2D/test_fft_packed_complex8.dm4"
SPECTRA = "dm/2D/test-MonarcCL_spectrum-SI.dm4"
COLOUR = np.dtype({"names": list("RGBA"), "formats": ["u1"] * 4, "offsets": [2, 1, 0, 3]})


def rosettasciio(path, number=0):
    """Return what RosettaSciIO reads, with the axes of a scan in stored order, slowest first."""
    reader = pytest.importorskip("rsciio.digitalmicrograph", reason="RosettaSciIO is not installed")
    return reader.file_reader(str(path), lazy=False)[number]["data"]


def as_stored(pixels, desc):
    """Move the signal axes first if the file stores them so."""
    nav = tuple(range(desc.nav_ndim))
    stored = np.moveaxis(pixels, nav, range(pixels.ndim - len(nav), pixels.ndim))
    return stored if desc.metadata["dm"]["transposed"] else pixels


def hermitian(shape, dtype):
    """Return the Fourier transform of a real picture, with its origin in the middle."""
    picture = np.random.default_rng(0).random(shape)
    return np.fft.fftshift(np.fft.fft2(picture)).astype(dtype)


@by_file(ROWS, "row")
def test_real_file_equals_rosettasciio_and_the_manifest(data, row):
    """Spectrum images are compared in stored order; complex transforms have tests of their own."""
    path = data / row["file"]
    signals = zip(row["shape_dtype"].split(" ; "), row["sum"].split(" ; "), strict=True)
    for number, (described, total) in enumerate(signals):
        arr = dask_tiled.open_dataset(path, dataset=number)
        pixels = as_stored(arr.compute(), arr.description)
        if row["file"] == RAMP:  # RosettaSciIO drops the last column of an odd number
            pixels = pixels[:, :-1]
        shape, _, dtype = described.rpartition(" ")
        assert str(pixels.shape) == shape.partition(" struct")[0]
        theirs = rosettasciio(path, number)
        if pixels.dtype.names:
            assert dtype == "'A')"
            sums = {name: pixels[name].sum() for name in pixels.dtype.names}
            assert "{" + ",".join(f"{name}:{n}" for name, n in sums.items()) + "}" == total
            assert (pixels.astype(theirs.dtype) == theirs).all()
            continue
        assert pixels.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(pixels, theirs)
        exact = pixels.astype("c16") if pixels.dtype.kind in "fc" else pixels
        assert exact.sum() == pytest.approx(complex(total), rel=1e-6)


def test_packed_transform_of_a_ramp_equals_numpy(data):
    """Readers disagree on the file, which GMS made from five rows of 0 to 4."""
    found = dask_tiled.open_dataset(data / RAMP).compute()
    ramp = np.tile(np.arange(5.0), (5, 1))
    np.testing.assert_allclose(found, np.fft.fftshift(np.fft.fft2(ramp)), atol=1e-5)


def test_scan_and_metadata_of_a_real_spectrum_image(data):
    """The stored shape (670, 3, 3) is 3 x 3 spectra by the tags."""
    desc = dask_tiled.describe(data / SPECTRA)
    assert (desc.nav_shape, desc.sig_shape) == ((3, 3), (670,))
    assert desc.dims == ("scan_y", "scan_x", "wavelength")
    facts = desc.metadata["dm"]
    assert (facts["transposed"], facts["name"]) == (True, "Monarc_SI_9pix")
    assert facts["tags"]["Meta Data"]["Signal"] == "CL"


def test_signals_of_a_real_file_by_number_and_name(data):
    path = data / "dm/2D/multi_signal.dm3"
    assert dask_tiled.describe(path).metadata["dm"]["datasets"] == ("HAADF", "Plot")
    assert dask_tiled.open_dataset(path, dataset="Plot").shape == (512,)
    assert dask_tiled.open_dataset(path, dataset=0).dtype == "u2"
    for wrong in ("plot", 2, -1, True, 1.0):
        refuses(path, "no such dataset", dataset=wrong)


@pytest.mark.parametrize(("version", "transposed"), [(3, False), (4, True)])
@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6), (2, 3, 5, 6), (4, 7), (2, 3, 7)], ids=str)
def test_synthetic_file_of_every_shape(tmp_path, version, transposed, shape):
    sig_dims = 1 if 7 in shape else 2
    frames = counting_frames(shape, "u2")
    options = {"sig_dims": sig_dims, "transposed": transposed and len(shape) > sig_dims}
    path = write_dm(tmp_path / "a.dm", frames, version=version, **options)
    usual = len(shape) == 4 or shape == (2, 3, 7)
    check_format(path, frames, cuts=5, **({} if usual else {"transposed": transposed}))
    desc = dask_tiled.describe(path, transposed=options["transposed"])
    np.testing.assert_array_equal(as_stored(frames, desc), rosettasciio(path))


@pytest.mark.parametrize("dtype", ["i1", "i8", "u8", "c16", "?"])
def test_synthetic_file_of_other_dtypes(tmp_path, dtype):
    frames = counting_frames((2, 3, 4, 5), dtype)
    path = write_dm(tmp_path / "a.dm4", frames, transposed=True, thumbnail=False)
    check_format(path, frames, cuts=3)


@pytest.mark.parametrize("data_type", [8, 23])
def test_colours_lie_as_in_the_file(tmp_path, data_type):
    frames = counting_frames((3, 4, 5), "u4").view(COLOUR)
    path = write_dm(tmp_path / "a.dm3", frames, version=3, data_type=data_type)
    check_format(path, frames)
    assert (frames.astype(rosettasciio(path).dtype) == rosettasciio(path)).all()


@pytest.mark.parametrize(
    ("shape", "data_type"),
    [*zip([(1, 1), (1, 4), (2, 2), (4, 6), (5, 6), (6, 5), (7, 3)], [27, 28] * 4, strict=False)],
)
def test_packed_transforms(tmp_path, data_type, shape):
    """RosettaSciIO mirrors the other half wrongly, and is compared in the stored half only."""
    full = hermitian(shape, "c8" if data_type == 27 else "c16")
    path = write_dm(tmp_path / "a.dm4", full, data_type=data_type)
    found = dask_tiled.open_dataset(path).compute()
    half = shape[1] // 2 + 1
    np.testing.assert_array_equal(found[:, :half], full[:, :half])
    np.testing.assert_allclose(found, full, atol=1e-5)
    np.testing.assert_array_equal(found[:, :half], rosettasciio(path)[:, :half])
    check_format(path, found, cuts=5)


@pytest.mark.parametrize("size", [2, 6])
def test_packed_transforms_of_data_type_5(tmp_path, size):
    full = hermitian((size, size), "c8")
    path = write_dm(tmp_path / "a.dm3", full, version=3, data_type=5)
    found = dask_tiled.open_dataset(path).compute()
    np.testing.assert_allclose(found, full, atol=1e-5)
    np.testing.assert_array_equal(found, rosettasciio(path))
    check_format(path, found)


@pytest.mark.parametrize(
    ("data_type", "shape", "dtype"),
    [(27, (2, 4, 6), "<c8"), (28, (4, 6), ">c16"), (5, (4, 6), "<c8"), (5, (3, 3), "<c8")],
)
def test_unsupported_packing_raises(data_type, shape, dtype):
    with pytest.raises(DatasetError, match=r"a\.dm4: unsupported packing"):
        stored_bytes("a.dm4", data_type, shape, np.dtype(dtype))


def test_packed_transforms_in_a_stack_of_files(tmp_path):
    stack = np.stack([hermitian((4, 6), "c16") + n for n in range(3)])
    paths = [write_dm(tmp_path / f"{n}.dm4", full, data_type=28) for n, full in enumerate(stack)]
    np.testing.assert_allclose(dask_tiled.open_dataset(paths).compute(), stack, atol=1e-12)


@pytest.mark.parametrize("shape", [(7, 5, 6), (7, 2, 5, 6), (7, 2, 3, 5, 6)], ids=str)
def test_stack_of_files(tmp_path, shape):
    """Files of one frame are stacked; files of several frames are concatenated."""
    frames = counting_frames(shape, "u2")
    paths = [
        write_dm(tmp_path / f"{n}.dm3", frame, name="x" * n, version=3)
        for n, frame in enumerate(frames)
    ]
    joined = frames.reshape(-1, *shape[2:]) if len(shape) > 3 else frames
    check_format(paths, joined, cuts=1)
    order = [3, 0, 5]
    chosen = dask_tiled.open_dataset([paths[n] for n in order]).compute()
    np.testing.assert_array_equal(chosen, frames[order].reshape(chosen.shape))
    check_format(str(tmp_path / "*.dm3"), joined, cuts=3)
    odd = write_dm(tmp_path / "odd.dm3", frames[0].astype("i2"), version=3)
    with pytest.raises(CorruptFileError, match="differ"):
        dask_tiled.describe([*paths, odd])


@pytest.mark.parametrize("size", [16, 4096])
def test_stack_of_files_that_end_with_their_pixels(tmp_path, size):
    """The length of each file is a multiple of the frame's, which LiberTEM reads as empty."""
    frames = counting_frames((3, 2, size), "u1")
    paths = []
    for n, frame in enumerate(frames):
        options = {"pixels_last": True, "thumbnail": False}
        path = write_dm(tmp_path / f"{n}.dm4", frame, tags={"Pad": b""}, **options)
        pad = bytes(-path.stat().st_size % frame.size)
        paths.append(write_dm(path, frame, tags={"Pad": pad}, **options))
        assert path.stat().st_size % frame.size == 0
        assert path.read_bytes().endswith(frame.tobytes())
    check_format(paths, frames)


def test_axes(tmp_path):
    axes = [(1.0, 0.5, "nm"), (2.0, 0.25, "nm"), (-8.0, 2.0, "1/nm"), (0.0, 4.0, "mrad")]
    for transposed in (False, True):
        frames = counting_frames((2, 3, 4, 5), "u2")
        options = {"transposed": transposed, "calibrations": axes}
        found = dask_tiled.describe(write_dm(tmp_path / "a.dm4", frames, **options)).axes
        assert [(-a.offset / a.scale + 0.0, a.scale, a.units) for a in found] == axes
    options = {"sig_dims": 1, "calibrations": [(0.0, 1.0, "s"), (4.0, 0.5, "keV")]}
    path = write_dm(tmp_path / "line.dm3", frames[0, 0], version=3, **options)
    assert dask_tiled.describe(path).dims == ("scan_x", "energy")
    options = {"calibrations": [(0.0, 1.0, "s"), *axes[2:]]}
    path = write_dm(tmp_path / "movie.dm3", frames[0], version=3, **options)
    assert dask_tiled.describe(path).dims == ("time", "y", "x")
    options = {"calibrations": [(0.0, math.inf, "nm"), (1.0, 0.0, "nm"), (2.0, -4.0, "nm")]}
    path = write_dm(tmp_path / "none.dm4", frames[0], **options)
    assert dask_tiled.describe(path).axes[1:] == (Axis("y"), Axis("x", "nm", -4.0, 8.0))


TELLING = [("nm", detector) for detector in ("1/nm", "rad", "mrad", "deg", "1/Å", "")]
TELLING += [("µm", "1/nm"), ("Å", "1/nm"), ("", "1/nm"), ("", "")]


@pytest.mark.parametrize(("scan", "detector"), TELLING)
@pytest.mark.parametrize("transposed", [False, True])
def test_units_of_four_axes_tell_scan_and_detector(tmp_path, detector, scan, transposed):
    """Nion Swift stores the scan first, Gatan the detector, both without a tag."""
    frames = counting_frames((2, 3, 4, 5), "f4")
    told = [(0, 2.0, scan)] * 2 + [(0, 0.1, detector)] * 2
    path = write_dm(
        tmp_path / "a.dm",
        frames,
        version=3 + transposed,
        calibrations=told,
        transposed=transposed,
        tags={"Meta Data": {}},
    )
    desc = dask_tiled.describe(path)
    if not detector and not scan:
        assert [doubt.code for doubt in desc.doubts] == ["axes-order"]
        assert desc.shape == ((2, 3, 4, 5) if transposed else (4, 5, 2, 3))
        desc = dask_tiled.describe(path, transposed=transposed)
    assert (desc.shape, desc.doubts) == (frames.shape, ())
    assert [axis.units for axis in desc.axes] == [scan, scan, detector, detector]
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, transposed=transposed), frames)


@pytest.mark.parametrize("units", [("nm",) * 4, ("nm", "s", "nm", ""), ("nm", "rad") * 2])
def test_units_that_do_not_tell_are_a_doubt(tmp_path, units):
    told = [(0, 1.0, unit) for unit in units]
    frames = counting_frames((2, 3, 4, 5), "f4")
    path = write_dm(tmp_path / "a.dm4", frames, calibrations=told, tags={"Meta Data": {}})
    (doubt,) = dask_tiled.describe(path).doubts
    assert doubt.code == "axes-order"
    assert doubt.text.endswith(f"nor do the units ({', '.join(unit or 'none' for unit in units)})")


def test_energies_of_the_fastest_axis_are_spectra(tmp_path):
    """A spectrum image stored spectrum by spectrum, without a tag."""
    frames = counting_frames((2, 3, 7), "f4")
    told = [(0, 1.0, "nm"), (0, 1.0, "nm"), (0, 0.5, "eV")]
    tags = {"Meta Data": {"Format": "Spectrum image"}}
    path = write_dm(tmp_path / "a.dm4", frames, sig_dims=1, calibrations=told, tags=tags)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), frames)


def test_option_transposed_overrides_the_tags(tmp_path):
    frames = counting_frames((2, 3, 4, 5), "u2")
    path = write_dm(tmp_path / "a.dm4", frames)
    assert dask_tiled.describe(path).metadata["dm"]["transposed_from"].startswith("the tag")
    turned = dask_tiled.open_dataset(path, transposed=True)
    np.testing.assert_array_equal(turned, np.moveaxis(frames, (0, 1), (2, 3)))
    refuses(path, "invalid transposed", transposed="no")


@pytest.mark.parametrize(("scale", "units"), [(1.0, "e-"), (2.0, "")])
def test_pixels_have_the_unit_of_their_brightness(tmp_path, scale, units):
    """Unless stored numbers need scaling."""
    told = {"Origin": 0.0, "Scale": scale, "Units": "e-"}
    data = {"DataType": 2, "Data": Gap("f", 20), "Dimensions": [5, 4], "PixelDepth": 4}
    data["Calibrations"] = {"Brightness": told}
    path = write_tags(tmp_path / "a.dm4", {"ImageList": [{"ImageData": data}]})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 80)
    assert dask_tiled.describe(path).units == units


def test_nan_in_tags(tmp_path):
    """NaN is None in metadata, keeps descriptions equal, and gives no instrument facts."""
    tags = {"Microscope Info": {"Voltage": math.nan, "Stage Position": {"Stage X": math.nan}}}
    path = write_dm(tmp_path / "a.dm4", np.zeros((2, 3, 4, 5), "u2"), tags=tags)
    desc = dask_tiled.describe(path)
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert desc.metadata["dm"]["tags"]["Microscope Info"]["Voltage"] is None
    assert not desc.instrument
