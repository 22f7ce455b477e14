"""NanoMegas blockfiles."""

import struct

import numpy as np
import pytest
from checks import axes_text, refuses
from libertem_reader import libertem_reads
from manifest import by_file, manifest

from dask_tiled import CorruptFileError, describe, open_dataset
from dask_tiled.testing import check_format, counting_frames, write_blo

pytestmark = pytest.mark.usefixtures("synchronous")
ROWS = manifest("BLO")
EIGHT = counting_frames((3, 4, 6, 6), "u1")
SIXTEEN = counting_frames((3, 4, 6, 6), "u2")
FILES = {
    f"{frames.dtype} {order} {magic}": (frames, {"order": order, "magic": magic})
    for frames, magics in ((EIGHT, (258, 259)), (SIXTEEN, (259,)))
    for order in "<>"
    for magic in magics
}


@by_file(ROWS, "row")
def test_real_file_equals_rosettasciio(data, row):
    path = data / row["file"]
    arr = open_dataset(path)
    assert arr.description.format == "blo"
    assert (arr.shape, arr.dtype) == ((2, 3, 5, 5), np.uint8)
    assert arr.compute().sum(dtype=int) == int(row["sum"])
    reader = pytest.importorskip("rsciio.blockfile", reason="RosettaSciIO is not installed")
    (signal,) = reader.file_reader(path)
    np.testing.assert_array_equal(arr, signal["data"])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blo")
    return {
        name: write_blo(folder / f"{k}.blo", frames, **options)
        for k, (name, (frames, options)) in enumerate(FILES.items())
    }


@pytest.mark.slow
def test_synthetic_files_equal_libertem(written, tmp_path):
    """LiberTEM reads the same pixels, but swaps bytes of big-endian uint16."""
    jobs = {
        name: ("blo", {"path": path, "endianess": FILES[name][1]["order"]})
        for name, path in written.items()
    }
    for name, theirs in libertem_reads(tmp_path, jobs).items():
        check_format(written[name], FILES[name][0], cuts=2)
        swapped = name.startswith("uint16 >")
        assert (theirs["frames"] != FILES[name][0]).any() == swapped


def test_axes_and_metadata(written):
    desc = describe(written["uint16 > 259"])
    scales = "scan_y 2.5 nm, scan_x 2 nm, y 0.0160617 cm, x 0.0160617 cm"  # 100 / 6226
    assert axes_text(desc) == scales
    metadata = desc.metadata["blo"]
    assert metadata["header"]["Beam_energy"] == 200_000
    assert metadata["header"]["Note"].endswith("Blo Bit Depth: 16 bits")
    field = metadata["virtual_bright_field"]
    assert (field["offset"], field["shape"]) == (4096, (3, 4))
    stored = np.fromfile(desc.files[0].path, field["dtype"], 12, offset=field["offset"])
    np.testing.assert_array_equal(stored, SIXTEEN.mean((2, 3)).astype(int).ravel() >> 8)


def test_invalid_calibration_gives_no_units(tmp_path):
    path = write_blo(tmp_path / "a.blo", EIGHT, step=(0.0, float("nan")), sdp=0)
    assert {(axis.units, axis.scale) for axis in describe(path).axes} == {("", 1.0)}


@pytest.mark.parametrize("frames", [EIGHT[..., 1:], EIGHT.astype("u4")], ids=["shape", "dtype"])
def test_writer_refuses_other_shapes_and_dtypes(tmp_path, frames):
    with pytest.raises(ValueError, match="expected squares of uint8 or uint16"):
        write_blo(tmp_path / "a.blo", frames)


def test_invalid_offset_of_the_bright_field_is_ignored(tmp_path):
    for offset in (0, 1 << 31):
        path = write_blo(tmp_path / "a.blo", EIGHT)
        with path.open("r+b") as file:
            file.seek(8)
            file.write(struct.pack("<I", offset))
        assert "virtual_bright_field" not in describe(path).metadata["blo"]
        np.testing.assert_array_equal(open_dataset(path), EIGHT)


def test_other_bit_depth_raises(tmp_path):
    path = write_blo(tmp_path / "a.blo", EIGHT, magic=259, note="Blo Bit Depth: 12 bits\r\n")
    refuses(path, "bit depth", CorruptFileError)
