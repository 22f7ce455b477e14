"""Stopped exports are invisible, resume where they stopped, and never mix."""

import os
from functools import partial

import dask.array as da
import numpy as np
import pytest
import zarr
from checks import stop_export

from dask_tiled import DatasetError, open_dataset, to_zarr, verify_zarr
from dask_tiled.storing.folders import place_in
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames, write_raw

to_zarr = partial(to_zarr, layout="array")  # without keys of a group
pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((12, 8, 16), "uint16")


def stop(monkeypatch, arr, path, **options):
    """Interrupt an export after it has noted two dask chunks."""
    stop_export(monkeypatch, Place, arr, path, 2, layout="array", **options)
    assert not path.exists()


@pytest.fixture
def scan(tmp_path):
    """Open a scan of three chunks of 4 frames."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    return open_dataset(path, "raw", dtype="u2", sig_shape=(8, 16), chunks=(4, 8, 16))


def test_noted_chunks_are_not_written_again(scan, tmp_path, monkeypatch, written):
    """Only the dask chunk that was not noted is computed and written."""
    stop(monkeypatch, scan, tmp_path / "out.zarr", chunks=(2, 8, 16))
    first = list(written)
    written.clear()
    to_zarr(scan, tmp_path / "out.zarr", chunks=(2, 8, 16))
    assert len(written) == 2
    assert sorted({*first, *written}) == [f"c/{k}/0/0" for k in range(6)]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES)
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "scan.raw"]


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"c/0/0/0": 5}', '{"c/0/0/0": []}', "[" * 100_000],
    ids=["list", "number", "nothing", "deep"],
)
def test_invalid_journals_are_ignored(scan, tmp_path, monkeypatch, written, text):
    stop(monkeypatch, scan, tmp_path / "out.zarr", chunks=(4, 8, 16))
    (journal,) = tmp_path.glob("out.zarr.part/*/journal")
    (journal / ("0" * 32)).write_text(text)
    written.clear()
    to_zarr(scan, tmp_path / "out.zarr", chunks=(4, 8, 16))
    assert len(written) == 1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES)


def test_exports_resume_with_other_dask_chunks(scan, tmp_path, monkeypatch, written):
    """The files and the stored chunks count, not the dask chunks."""
    stop(monkeypatch, scan, tmp_path / "out.zarr", chunks=(2, 8, 16))
    written.clear()
    to_zarr(scan.with_chunks((2, 8, 16)), tmp_path / "out.zarr", chunks=(2, 8, 16))
    assert len(written) == 2
    verify_zarr(tmp_path / "out.zarr", scan)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "swap", "journal"])
def test_unproven_chunks_are_written_again(scan, tmp_path, monkeypatch, written, damage):
    """A chunk counts if it is noted in the journal and its file is intact."""
    stop(monkeypatch, scan, tmp_path / "out.zarr", chunks=(4, 8, 16), compressors=None)
    (root,) = (tmp_path / "out.zarr.part").iterdir()
    chunk, other = (root / "store" / key for key in place_in(str(root)).noted())
    data = bytearray(chunk.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
        chunk.write_bytes(data)
    elif damage == "truncate":
        chunk.write_bytes(data[:-1])
    elif damage == "remove":
        chunk.unlink()
    elif damage == "swap":  # as long, and its own checksum is right
        chunk.write_bytes(other.read_bytes())
    else:
        for path in (root / "journal").iterdir():
            path.write_bytes(b"")
    written.clear()
    to_zarr(scan, tmp_path / "out.zarr", chunks=(4, 8, 16), compressors=None)
    assert len(written) == (3 if damage == "journal" else 2)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES)


@pytest.mark.thorough
@pytest.mark.parametrize("why", ["another source", "other settings"])
def test_another_export_starts_afresh(scan, tmp_path, monkeypatch, written, why):
    """A changed file is another source; chunks of the old one are not kept."""
    out, options, frames = tmp_path / "out.zarr", {"chunks": (4, 8, 16)}, FRAMES
    stop(monkeypatch, scan, out, **options)
    if why == "another source":
        frames = FRAMES + 1
        path = write_raw(tmp_path / "scan.raw", frames)
        scan = open_dataset(path, "raw", dtype="u2", sig_shape=(8, 16), **options)
    else:
        options["compressors"] = None
    written.clear()
    with pytest.warns(UserWarning, match=why) as warned:
        to_zarr(scan, out, **options)
    assert warned[0].filename == __file__
    assert len(written) == 3
    np.testing.assert_array_equal(zarr.open_array(out)[:], frames)


def test_resuming_can_be_disabled(scan, tmp_path, monkeypatch, written):
    """All chunks are written again, without a warning."""
    stop(monkeypatch, scan, tmp_path / "out.zarr", chunks=(4, 8, 16))
    written.clear()
    to_zarr(scan, tmp_path / "out.zarr", chunks=(4, 8, 16), resume=False)
    assert len(written) == 3


def test_exports_of_computed_arrays_are_resumed(tmp_path, monkeypatch, written):
    """dask gives the array the same name."""
    arr = da.from_array(FRAMES, chunks=(4, 8, 16)).sum(axis=2)
    stop(monkeypatch, arr, tmp_path / "out.zarr")
    written.clear()
    to_zarr(arr, tmp_path / "out.zarr")
    assert len(written) == 1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES.sum(axis=2))


def test_exports_that_fail_are_resumed(scan, tmp_path, monkeypatch, written):
    """After an error, what was written before is kept; with resume=False, nothing is."""
    put, out = Place.put, tmp_path / "out.zarr"

    def full(self, key, data):
        if len(written) == 2:
            raise DatasetError("the target cannot be written", path=self.path)
        put(self, key, data)

    for resume, kept in ((False, []), (True, ["out.zarr.part"])):
        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Place, "put", full)
            with pytest.raises(DatasetError, match="cannot be written"):
                to_zarr(scan, out, chunks=(4, 8, 16), resume=resume)
        assert sorted(os.listdir(tmp_path)) == [*kept, "scan.raw"]
    first = list(written)
    written.clear()
    to_zarr(scan, out, chunks=(4, 8, 16))
    assert sorted(first + written) == [f"c/{k}/0/0" for k in range(3)]
    np.testing.assert_array_equal(zarr.open_array(out)[:], FRAMES)
