"""Files of chunks whose index is our own: the HDF5 library reads them at any time."""

import errno
import os
import random
import shutil

import h5py
import numpy as np
import pytest

from dask_tiled import StreamError, open_dataset
from dask_tiled.live import chunk_file, chunk_tree
from dask_tiled.live.chunk_file import ChunkFile
from dask_tiled.live.outputs import Bound
from dask_tiled.live.series import PackedArray, SeriesStart

SHAPE = (2, 3)
DATA = "entry/data/data_000001"


def new_file(path, channels=("a",)):
    """Return a file for frames that are not compressed."""
    first = PackedArray(SHAPE, np.dtype("u2"), "", bytes(12))
    return ChunkFile(str(path), Bound(), SeriesStart(1, 0, channels, {}, {}), channels, first)


def image(number, channels=1):
    """Return the pixels of an image, which are never zero."""
    return [
        (np.arange(1, 7) + 10 * number + 5 * channel).astype("u2").tobytes()
        for channel in range(channels)
    ]


def check(path, numbers, channels=1, *, least=False):
    """Compare what the library reads and lists with the numbers of the images in a file.

    ``least``: the index may have chunks beyond the size of the dataset.
    """
    with h5py.File(path) as file:
        data = file[DATA]
        assert len(data) == (max(numbers) + 1 if numbers else 0)
        chunks = []
        data.id.chunk_iter(chunks.append)
        places = [(number, channel) for number in sorted(numbers) for channel in range(channels)]
        lead = 1 if channels == 1 else 2
        chunks = chunks[: len(places)] if least else chunks
        assert [one.chunk_offset[:lead] for one in chunks] == [place[:lead] for place in places]
        assert {one.size for one in chunks} <= {12}
        assert data.id.get_num_chunks() == len(places) or least
        for number in {*numbers} & {0, 1, 63, 64, 65, 4095, 4096, *numbers[-3:], max(numbers)}:
            expected = np.frombuffer(b"".join(image(number, channels)), "u2")
            np.testing.assert_array_equal(data[number].ravel(), expected)
            info = data.id.get_chunk_info_by_coord((number,) + (0,) * (data.ndim - 1))
            assert info.byte_offset + info.size <= os.path.getsize(path)
        absent = next(number for number in range(len(data) + 1) if number not in {*numbers})
        if absent < len(data):
            assert not data[absent].any()


ORDERS = {
    "in order": [range(5000)],
    "one at a time": [range(k, k + 1) for k in range(130)],
    "in batches": [range(k, k + 37) for k in range(0, 370, 37)],
    "with a gap": [
        range(3),
        range(70, 75),
        range(300_000, 300_002),
        range(4, 6),
        range(5000, 5001),
    ],
    "from the middle": [range(4090, 4100), range(4000, 4090), range(1), range(4100, 4200)],
    "backwards": [range(k, k + 1) for k in range(200)][::-1],
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ORDERS)
def test_the_library_reads_what_was_written(tmp_path, name, channels):
    path, written = tmp_path / "a.h5", []
    file = new_file(path, tuple("abc"[:channels]))
    batches = ORDERS[name]
    for number, batch in enumerate(batches):
        file.append(batch[0], [image(k, channels) for k in batch])
        written += batch
        if number % 2 or len(batches) < 20:
            file.flush()
        if len(batches) < 20:
            check(path, written, channels)
    file.close()
    check(path, written, channels)
    assert (file.frames, file.nbytes) == (len(written), 12 * channels * len(written))
    with h5py.File(path, "r+") as again:  # the library adds to it, too
        data = again[DATA]
        count = len(data)
        data.resize(count + 200, 0)
        data[count:] = 7
        assert (data[count:] == 7).all()
    whole = shutil.copy(path, tmp_path / "b.h5")
    with h5py.File(whole) as copy:
        assert copy[DATA].id.get_num_chunks() == channels * (len(written) + 200)


def test_the_file_is_sound_after_each_write(tmp_path, monkeypatch):
    """The process may be killed at any time."""
    path, states, rng = tmp_path / "a.h5", [], random.Random(0)
    batches = [range(k, k + 7) for k in range(0, 600, 7)]
    for k in range(20, 80, 9):
        batches[k], batches[k - 11] = batches[k - 11], batches[k]
    file, shown = new_file(path), []

    def noted(fd, data, at):
        count = os.pwrite(fd, data, at)
        with h5py.File(path) as now:
            data, chunks = now[DATA], []
            data.id.chunk_iter(chunks.append)
            numbers = [one.chunk_offset[0] for one in chunks]
            assert numbers == sorted({*numbers})
            assert {*numbers} >= {number for number in shown if number < len(data)}
            for number in rng.sample(numbers, min(len(numbers), 5)):
                info = data.id.get_chunk_info_by_coord((number, 0, 0))
                content = os.pread(fd, info.size, info.byte_offset)
                assert content == image(number)[0]
        states.append(len(numbers))
        return count

    for module in (chunk_file, chunk_tree):
        monkeypatch.setattr(module, "pwrite", noted)
    for batch in batches:
        file.append(batch[0], [image(k) for k in batch])
        file.flush()
        shown += batch
    file.close()
    assert len(states) > 3 * len(batches)
    check(path, shown)


def test_a_reader_that_is_slow(tmp_path, monkeypatch):
    """It lists the index that was there when it opened the file, which has grown since."""
    for name in ("AHEAD", "SLACK", "BEYOND"):
        monkeypatch.setattr(chunk_file, name, 1 << 12)
    path = tmp_path / "a.h5"
    file = new_file(path)
    for first in range(0, 3000, 10):
        if first % 1000 == 200:
            reader = h5py.File(path)
            data = reader[DATA]
        file.append(first, [image(k) for k in range(first, first + 10)])
        file.flush()
        if first % 1000 == 990:
            with reader:
                chunks, count = [], len(data)
                data.id.chunk_iter(chunks.append)
                assert count == first - 790
                assert [one.chunk_offset[0] for one in chunks[:count]] == [*range(count)]
                assert data[count - 1].tobytes() == image(count - 1)[0]
    file.close()
    check(path, [*range(3000)])


def test_a_disk_that_fills_while_the_index_is_written(tmp_path, monkeypatch):
    """What was there before is; if there is room again, the rest is written."""
    path, left = tmp_path / "a.h5", []
    file = new_file(path)
    file.append(0, [image(k) for k in range(4090)])
    file.flush()

    def full(fd, data, at):
        if not left:
            raise OSError(errno.ENOSPC, "")
        return os.pwrite(fd, data, at) if left.pop() else 1

    file.append(4090, [image(k) for k in range(4090, 4100)])
    with monkeypatch.context() as patched:
        patched.setattr(chunk_tree, "pwrite", full)
        for count in range(6):
            left[:] = [True] * count
            with pytest.raises(StreamError, match="the disk is full"):
                file.flush()
            check(path, [*range(4090)], least=True)
        left[:] = [False]
        with pytest.raises(StreamError, match="the disk is full"):
            file.flush()
    assert file.frames == 4090
    file.close()
    check(path, [*range(4100)])


def test_frames_that_the_disk_takes_in_part(tmp_path, monkeypatch):
    """Whole images of all channels are kept."""
    file = new_file(tmp_path / "a.h5", ("a", "b"))

    def written(fd, views):
        yield os.write(fd, b"".join(views)[:44])
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(chunk_file, "write_views", written)
    with pytest.raises(StreamError, match="the disk is full"):
        file.append(0, [image(k, 2) for k in range(3)])
    file.close()
    assert (file.frames, file.nbytes) == (1, 24)
    check(tmp_path / "a.h5", [0], 2)


def test_frames_far_apart(tmp_path, monkeypatch):
    """Their index takes more room than is kept for it."""
    monkeypatch.setattr(chunk_file, "SLACK", 1 << 12)
    monkeypatch.setattr(chunk_file, "AHEAD", 1 << 12)
    monkeypatch.setattr(chunk_file, "BEYOND", 0)
    numbers, path = [*range(0, 100_000, 1000)], tmp_path / "a.h5"
    file = new_file(path)
    for number in numbers:
        file.append(number, [image(number)])
    file.flush()
    check(path, numbers)
    file.close()
    check(path, numbers)


def test_readers_open_the_whole_file_or_none(tmp_path, monkeypatch):
    """A reader that opens the file at once finds the frames later: it knows a distant end."""
    path, opened = tmp_path / "a.h5", []

    def noted(write):
        def call(fd, *given):
            count = write(fd, *given)
            try:
                opened.append(h5py.File(path))
            except OSError:
                assert not opened
            return count

        return call

    for name in ("pwrite", "allocate"):
        monkeypatch.setattr(chunk_file, name, noted(getattr(chunk_file, name)))
    file = new_file(path)
    file.append(0, [image(0)])
    file.flush()
    assert opened
    with opened[0] as early:
        assert early[DATA][0].tobytes() == image(0)[0]
    for reader in opened:
        reader.close()
    file.close()
    check(path, [0])


def test_blocks_are_allocated_once(tmp_path, monkeypatch):
    """File systems without allocation read and write a byte of each block for it."""
    for name in ("AHEAD", "SLACK"):
        monkeypatch.setattr(chunk_file, name, 1 << 12)
    allocated = []

    monkeypatch.setattr(chunk_file, "allocate", lambda *span: allocated.append(span[1]))
    file = new_file(tmp_path / "a.h5")
    for first in range(0, 4000, 40):
        file.append(first, [image(k) for k in range(first, first + 40)])
    file.close()
    assert len(allocated) > 10
    assert sum(allocated) < 4 * os.path.getsize(tmp_path / "a.h5")


def test_frames_that_are_indexed_but_not_counted(tmp_path, monkeypatch):
    """The process is killed, or a file is opened, before the dataset becomes longer."""
    path = tmp_path / "a.h5"
    file = new_file(path)
    file.append(0, [image(0)])
    file.flush()
    file.append(1, [image(1)])
    with monkeypatch.context() as patched:
        patched.setattr(chunk_file, "put", lambda *_: None)
        file.flush()
    with h5py.File(path) as whole:
        assert (len(whole[DATA]), whole[DATA].id.get_num_chunks()) == (1, 2)
    arr = open_dataset(path)
    assert arr.shape == (1, *SHAPE)
    assert arr.compute().tobytes() == image(0)[0]
    file.close()
