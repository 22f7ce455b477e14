"""Data items of Nion Swift, compared with zipfile, json and numpy."""

import io
import json
import zipfile

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled import CorruptFileError, open_dataset
from dask_tiled.testing import check_format, counting_frames, write_ndata

SCAN = counting_frames((2, 3, 4, 5), "u2")
STEPS = [(1.0, 0.5, "nm"), (0.0, 0.25, "nm"), (-2.0, 0.5, "mrad"), (-2.5, -0.5, "mrad")]
METADATA = {
    "instrument": {"high_tension": 60_000.0},
    "hardware_source": {"exposure": 0.02, "hardware_source_name": "Ronchigram"},
}


@pytest.fixture(params=[".ndata", ".ndata1"])
def suffix(request):
    return request.param


@pytest.mark.parametrize("deflated", [False, True])
def test_pixels_axes_and_facts(tmp_path, suffix, deflated):
    path = tmp_path / f"a{suffix}"
    told = {"calibrations": STEPS, "intensity": (0.0, 1.0, "counts"), "metadata": METADATA}
    write_ndata(path, SCAN, deflated=deflated, **told)
    with zipfile.ZipFile(path) as archive:
        np.testing.assert_array_equal(np.load(io.BytesIO(archive.read("data.npy"))), SCAN)
        properties = json.loads(archive.read("metadata.json"))
    desc = dask_tiled.describe(path)
    assert desc.format == "ndata"
    assert desc.dims == ("scan_y", "scan_x", "y", "x")
    assert [(axis.offset, axis.scale, axis.units) for axis in desc.axes] == STEPS
    assert desc.units == "counts"
    facts = {name: (fact.value, fact.unit) for name, fact in desc.instrument.items()}
    assert facts["exposure_time"] == (0.02, "s")
    assert facts["beam_energy"] == (60_000.0, "V")
    assert facts["detector"] == ("Ronchigram", "")
    assert desc.metadata["ndata"]["properties"]["metadata"] == properties["metadata"]
    check_format(path, SCAN)


@pytest.mark.parametrize(
    ("shape", "sig_dims", "dims"),
    [
        ((6, 7), 2, ("y", "x")),
        ((9,), 1, ("energy",)),
        ((3, 4, 9), 1, ("scan_y", "scan_x", "energy")),
        ((5, 6, 7), 2, ("frame", "y", "x")),
    ],
)
def test_data_of_one_and_two_axes(tmp_path, suffix, shape, sig_dims, dims):
    pixels = counting_frames(shape, "f4") if len(shape) > 1 else np.arange(9, dtype="f4")
    steps = [(0.0, 0.5, "nm")] * (len(shape) - 1) + [(100.0, 0.5, "eV" if sig_dims == 1 else "nm")]
    path = write_ndata(tmp_path / f"a{suffix}", pixels, sig_dims=sig_dims, calibrations=steps)
    desc = dask_tiled.describe(path)
    assert desc.dims == dims
    assert (desc.axes[-1].offset, desc.axes[-1].scale) == (100.0, 0.5)
    np.testing.assert_array_equal(open_dataset(path), pixels)


def test_metadata_of_older_projects(tmp_path):
    """Before version 12, one source of data held what a data item holds now."""
    path = tmp_path / "a.ndata"
    source = {"datum_dimension_count": 1, "dimensional_calibrations": [{"scale": 2.0}] * 3}
    told = {"title": "old", "version": 9, "data_sources": [source]}
    pixels = io.BytesIO()
    np.save(pixels, counting_frames((2, 3, 4), "i4"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", pixels.getvalue())
        archive.writestr("metadata.json", json.dumps(told))
    desc = dask_tiled.describe(path)
    assert desc.dims == ("scan_y", "scan_x", "channel")
    assert [axis.scale for axis in desc.axes] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "told", [b" ", b"[]", b"{", b'{"dimensional_calibrations": [1, null, {}, {"scale": "x"}]}']
)
def test_damaged_metadata(tmp_path, told):
    """What is no JSON object is refused; invalid calibrations are left out."""
    path, pixels = tmp_path / "a.ndata", io.BytesIO()
    np.save(pixels, SCAN)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", pixels.getvalue())
        archive.writestr("metadata.json", told)
    if told.startswith(b'{"'):
        np.testing.assert_array_equal(open_dataset(path), SCAN)
    else:
        with pytest.raises(CorruptFileError, match=r"a\.ndata"):
            dask_tiled.describe(path)


def test_archives_of_one_array_called_data(tmp_path):
    """They are of NumPy if there is no metadata, whatever the suffix."""
    np.savez(tmp_path / "a.npz", data=SCAN)
    (tmp_path / "a.npz").rename(tmp_path / "a")
    assert dask_tiled.describe(tmp_path / "a").format == "npz"
    refuses(
        tmp_path / "a", "a member of the zip file is missing", kind=CorruptFileError, format="ndata"
    )
