"""Exported metadata: JSON of any value, missing frames, instrument and file names."""

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from dask_tiled import DatasetError, MissingFramesWarning, open_dataset, to_zarr
from dask_tiled.model.instrument import Fact, Instrument
from dask_tiled.model.mark import MOST_PLACES, attributes_of, json_value, told_instrument
from dask_tiled.testing import counting_frames, write_blo, write_empad, write_mib


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: (np.uint16(3), None)}, {"1": [3, None]}),
        (np.array([[1.5, np.nan]]), [[1.5, "nan"]]),
        (np.float64(-np.inf), "-inf"),
        (np.complex64(1j), "1j"),
        (np.longdouble(2), "2.0"),
        (b"raw", "b'raw'"),
        (datetime(2020, 1, 2), "2020-01-02 00:00:00"),  # noqa: DTZ001 - files store no time zone
        (True, True),
    ],
)
def test_json_values(value, expected):
    found = json_value(value)
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def exported(arr, folder):
    """Export an array; return its metadata, which must be strict JSON, and the JSON text."""
    to_zarr(arr, folder, overwrite=True)
    text = (folder / "data/zarr.json").read_text()

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)["attributes"]["dask_tiled"], text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "fill"), [("u2", 7), ("f4", np.nan), ("f8", -np.inf), ("c8", 2 + 1j)]
)
def test_missing_frames_are_listed_and_stay_missing(tmp_path, dtype, fill):
    """Exports keep missing frames and their value, also of slices; results only list them."""
    path = write_mib(tmp_path / "scan.mib", counting_frames((3, 4, 8, 8), "u2"))
    options = {"nav_shape": (4, 4), "sync_offset": -2, "missing": "fill"}
    arr = open_dataset(path, **options, dtype=dtype, fill_value=fill)
    store = tmp_path / "scan.zarr"
    mark, _ = exported(arr, store)
    (told,) = mark["missing"]
    assert (told["file"], told["nav_shape"], told["count"]) == ("scan.mib", [4, 4], 4)
    assert told["runs"] == [[0, 1], [14, 15]]
    with pytest.warns(MissingFramesWarning, match="4 of 16 frames are missing") as warned:
        again = open_dataset(store)
    assert warned[0].filename == __file__
    assert len(warned) == 1
    assert again.description.missing.tolist() == [0, 1, 14, 15]
    np.testing.assert_array_equal(again.compute(), arr.compute())
    assert not again.description.conversion.corrections
    np.testing.assert_array_equal(again[0, ::-1][..., 3].compute(), arr[0, ::-1][..., 3].compute())
    five = open_dataset(store, nav_shape=(17,), missing="fill").description
    assert five.missing.tolist() == [0, 1, 14, 15, 16]
    with pytest.raises(DatasetError, match="too large for an export with missing frames"):
        open_dataset(store, nav_shape=(MOST_PLACES + 1,))
    zeros = open_dataset(store, fill_value=0, missing="fill")
    assert not zeros[0, :2].compute().any()
    mark, _ = exported(again, tmp_path / "again.zarr")
    assert mark["missing"][0]["runs"] == told["runs"]
    mark, _ = exported(arr[:2], store)
    assert mark["missing"][0] | {"fill_value": 0} == {
        "file": "scan.mib", "nav_shape": [2, 4], "count": 2, "runs": [[0, 1]], "fill_value": 0
    }  # fmt: skip
    mark, _ = exported(arr.sum(0), store)
    assert mark["missing"] == [told]
    assert not len(open_dataset(store).description.missing)


@pytest.mark.parametrize(
    "missing",
    [
        "all", [], [{}], [{"runs": [[0]]}], [{"runs": [[3, 1]]}], [{"runs": [[0, 99]]}],
        [{"runs": [[-1, 0]]}], [{"runs": [[0, 2], [1, 3]]}], [{"runs": [["a", 0]]}],
        [{"nav_shape": [4, 3]}], [{"fill_value": "seven"}], [{"fill_value": None}],
    ],
)  # fmt: skip
def test_invalid_metadata_of_exports_is_ignored(tmp_path, missing):
    """With an invalid list of missing frames all frames count as present."""
    path = write_mib(tmp_path / "scan.mib", counting_frames((3, 4, 8, 8), "u2"))
    arr = open_dataset(path, nav_shape=(4, 4), fill_value=9, missing="fill")
    to_zarr(arr, tmp_path / "scan.zarr")
    document = tmp_path / "scan.zarr/data/zarr.json"
    content = json.loads(document.read_text())
    mark = content["attributes"]["dask_tiled"]
    whole = mark["missing"][0]
    mark["missing"] = (
        [{**whole, **one} if one else one for one in missing] if missing != "all" else missing
    )
    mark["instrument"] = {"beam_energy": 200, "detector": {"value": []}, "x": None}
    document.write_text(json.dumps(content))
    again = open_dataset(tmp_path / "scan.zarr")
    assert not len(again.description.missing)
    assert not again.description.instrument
    np.testing.assert_array_equal(again.compute(), arr.compute())


def test_instrument_round_trips(tmp_path):
    path = write_blo(tmp_path / "scan.blo", counting_frames((2, 3, 8, 8), "u1"))
    arr = open_dataset(path)
    facts = {"beam_energy": Fact(2e5, "V", ("blo", "header", "E")), "detector": Fact("D", "", ())}
    desc = replace(arr.description, instrument=Instrument(facts))
    found = attributes_of(desc.axes, [desc])["dask_tiled"]["instrument"]
    assert found["beam_energy"] == {"value": 2e5, "unit": "V", "where": ["blo", "header", "E"]}
    assert dict(told_instrument({"instrument": json.loads(json.dumps(found))})) == facts
    to_zarr(arr, tmp_path / "scan.zarr")
    again = open_dataset(tmp_path / "scan.zarr").description.instrument
    assert dict(again) == dict(arr.description.instrument)


@pytest.mark.thorough
def test_exports_hold_no_folders(tmp_path, monkeypatch):
    """Exports name files without folders, for any path by which they were opened."""
    folder = tmp_path / "secret"
    folder.mkdir()
    write_mib(folder / "scan.mib", counting_frames((3, 4, 8, 8), "u2"))
    write_empad(folder / "scan.xml", np.ones((4, 128, 128), "f4"), nav_shape=(2, 2))
    (tmp_path / "linked").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for path in ("secret/scan.mib", "secret/scan.hdr", "linked/scan.hdr", "secret/scan.xml"):
        for arr in (open_dataset(path), open_dataset(path).sum(0)):
            mark, text = exported(arr, tmp_path / "scan.zarr")
            assert [name.rpartition(".")[0][:4] for name in mark["files"]] == ["scan"]
            assert "secret" not in text
            assert "linked" not in text
