"""Arrays over growing files: present frames are right, and `refresh` shows new ones."""

import os
import pickle
from contextlib import suppress

import numpy as np
import pytest
from acquisitions import APPENDED, Acquisition, growing
from formats_table import TABLE
from hypothesis import given
from hypothesis import strategies as st

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_mrc, write_raw

RAW = {"format": "raw", "dtype": "u2", "sig_shape": (5, 7)}


def is_prefix(arr, frames):
    """Check that an array begins with the frames in order, and return the number present."""
    shown = arr.compute().reshape(-1, *frames.shape[1:])
    count = len(shown) - len(arr.description.missing)
    assert np.array_equal(shown[:count], frames[:count])
    assert not shown[count:].any()
    return count


@pytest.mark.parametrize("name", APPENDED)
def test_refresh_shows_new_frames(name, tmp_path):
    sample = TABLE[name](tmp_path, "scan")
    options, acquisition = growing(sample)
    arr, seen = None, []
    for stop in np.linspace(1, acquisition.size, 17, dtype=int).tolist():
        acquisition.write_to(stop)
        if arr is not None:
            assert is_prefix(arr, sample.frames) == seen[-1], "present frames stay readable"
            arr = arr.refresh()
        else:
            with suppress(dask_tiled.DatasetError):  # no complete frame yet
                arr = dask_tiled.open_dataset(**options)
        if arr is not None:
            seen.append(is_prefix(arr, sample.frames))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] == len(sample.frames)
    assert np.array_equal(arr.compute(), sample.expected)


@pytest.mark.slow
def test_k2is_sectors_grow_together(tmp_path):
    sample = TABLE["k2is"](tmp_path, "scan")
    bins = [path for path in sample.members if path.suffix == ".bin"]
    content = [path.read_bytes() for path in bins]
    for path, data in zip(bins, content, strict=True):
        path.write_bytes(data[: len(data) * 3 // 4])
    arr = dask_tiled.open_dataset(**sample.options, follow=True)
    assert is_prefix(arr, sample.frames) == 1
    for path, data in zip(bins, content, strict=True):
        with path.open("ab") as file:
            file.write(data[len(data) * 3 // 4 :])
    assert is_prefix(arr.refresh(), sample.frames) == 2


@pytest.mark.thorough
@given(
    sizes=st.lists(st.integers(70, 70 * 30), min_size=2, max_size=6).map(sorted),
    chunk=st.integers(1, 9),
    nav=st.sampled_from([None, (5, 6), (30,)]),
)
def test_growth_keeps_complete_chunks_and_names(tmp_path_factory, sizes, chunk, nav):
    folder = tmp_path_factory.mktemp("any")
    frames = counting_frames((30, 5, 7), "u2")
    acquisition = Acquisition([write_raw(folder / "a.raw", frames)])
    acquisition.write_to(sizes[0])
    chunks = (chunk, *(-1,) * (len(nav or "1") + 1))
    arr = dask_tiled.open_dataset(
        folder / "a.raw", **RAW, nav_shape=nav, chunks=chunks, follow=True
    )
    for size in sizes[1:]:
        acquisition.write_to(size)
        new = arr.refresh()
        assert is_prefix(new, frames) == size // 70
        assert new.description.layout.n_frames == size // 70
        if arr.numblocks[0] > 1:
            complete = list(arr.chunks[0][:-1])
            assert list(new.chunks[0][: len(complete)]) == complete
        inner = 1 if nav is None else int(np.prod(nav[1:]))
        there = arr.description.layout.n_frames // inner
        for stop in range(1, there + 1):
            assert arr[:stop].name == new[:stop].name
        if arr.description.layout.n_frames < size // 70:
            assert arr.name != new.name
        arr = new


def test_refresh_keeps_names_of_frames_present_before_with_roi(tmp_path):
    frames = counting_frames((30, 5, 7), "u2")
    acquisition = Acquisition([write_raw(tmp_path / "a.raw", frames)])
    acquisition.write_to(10 * 70)
    roi = [3, 1, 20, 4]
    options = {**RAW, "nav_shape": (30,), "follow": True}
    chosen = dask_tiled.open_dataset(tmp_path / "a.raw", **options, roi=roi)
    assert not chosen[2].compute().any()
    acquisition.write_to(acquisition.size)
    new = chosen.refresh()
    assert new[:2].name == chosen[:2].name
    assert new[2].name != chosen[2].name
    assert np.array_equal(new.compute(), frames[roi])


def test_refresh_without_follow(tmp_path, monkeypatch):
    frames = counting_frames((12, 5, 7), "u2")
    acquisition = Acquisition([write_raw(tmp_path / "a.raw", frames)])
    acquisition.write_to(3 * 70)
    monkeypatch.chdir(tmp_path)
    arr = dask_tiled.open_dataset("a.raw", **RAW)
    monkeypatch.chdir("/")
    acquisition.write_to(7 * 70 + 1)
    with pytest.raises(dask_tiled.StaleFileError):
        arr.compute()
    arr = pickle.loads(pickle.dumps(arr)).refresh()
    acquisition.write_to(acquisition.size)
    assert np.array_equal(arr.compute(), frames[:7])
    assert np.array_equal(arr.refresh().compute(), frames)


@pytest.mark.parametrize("sections", [0, 1, 12])
def test_mrc_header_may_be_completed_last(tmp_path, sections):
    frames = counting_frames((12, 5, 7), "i2")
    path = write_mrc(tmp_path / "a.mrc", frames)
    content = bytearray(path.read_bytes())
    content[8:12] = sections.to_bytes(4, "little")
    path.write_bytes(content[: 1024 + 70 * 5 + 9])
    arr = dask_tiled.open_dataset(path, follow=True)
    assert is_prefix(arr, frames) == (1 if sections == 1 else 5)
    content[8:12] = (12).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(content)
    assert np.array_equal(arr.refresh().compute(), frames)


def test_files_without_a_complete_frame_are_left_out(tmp_path):
    frames = counting_frames((12, 5, 7), "u2")
    for k, part in enumerate(np.split(frames, [4, 8])):
        write_raw(tmp_path / f"a{k}.raw", part, file_header=9)
    last = tmp_path / "a2.raw"
    content = last.read_bytes()
    for there in (b"", content[:5], content[:30]):
        last.write_bytes(there)
        arr = dask_tiled.open_dataset(str(tmp_path / "a*.raw"), **RAW, file_header=9, follow=True)
        assert np.array_equal(arr.compute(), frames[:8])
    last.write_bytes(content)
    assert np.array_equal(arr.refresh().compute(), frames)


def replace(path, content):
    other = path.with_suffix(".new")
    other.write_bytes(content)
    os.replace(other, path)


FAULTS = {
    "replaced": replace,
    "cut off": lambda path, _: os.truncate(path, 100),
    "written anew": lambda path, content: path.write_bytes(content[::-1]),
    "gone": lambda path, _: path.unlink(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("follow", [True, False])
def test_changed_file_raises(tmp_path, fault, follow):
    path = write_raw(tmp_path / "a.raw", counting_frames((12, 5, 7), "u2"))
    arr = dask_tiled.open_dataset(path, **RAW, follow=True)
    if not follow:
        arr = dask_tiled.open_dataset(path, **RAW).refresh()
    FAULTS[fault](path, path.read_bytes() + bytes(70))
    with pytest.raises(dask_tiled.StaleFileError, match=r"a\.raw"):
        arr.refresh()
    if fault != "written anew":
        with pytest.raises(dask_tiled.StaleFileError, match=r"a\.raw"):
            arr.compute()


def test_new_file_before_the_others_raises(tmp_path):
    frames = counting_frames((12, 5, 7), "u2")
    write_raw(tmp_path / "a1.raw", frames)
    arr = dask_tiled.open_dataset(str(tmp_path / "a*.raw"), **RAW, follow=True)
    write_raw(tmp_path / "a0.raw", frames)
    with pytest.raises(dask_tiled.StaleFileError, match=r"a1\.raw: the frames have moved"):
        arr.refresh()


def test_rewritten_file_has_another_name(tmp_path):
    path = write_raw(tmp_path / "a.raw", counting_frames((12, 5, 7), "u2"))
    before = dask_tiled.open_dataset(path, **RAW, follow=True)
    os.utime(path, ns=(1, 1))
    path.write_bytes(path.read_bytes()[::-1])
    assert dask_tiled.open_dataset(path, **RAW, follow=True)[:3].name != before[:3].name


def test_only_opened_arrays_can_be_refreshed(tmp_path):
    path = write_mib(tmp_path / "a.mib", counting_frames((3, 4, 6, 9), "u2"))
    arr = dask_tiled.open_dataset(path)
    assert arr.rechunk((1, 4, 6, 9)).refresh().chunks[0] == (1, 1, 1)
    for other in (arr[1:], arr.reshape(12, 6, 9)):
        with pytest.raises(dask_tiled.DatasetError, match="cannot be refreshed"):
            other.refresh()


def test_remote_files_cannot_be_followed():
    with pytest.raises(dask_tiled.DatasetError, match="do not grow"):
        dask_tiled.open_dataset("http://localhost:1/a.mib", follow=True)
