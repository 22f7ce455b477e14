"""The ``.emi`` files of TIA, which hold metadata and lead to ``.ser`` files."""

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled.testing import counting_frames, write_ser

pytestmark = pytest.mark.usefixtures("synchronous")


def test_ser_files_have_the_metadata_of_the_emi_file(data):
    folder = data / "ser" / "old"
    pattern = dask_tiled.describe(folder / "64x64_diffraction_acquire_1.ser")
    about = pattern.metadata["emi"]["object_0"]["ExperimentalDescription"]
    assert about["High tension (kV)"] == 200
    assert "bottom row first" in pattern.metadata["ser"]["orientation"]


def test_an_emi_file_opens_its_ser_files(data):
    """An .emi file opens its first .ser file, or another one by number or name."""
    emi = data / "ser" / "old" / "16x16_STEM_BF_DF_acquire.emi"
    names = [emi.stem + "_1.ser", emi.stem + "_2.ser"]
    for dataset, name in [(None, 0), (0, 0), (1, 1), (names[1], 1), (names[0][:-4], 0)]:
        desc = dask_tiled.describe(emi, dataset=dataset)
        codes = [doubt.code for doubt in desc.doubts]
        assert codes == ["default-dataset"] * (dataset is None)
        opened = dask_tiled.describe(emi.with_name(names[name]))
        listed = {"dataset": name, "datasets": tuple(one[:-4] for one in names)}
        assert desc == opened.with_doubts(*desc.doubts).with_facts(**listed)
    for dataset in (2, -1, "other", True, 1.5):
        refuses(emi, "no such dataset", dataset=dataset)
    refuses(emi.with_name(names[0]), r"open the \.emi file to choose", dataset=0)


HOSTILE_XML = {
    "long": b" " * (1 << 20),
    "broken": b"<a></b>",
    "bytes": b"<a>\xff\xb5</a><Data><Label/><Value/></Data>",
    "openings": b"<ObjectInfo>" * 80_000,
}


@pytest.mark.parametrize("name", HOSTILE_XML)
def test_invalid_xml_leaves_the_pixels_readable(tmp_path, name):
    """Invalid XML is in the metadata, and the pixels are read."""
    frames = counting_frames((5, 6), "u2")
    path = write_ser(tmp_path / "a_1.ser", frames)
    text = b"<ObjectInfo>" + HOSTILE_XML[name] + b"</ObjectInfo>"
    (tmp_path / "a.emi").write_bytes(b"JK\0\2" + text + text)
    desc = dask_tiled.describe(tmp_path / "a.emi")
    assert set(desc.metadata["emi"]) == {"path", "object_0", "object_1"}
    assert len(str(desc._repr_html_())) < 10_000
    np.testing.assert_array_equal(dask_tiled.open_dataset(path).compute(), frames)
    path.unlink()
    refuses(tmp_path / "a.emi", r"no \.ser file")
