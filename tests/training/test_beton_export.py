"""`to_beton`: files equal FFCV's, complete or absent, and errors never hang."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import beton_reader
import dask.array as da
import distributed
import numpy as np
import pytest
from checks import wait_for
from conftest import ANY_PORT
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    ImageField,
    TarSamples,
    open_dataset,
    to_beton,
)
from dask_tiled.blocks import ahead
from dask_tiled.system import locks
from dask_tiled.training import fields as sample_fields

KINDS = {0: "float", 1: "int", 2: "image", 3: "bytes", 5: "json"}
PAGE = 1 << 21
FEW = da.arange(9, chunks=3)


class Dataset:
    """Samples in memory, some of which may fail or be slow."""

    def __init__(self, samples, fails=(), slow=0.0):
        self.samples, self.fails, self.slow = samples, fails, slow

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        time.sleep(self.slow)
        if number in self.fails:
            raise RuntimeError(f"no sample {number}")
        return self.samples[number]


def save(path, source, types=None, **options):
    to_beton(path, source, types, page_size=PAGE, progress=False, **options)
    return path


@pytest.mark.parametrize(
    "name", ["all_fields_idx", "all_fields_w1", "dtypes_page4M", "scalars_only"]
)
def test_files_equal_ffcvs_byte_for_byte(data, tmp_path, name):
    path = data / "beton" / f"{name}.beton"
    header, fields, records, _ = beton_reader.read(path)
    types = {}
    for type_id, field, arguments in fields:
        shape = [n for n in np.frombuffer(arguments, "<u8", 32).tolist() if n]
        text = arguments[264 : 264 + int.from_bytes(arguments[256:264], "little")]
        types[field] = KINDS.get(type_id) or (json.loads(text)[0][1], shape)
    samples = Dataset([tuple(sample) for sample in beton_reader.samples(path)])
    out = tmp_path / "a.beton"
    to_beton(out, samples, types, page_size=header["page_size"], progress=False)
    expected, found = bytearray(path.read_bytes()), out.read_bytes()
    for k, (type_id, field, _) in enumerate(fields):
        if type_id == 6:  # tensors are stored as arrays
            expected[24 + 1041 * k] = 4
        if type_id in (4, 6) and types[field][0][0] == ">":  # FFCV cannot read its own file
            at = expected.index(b">", 24 + 1041 * k)
            expected[at : at + 1] = b"<"
            dtype, shape = np.dtype(types[field][0]), types[field][1]
            for start in records[f"f{k}"].tolist():
                values = np.frombuffer(expected, dtype, int(np.prod(shape)), start)
                values[:] = values.byteswap()
    assert found == expected


@pytest.mark.thorough
@given(data=st.data())
def test_independent_reader_reads_the_samples(tmp_path_factory, data):
    count = data.draw(st.integers(0, 20))
    scale = data.draw(st.sampled_from([1, 1000, 60_000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dtype = data.draw(st.sampled_from(["u1", "<f4", ">i2", "?", "c8"]))
    values = rng.integers(0, 2, (count, *shape)).astype(dtype)
    texts = [bytes(int(n)) for n in rng.integers(0, 9, count) * scale]
    plain = [{"i": i, "s": "é" * (i % 3)} for i in range(count)]
    samples = list(zip(texts, values, plain, range(count), strict=True))
    order = data.draw(st.none() | st.lists(st.integers(0, max(0, count - 1)), max_size=count))
    types = {"text": "bytes", "x": (dtype, shape), "meta": "json", "n": "int"}
    path = tmp_path_factory.mktemp("any") / "a.beton"
    indices = None if order is None or not count else order
    save(path, Dataset(samples), types, indices=indices, workers=data.draw(st.integers(1, 3)))
    wanted = samples if indices is None else [samples[i] for i in indices]
    found = beton_reader.samples(path) if wanted else []
    for ours, theirs in zip(wanted, found, strict=True):
        assert theirs[0] == ours[0]
        np.testing.assert_array_equal(theirs[1], ours[1])
        assert theirs[2:] == list(ours[2:])
    np.testing.assert_array_equal(
        open_dataset(path, field="n").compute(), [sample[3] for sample in wanted]
    )
    _, _, _, table = beton_reader.read(path)
    _pages_hold_whole_samples(table)


def _pages_hold_whole_samples(table):
    pages = {}
    end = 0
    for sample, ptr, size in table.tolist():
        if size:
            assert ptr >= end
            end = ptr + size
            assert ptr // PAGE == (ptr + size - 1) // PAGE
            assert pages.setdefault(sample, ptr // PAGE) == ptr // PAGE


@pytest.mark.parametrize(
    ("chunks", "scheduler"),
    [((10, 3, 4), "synchronous"), ((7, 6, 4), "threads"), ((100, 6, 2), "threads")],
)
def test_dask_arrays_are_written_chunk_by_chunk(tmp_path, chunks, scheduler):
    values = np.arange(100 * 24, dtype="i4").reshape(100, 6, 4)
    labels = np.arange(100) % 7
    fields = {"x": da.from_array(values, chunks), "y": da.from_array(labels, 33), "z": labels * 0.5}
    import dask

    with dask.config.set(scheduler=scheduler):
        path = save(tmp_path / "a.beton", fields)
        shuffled = save(tmp_path / "b.beton", fields, shuffle=True, seed=3)
        some = save(tmp_path / "c.beton", fields, indices=[5, 99, 5, -1])
    np.testing.assert_array_equal(open_dataset(path, field="x"), values)
    np.testing.assert_array_equal(open_dataset(path, field="z"), labels * 0.5)
    order = np.random.default_rng(3).permutation(100)
    np.testing.assert_array_equal(open_dataset(shuffled, field="x"), values[order])
    np.testing.assert_array_equal(open_dataset(shuffled, field="y"), labels[order])
    np.testing.assert_array_equal(open_dataset(some, field="x"), values[[5, 99, 5, 99]])


@pytest.mark.thorough
def test_threads_and_processes_write_the_same_file(tmp_path):
    samples = Dataset([(bytes(100 * i), np.full(30, i, "u2")) for i in range(200)])
    types = {"text": "bytes", "x": ("u2", (30,))}
    one = save(tmp_path / "1.beton", samples, types, workers=1).read_bytes()
    assert save(tmp_path / "4.beton", samples, types, workers=4).read_bytes() == one
    with ProcessPoolExecutor(2) as pool:
        path = save(tmp_path / "p.beton", samples, types, executor=pool)
    assert path.read_bytes() == one


def test_errors_stop_the_export_and_name_the_sample(tmp_path):
    """FFCV's writer hangs after a worker's error."""
    samples = Dataset([(i,) for i in range(10_000)], fails={700}, slow=0.001)
    with pytest.raises(DatasetError, match=r"sample 700.*no sample 700"):
        save(tmp_path / "a.beton", samples, {"n": "int"})
    assert list(tmp_path.iterdir()) == []
    wrong = Dataset([(np.zeros(3, "f4"),)] * 5 + [(np.zeros(4, "f4"),)])
    with pytest.raises(DatasetError, match="sample 5, field 'x'"):
        save(tmp_path / "a.beton", wrong, {"x": ("f4", (3,))})
    with pytest.raises(DatasetError, match="float64"):
        save(tmp_path / "a.beton", Dataset([(np.zeros(3),)]), {"x": ("f4", (3,))})
    several = [(np.ones(3, "f4"),)] * 50  # stacking would cast a deviating sample
    with pytest.raises(DatasetError, match=r"sample 50, field 'x'.*int16"):
        save(
            tmp_path / "a.beton",
            Dataset([*several, (np.ones(3, "i2"),), *several]),
            {"x": ("f4", (3,))},
        )
    assert list(tmp_path.iterdir()) == []


def test_errors_do_not_wait_for_slow_samples(tmp_path):
    done, waited = threading.Event(), []

    class Slow(Dataset):
        def __getitem__(self, number):
            if number == 0:
                done.wait(300)
                waited.append(number)
            return super().__getitem__(number)

    with pytest.raises(DatasetError, match="sample 1"):
        save(tmp_path / "a.beton", Slow([(0,)] * 9, fails={1}), {"n": "int"}, workers=4)
    assert not waited
    done.set()


def test_sample_larger_than_a_page_is_refused(tmp_path):
    """FFCV's writer hangs in this case."""
    samples = Dataset([(bytes(10),), (bytes(PAGE + 1),)])
    with pytest.raises(DatasetError, match=r"sample 1.*page"):
        save(tmp_path / "a.beton", samples, {"text": "bytes"})
    save(tmp_path / "a.beton", Dataset([(bytes(PAGE),)] * 2), {"text": "bytes"})
    assert open_dataset(tmp_path / "a.beton").compute()[1] == bytes(PAGE)


@pytest.mark.parametrize(
    ("fields", "types", "problem"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, None, "different lengths"),
        ({"x": np.zeros(3)}, {"y": "int"}, "unknown field"),
        ({"x": [1, 2]}, None, "not an array"),
        ({"x": FEW[FEW > 3]}, None, "unknown size"),
        ({"x": np.zeros(2, "c8")}, None, "arrays of this dtype or shape"),
        ({"x": np.zeros((2, 0))}, None, "arrays of this dtype or shape"),
        (
            {"x": np.zeros((2, 3), [(f"name{i}", "i4") for i in range(60)])},
            None,
            "arrays of this dtype or shape",
        ),
        ({"x": np.zeros((2, 3), [(("title", "a"), "i4")])}, None, "arrays of this dtype or shape"),
        ({"x": np.zeros((2,) + (1,) * 33)}, None, "arrays of this dtype or shape"),
        ({"x": np.zeros(2, "g")}, None, "arrays of this dtype or shape"),
        ({"x": np.array([b"a", b"b"], object)}, None, "Pass types="),
        ({"x": np.full(2, 1 << 63, "u8")}, None, "beyond int64"),
        ({"ö": np.zeros(2)}, None, "invalid name"),
        ({1: np.zeros(2)}, None, "invalid name"),
        ({"a": np.zeros(2), "a\0": np.zeros(2)}, None, "invalid name"),
        ({"x": np.zeros(2)}, {"x": ""}, "invalid type"),
        ({"a" * 16 + "b": np.zeros(2), "a" * 16 + "c": np.zeros(2)}, None, "16 characters"),
        ({}, None, "at least one"),
        (Dataset([(1,)]), None, "at least one"),
        (Dataset([(1, 2)]), {"x": "int"}, "2 values, not 1"),
        (Dataset([(1,)]), {"x": "text"}, "invalid type"),
        (7, {"x": "int"}, "no samples"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, fields, types, problem):
    with pytest.raises(DatasetError, match=problem):
        save(tmp_path / "a.beton", fields, types)
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_stored_in_little_endian_order(tmp_path):
    """FFCV refuses big-endian arrays."""
    values = np.arange(6).reshape(3, 2)
    nested = np.zeros((3, 2), [("a", ">i4"), ("b", [("c", ">f8", (2,))])])
    nested["a"] = values
    fields = {"x": values.astype(">u2"), "y": da.from_array(values.astype(">f4")), "z": nested}
    path = save(tmp_path / "a.beton", fields)
    _, stored, *_ = beton_reader.read(path)
    assert not any(b">" in arguments for _, _, arguments in stored)
    for name, expected in fields.items():
        np.testing.assert_array_equal(open_dataset(path, field=name), expected)


def test_empty_values_have_distinct_offsets(tmp_path):
    """FFCV looks up the length of a value by its offset."""
    samples = [(b"", {}, b"a"), (b"bc", {"n": 1}, b""), (b"", {}, b"")]
    types = {"first": "bytes", "meta": "json", "last": "bytes"}
    path = save(tmp_path / "a.beton", Dataset(samples), types)
    assert beton_reader.samples(path) == [list(sample) for sample in samples]
    assert open_dataset(path, field="last").compute().tolist() == [b"a", b"", b""]
    _, _, records, table = beton_reader.read(path)
    assert len(np.unique(table[:, 1])) == len(table) == 9
    assert records["f0"]["size"].tolist() == [0, 2, 0]
    assert records["f2"]["size"].tolist() == [1, 0, 0]


def test_arrays_of_objects_are_written(tmp_path):
    objects = np.empty(300, object)
    for i in range(300):
        objects[i] = np.full(2, i, "f4")
    fields = {"x": objects, "text": np.array([bytes(i) for i in range(300)], object)}
    path = save(tmp_path / "a.beton", fields, {"x": ("f4", (2,)), "text": "bytes"})
    np.testing.assert_array_equal(open_dataset(path), np.stack(objects))
    assert open_dataset(path, field="text").compute().tolist() == fields["text"].tolist()


def test_arrays_in_memory_are_encoded_in_batches(tmp_path, monkeypatch):
    """A single batch would hold all encoded images, and use one thread."""
    sizes = []
    encode = sample_fields._images

    def counting(options, seed, values, numbers):
        sizes.append(len(values))
        return encode(options, seed, values, numbers)

    monkeypatch.setattr(sample_fields, "_images", counting)
    images = np.zeros((900, 40, 40, 3), "u1")
    save(tmp_path / "a.beton", {"x": images}, {"x": "image"})
    assert sum(sizes) == 900
    assert max(sizes) * 40 * 40 * 3 <= PAGE // 2


def test_writer_does_not_poll_slow_samples(tmp_path, monkeypatch):
    waits = []
    wait = ahead.wait

    def counting(*args):
        waits.append(args)
        return wait(*args)

    monkeypatch.setattr(ahead, "wait", counting)

    class Slow(Dataset):
        def __getitem__(self, number):
            time.sleep(0.5 * (number == 0))
            return (number,)

    save(tmp_path / "a.beton", Slow(range(60)), {"n": "int"}, workers=2)
    assert len(waits) <= 60


class Dying(Dataset):
    """Samples, one of which ends its process."""

    def __getitem__(self, number):
        if number == 20:
            os._exit(1)
        return (number,)


@pytest.mark.slow
def test_dead_process_raises(tmp_path):
    with ProcessPoolExecutor(1) as pool, pytest.raises(DatasetError, match=r"process.*samples"):
        save(tmp_path / "a.beton", Dying(range(30)), {"n": "int"}, executor=pool)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_children_of_a_killed_writer_do_not_block_others(tmp_path):
    """Processes that make samples survive their killed parent."""
    path, part = tmp_path / "a.beton", tmp_path / "a.beton.part"
    script = tmp_path / "write.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, script, path], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        process.stdout.readline()
        while not any(file.stat().st_size for file in part.glob("*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            save(path, {"x": np.arange(3)})
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert open_dataset(path).compute().tolist() == [0, 1, 2]


def test_errors_name_samples_by_source_index(tmp_path):
    samples = Dataset([(bytes(10),), (bytes(PAGE + 1),)])
    with pytest.raises(DatasetError, match=r"sample 1;.*page"):
        save(tmp_path / "a.beton", samples, {"text": "bytes"}, indices=[1, 0])

    def load(block_id):
        raise OSError("no such disk") if block_id[0] == 2 else ValueError("wrong")

    arr = da.map_blocks(load, chunks=((10,) * 3,), dtype="i8", meta=np.empty(0, "i8"))
    with pytest.raises(DatasetError, match=r"samples 20 to 29.*no such disk"):
        save(tmp_path / "a.beton", {"x": arr}, indices=range(20, 30))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_compute_arrays_by_themselves(tmp_path):
    """A worker that writes a file would deadlock if the cluster computed the arrays."""
    arr = da.from_array(np.arange(60), 9)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, **ANY_PORT
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        path = client.submit(save, tmp_path / "a.beton", {"x": arr}).result(timeout=300)
        other = save(tmp_path / "b.beton", {"x": arr + 1})
    np.testing.assert_array_equal(open_dataset(path), np.arange(60))
    np.testing.assert_array_equal(open_dataset(other), np.arange(60) + 1)


WAITING, CANCELLED = threading.Event(), threading.Event()
"""Set once a task of `waits` runs, and once it is cancelled."""


def waits(block):
    WAITING.set()
    CANCELLED.wait(300)
    return block


def fails_on(block, names):
    if distributed.get_worker().name in names:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return block


@pytest.mark.slow
def test_other_workers_try_failed_tasks(tmp_path):
    """Files equal those written without a cluster; errors of all workers name them."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), "u1")
    arr, types = da.from_array(pixels, (9, 5, 8, 3)), {"x": ImageField("jpg"), "k": "int"}
    labels = np.arange(60)
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": False, **ANY_PORT}
    with (
        distributed.LocalCluster(**options, silence_logs="CRITICAL") as cluster,
        distributed.Client(cluster) as client,
    ):
        for k, bad in enumerate(({0}, {0, 1}, {0, 1, 2})):
            failing = arr.map_blocks(fails_on, bad, meta=np.empty((0,) * 4, "u1"))
            path = tmp_path / f"{k}.beton"
            if len(bad) < 3:
                save(path, {"x": failing, "k": labels}, types, indices=range(3, 50))
                continue
            with pytest.raises(DatasetError, match=r"samples .*Input/output error") as caught:
                save(path, {"x": failing, "k": labels}, types, indices=range(3, 50))
            told = "; ".join(caught.value.__notes__)
            assert all(address in told for address in client.scheduler_info()["workers"])
            assert f"process {os.getpid()}" in told
            assert not path.exists()
        wait_for(lambda: not cluster.scheduler.tasks)
    save(tmp_path / "here.beton", {"x": arr, "k": labels}, types, indices=range(3, 50))
    expected = (tmp_path / "here.beton").read_bytes()
    assert (tmp_path / "0.beton").read_bytes() == expected
    assert (tmp_path / "1.beton").read_bytes() == expected


@pytest.mark.slow
def test_cancelled_tasks(tmp_path):
    """The error says so, and nothing is left."""
    arr = da.arange(60, chunks=9).map_blocks(waits, meta=np.empty(0, int))
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, **ANY_PORT}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:

        def cancel():
            WAITING.wait(300)
            some = [distributed.Future(key, client) for key in list(client.futures)]
            client.cancel(some, force=True)
            CANCELLED.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(DatasetError, match="tasks were cancelled") as caught:
            save(tmp_path / "a.beton", {"x": arr})
        thread.join()
    assert caught.value.path == str(tmp_path / "a.beton")
    assert list(tmp_path.iterdir()) == []


def test_invalid_paths_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"x": np.zeros((3, 4))}
    for path in ("s3://bucket/a.beton", "a\0.beton", 3):
        with pytest.raises(DatasetError, match="invalid path"):
            save(path, fields)
    save(f"file://{tmp_path}/a.beton", fields)
    assert os.listdir() == ["a.beton"]


def test_file_may_replace_its_own_source(tmp_path):
    fields = {"x": np.zeros((3, 4))}
    path = save(tmp_path / "a.beton", fields)
    save(path, {"x": open_dataset(path) + 1}, overwrite=True)
    np.testing.assert_array_equal(open_dataset(path), np.ones((3, 4)))


KILLED = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from dask_tiled import to_beton

class Slow:
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(3600 if i == 399 else 0)
        return (np.full(30_000, i % 256, "u1"),)

pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
types = {"x": ("u1", (30_000,))}
print("ready", flush=True)
to_beton(sys.argv[1], Slow(), types, page_size=1 << 21, progress=False, executor=pool)
"""


def test_two_writers_do_not_mix(tmp_path):
    inside = threading.Event()
    go_on = threading.Event()

    class Waiting(Dataset):
        def __getitem__(self, number):
            inside.set()
            go_on.wait(300)
            return super().__getitem__(number)

    path = tmp_path / "a.beton"
    first = threading.Thread(target=save, args=(path, Waiting([(1,)]), {"n": "int"}))
    first.start()
    inside.wait(300)
    try:
        with pytest.raises(DatasetError, match="another export"):
            save(path, Dataset([(2,)]), {"n": "int"})
    finally:
        go_on.set()
        first.join()
    assert open_dataset(path).compute().tolist() == [1]


def test_completed_file_is_not_overwritten_by_a_waiting_writer(tmp_path, monkeypatch):
    """A writer that waits for a lock may get it for the other writer's completed file."""
    path = tmp_path / "a.beton"
    opened, lock = [], locks._flock

    def late(file, flags):
        if not opened:
            opened.append(file)
            save(path, Dataset([(1,)]), {"n": "int"})
        return lock(file, flags)

    monkeypatch.setattr(locks, "_flock", late)
    with pytest.raises(DatasetError, match="the file exists"):
        save(path, Dataset([(2,)] * 50), {"n": "int"})
    assert open_dataset(path).compute().tolist() == [1]
    assert [one.name for one in tmp_path.iterdir()] == ["a.beton"]


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def jpeg_of(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=80)
    return stream.getvalue()


def test_tar_shards_are_written(tmp_path):
    images = [jpeg_of(np.full((8, 8 + i, 3), 9 * i, "u1")) for i in range(4)]
    shards = []
    for k in (0, 2):
        members = {}
        for i in (k, k + 1):
            members |= {f"train/{i:04}.jpg": images[i], f"train/{i:04}.cls": b"%d" % (i * 3)}
            members |= {f"train/{i:04}.meta.json": b'{"i": %d}' % i, f"train/{i:04}.Empty": b""}
        shards.append(tar_of(tmp_path / f"{k}.tar", members))
    samples = TarSamples(shards)
    assert len(samples) == 4
    assert samples[3]["__key__"] == "train/0003"
    types = {"jpg": ImageField("jpg"), "cls": "int", "meta.json": "json", "empty": "bytes"}
    path = save(tmp_path / "a.beton", samples, types)
    found = beton_reader.samples(path)
    assert [sample[0] for sample in found] == images  # not encoded again
    assert [sample[1:] for sample in found] == [[3 * i, {"i": i}, b""] for i in range(4)]
    with pytest.raises(DatasetError, match="'png'"):
        save(tmp_path / "b.beton", samples, {"png": "image"})
    (tmp_path / "no.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(DatasetError, match="not a tar file"):
        TarSamples(tmp_path / "no.tar")


def test_damaged_tar_files_are_refused(tmp_path):
    members = {f"{i}.cls": b"%d" % i for i in range(4)}
    path = tar_of(tmp_path / "a.tar", members)
    content = bytearray(path.read_bytes())
    content[2 * 1024 + 20] ^= 255  # the third header, which tarfile takes for the end
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="byte 2048"):
        TarSamples(path)
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("0.cls"), io.BytesIO())
    with pytest.raises(DatasetError, match=r"duplicate member.*0\.cls"):
        TarSamples(tmp_path / "b.tar")


@pytest.mark.parametrize(
    ("kind", "pixels"),
    [
        ("PNG", np.full((4, 4), 40_000, "u2")),
        ("PNG", np.full((4, 4, 4), 100, "u1")),
        ("TIFF", np.full((4, 4), 0.5, "f4")),
    ],
)
def test_images_not_in_8_bit_rgb_are_refused(tmp_path, kind, pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    with pytest.raises(DatasetError, match=r"of mode .*not 8-bit RGB"):
        save(tmp_path / "a.beton", Dataset([(stream.getvalue(),)]), {"image": "image"})


def test_images_with_long_sides(tmp_path):
    longest = np.zeros((1, 1, 65535, 3), "u1")
    assert (
        open_dataset(save(tmp_path / "a.beton", {"x": longest}, {"x": "image"})).shape[2] == 65535
    )
    for kind, size in (
        (ImageField("jpg"), 65535),
        (ImageField("raw", max_resolution=70_000), 80_000),
    ):
        with pytest.raises(DatasetError, match="one side of which is too long"):
            save(tmp_path / "b.beton", {"x": np.zeros((1, 1, size, 3), "u1")}, {"x": kind})


@pytest.mark.parametrize("wrong", [{"quality": 101}, {"proportion": "half"}, {"mode": "png"}])
def test_wrong_options(tmp_path, wrong):
    with pytest.raises(DatasetError):
        ImageField(**wrong)
    with pytest.raises(DatasetError, match="seed"):
        save(tmp_path / "a.beton", {"x": np.zeros(3)}, shuffle=True, seed=-1)


def test_images_are_downscaled(tmp_path):
    pixels = np.arange(40 * 20 * 3, dtype="u2").reshape(40, 20, 3).astype("u1")
    field = ImageField("raw", max_resolution=10)
    (found,) = beton_reader.samples(
        save(tmp_path / "a.beton", Dataset([(pixels,)]), {"image": field})
    )
    assert found[0].shape == (10, 5, 3)
    means = pixels.reshape(10, 4, 5, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(found[0], means, atol=1)


def test_smart_and_proportion_choose(tmp_path):
    small, large = np.zeros((4, 4, 3), "u1"), np.zeros((90, 90, 3), "u1")
    samples = Dataset([(small,), (large,)])
    smart = ImageField("smart", smart_threshold=1000)
    _, _, records, _ = beton_reader.read(save(tmp_path / "a.beton", samples, {"image": smart}))
    assert records["f0"]["mode"].tolist() == [1, 0]
    some = Dataset([(small,)] * 400)
    types = {"image": ImageField("proportion", proportion=0.3)}
    first = save(tmp_path / "b.beton", some, types, seed=5)
    _, _, records, _ = beton_reader.read(first)
    assert 60 < (records["f0"]["mode"] == 0).sum() < 180
    assert save(tmp_path / "c.beton", some, types, seed=5).read_bytes() == first.read_bytes()
