"""Data sets of PyTorch: each sample once among workers and ranks, resumed, as tensors."""

import copy
import gc
import os
import signal
import subprocess
import sys
from collections import defaultdict
from io import BytesIO
from itertools import chain, pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checks import pytorch
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import DatasetError, iter_batches, open_dataset

torch = pytorch()

from dask_tiled.training import loading, shared  # noqa: E402 - needs PyTorch

DataLoader = torch.utils.data.DataLoader
COUNT = 4 * 5 + 23
SHUFFLES = False, "pages", "all"
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than cores


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two scans, whose pixels tell the number of the frame."""
    folder = tmp_path_factory.mktemp("loading")
    frames = np.tile(np.arange(COUNT, dtype="u2")[:, None, None], (1, 6, 4))
    for name, part in (("a", frames[:20]), ("b", frames[20:])):
        np.save(folder / f"{name}.npy", part)
    return [open_dataset(folder / "a.npy", nav_shape=(4, 5)), open_dataset(folder / "b.npy")]


def numbers(batches):
    """Return the numbers of the samples of each batch, which the pixels tell, too."""
    found = []
    for batch in batches:
        assert (batch["frame"].int() == batch["index"][:, None, None]).all()
        found.append(batch["index"].tolist())
    return found


def loaded(data, workers=0, **options):
    method = options.pop("method", "fork")
    options |= {"multiprocessing_context": method if workers else None}
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


def batches_of(source, size=4, **options):
    options = {"fields": ["frame", "index"], "dtype": torch.int32, **options}
    return loading.IterableBatches(source, size, **options)


@pytest.mark.parametrize(
    ("workers", "method", "epochs"),
    [
        (0, None, (0, 2)),
        (1, "fork", (0, 2)),
        (2, "fork", (0, 2)),
        # Each process that is not a fork imports PyTorch, which takes seconds.
        pytest.param(1, "forkserver", (2,), marks=pytest.mark.slow),
        pytest.param(2, "spawn", (2,), marks=pytest.mark.slow),
    ],
)
def test_batches_do_not_depend_on_workers(source, workers, method, epochs):
    data = batches_of(source, shuffle="all", seed=3, rank=1, world_size=2)
    for epoch in epochs:
        data.set_epoch(epoch)
        options = {"shuffle": "all", "seed": 3, "epoch": epoch, "part": (1, 2)}
        expected = [
            b["index"].tolist() for b in iter_batches(source, 4, fields=["index"], **options)
        ]
        assert numbers(loaded(data, workers, method=method)) == expected
        assert len(data) == len(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("world", [1, 2, 3])
@settings(max_examples=15)
@given(data=st.data())
def test_each_sample_is_read_once(source, world, data):
    workers = data.draw(st.integers(0, 4), label="workers")
    size = data.draw(st.integers(1, 60), label="batch_size")
    options = {"shuffle": data.draw(st.sampled_from(SHUFFLES)), "tail": "keep"}
    epochs = []
    for epoch in range(5):
        whole = []
        for rank in range(world):
            given_ = options | {"rank": rank, "world_size": world, "epoch": epoch}
            parts = []
            for worker in range(max(1, workers)):
                info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
                    parts.append(numbers(batches_of(source, size, **given_)))
            # The DataLoader takes a batch of each worker in turn.
            longest = max(map(len, parts))
            turns = [part[k] for k in range(longest) for part in parts if k < len(part)]
            whole += [number for batch in turns for number in batch]
        assert sorted(whole) == [*range(COUNT)]
        epochs.append(whole)
    assert len({*map(tuple, epochs)}) == (5 if options["shuffle"] else 1)


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")  # of torchdata's imports
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_resumes_at_each_batch(source, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"batch_size": None, "num_workers": workers}
    options |= {"multiprocessing_context": "fork"} if workers else {}
    whole = numbers(stateful(batches_of(source, shuffle="all", epoch=1), **options))
    for stop in range(len(whole) + 1):
        loader = stateful(batches_of(source, shuffle="all", epoch=1), **options)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        state = loader.state_dict()
        del batches, loader
        again = stateful(batches_of(source, shuffle="all"), **options)
        again.load_state_dict(state)
        assert numbers(again) == whole[stop:]


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
@pytest.mark.parametrize("size", [1, 20, 100])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_resumes_at_each_hundredth_sample(workers, size):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"batch_size": None, "num_workers": workers}
    options |= {"multiprocessing_context": "fork"} if workers else {}
    count = 300 if workers else 700
    data = {"label": np.arange(count)}

    def loader():
        batches = loading.IterableBatches(data, size, shuffle="all", seed=2, epoch=3)
        return stateful(batches, **options)

    whole = [batch["label"].tolist() for batch in loader()]
    assert sorted(chain.from_iterable(whole)) == [*range(count)]
    states, begun = {}, loader()
    for number, _ in enumerate(begun, 1):
        if number * size % 100 == 0:
            states[number] = begun.state_dict()
    assert [*states] == [n // size for n in range(100, count + 1, 100)]
    for number, state in states.items():
        again = loader()
        again.load_state_dict(state)
        assert [batch["label"].tolist() for batch in again] == whole[number:]


class AllParts(torch.utils.data.IterableDataset):
    """The samples of each rank, way of shuffling and epoch that a worker reads."""

    def __init__(self, source):
        super().__init__()
        self._source = source

    def __iter__(self):
        for world, shuffle in product((1, 2, 3), SHUFFLES):
            for rank in range(world):
                options = {"rank": rank, "world_size": world, "shuffle": shuffle, "tail": "keep"}
                data = batches_of(self._source, 5, fields=["index"], **options)
                for epoch in range(5):
                    data.set_epoch(epoch)
                    for batch in data:
                        yield f"{world} {shuffle} {epoch}", batch["index"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 1), ("fork", 2), ("fork", 3), ("fork", 4), ("spawn", 1)]
)
def test_real_workers_and_ranks_read_each_sample_once(source, method, workers):
    epochs = defaultdict(list)
    for which, some in loaded(AllParts(source), workers, method=method):
        epochs[which] += some
    assert len(epochs) == 3 * len(SHUFFLES) * 5
    assert {tuple(sorted(some)) for some in epochs.values()} == {(*range(COUNT),)}


@pytest.fixture(params=["in shared memory", "by PyTorch"])
def way(request, monkeypatch):
    """How workers send batches; the first needs Linux."""
    if request.param == "by PyTorch":
        monkeypatch.setattr(shared, "_create", None)
    elif shared._create is None:
        pytest.skip("the system has no files in memory")
    return request.param


def kept(batch, last=[]):  # noqa: B006 - of a worker
    """Return a batch with the one before, which the worker keeps."""
    before = dict(last[-1]) if last else batch
    last[:] = [batch]
    return {**batch, "before": before["frame"]}


@pytest.mark.thorough
@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("transform", [None, kept])
def test_batches_of_workers_stay_as_they_are(source, way, size, transform):
    """More of them than the shared memory has room for, which is freed with the last one."""
    data = batches_of(source, size, dtype=None, transform=transform, fields=["frame", "index"])
    batches = [*loaded(data, 1)]
    assert sorted(chain.from_iterable(numbers(batches))) == [*range(COUNT)]
    if transform is not None:
        for before, batch in pairwise(batches):
            assert torch.equal(batch["before"], before["frame"])
    memory = [*shared._mapped.values()]
    is_mapped = [any(np.shares_memory(one["frame"].numpy(), m) for m in memory) for one in batches]
    assert any(is_mapped) == (way == "in shared memory")
    before = batch = None
    del batches, before, batch, memory
    gc.collect()
    assert not shared._mapped


def another(batch):
    """Return a batch with tensors of another dtype."""
    batch["frame"] = batch["frame"].float() * 1000
    return batch


def in_place(batch):
    """Change the tensors of a batch, of which copies are kept as they were."""
    kept, saved = copy.deepcopy(batch), BytesIO()
    torch.save(batch, saved)
    batch["frame"].mul_(1000)
    saved.seek(0)
    return {**batch, "kept": kept["frame"], "saved": torch.load(saved)["frame"]}


def with_more(batch):
    """Return a copy of a batch with another element; the batch has none."""
    changed = copy.copy(batch)
    changed["more"] = batch["frame"][:, ::2]
    return {**changed, "fields": [*batch]}


@pytest.mark.thorough
@pytest.mark.parametrize("change", [another, in_place, with_more])
@pytest.mark.parametrize("dtype", [None, torch.int32])
def test_changes_of_batches_in_workers_are_kept(source, change, dtype):
    """In a function that collates, as without workers."""
    data = batches_of(source, 4, dtype=dtype)
    pairs = zip(loaded(data, 0, collate_fn=change), loaded(data, 1, collate_fn=change), strict=True)
    for wanted, batch in pairs:
        assert [*batch] == [*wanted]
        for name, value in wanted.items():
            assert batch[name] is value or np.array_equal(batch[name], value)
            assert getattr(batch[name], "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_forked_processes_keep_their_batches(source):
    """Also while this process drops them, and gets others in their place."""
    batches = iter(loaded(batches_of(source, 1, dtype=None), 1))
    frame = next(batches)["frame"]
    expected = frame.clone()
    (is_read, read), (is_over, over) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(is_read, 1)
        os.write(over, b"1" if torch.equal(frame, expected) else b"0")
        os._exit(0)
    del frame
    assert len([*batches]) == COUNT - 1
    os.write(read, b".")
    assert os.read(is_over, 1) == b"1"
    os.waitpid(child, 0)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
def test_forks_do_not_use_up_the_memory(source, monkeypatch):
    """All batches come in memory of their worker, though forks keep those before them."""
    monkeypatch.setattr(shared, "SLOTS", 8)
    for batch in loaded(batches_of(source, 3, dtype=None), 1):
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
        at = batch["frame"].data_ptr()
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        (name,) = (
            words[5]
            for words in lines
            if int(words[0].split("-")[0], 16) <= at < int(words[0].split("-")[1], 16)
        )
        assert name == "/memfd:dask-tiled"


@pytest.mark.thorough
def test_batches_of_workers_are_collated(source, way):  # noqa: ARG001 - a fixture
    """By a function that gets a dict of tensors; the slots of what it drops are free again."""
    data = batches_of(source, 1, dtype=None)
    collate = {"collate_fn": lambda batch: [type(batch["frame"]), batch["frame"].sum() + 0]}
    for frame, total in loaded(data, 1, **collate):
        assert frame is torch.Tensor
        assert total % 24 == 0


@pytest.mark.thorough
def test_a_state_serves_any_number_of_workers(source):
    data = batches_of(source, shuffle="pages", seed=1)
    data.set_epoch(4)
    whole = numbers(data)
    data.load_state_dict({"epoch": 4, "batch": 3})
    data.set_epoch(4)  # as loops over epochs do; the place is kept
    assert numbers(loaded(data, 2)) == whole[3:]
    assert numbers(data) == whole[3:]  # the data set of this process was not iterated over
    assert numbers(data) == whole
    assert data.state_dict() == {"epoch": 4, "batch": len(whole)}
    data.set_epoch(5)
    assert data.state_dict() == {"epoch": 5, "batch": 0}


@pytest.mark.thorough
def test_workers_that_persist_see_the_epoch(source):
    data = batches_of(source, shuffle="all")
    loader = loaded(data, 2, persistent_workers=True)
    for epoch in (0, 1):
        data.set_epoch(epoch)
        assert numbers(loader) == numbers(batches_of(source, shuffle="all", epoch=epoch))


@pytest.mark.thorough
def test_iter_batches_in_workers(source):
    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            for part in parts:
                yield from iter_batches(source, 4, fields=["index"], part=part, share=share)

    for parts, share, times in (  # noqa: B007 - read by workers
        ([None], True, 1),
        ([(0, 2), (1, 2)], True, 1),
        ([None], False, 2),
    ):
        batches = loaded(Batches(), 2)
        found = sorted(chain.from_iterable(batch["index"].tolist() for batch in batches))
        expected = [*range(COUNT)] + ([0] if parts[0] else [])  # a part is padded
        assert found == sorted(times * expected)


@pytest.mark.thorough
def test_more_workers_than_batches(source):
    assert numbers(loaded(batches_of(source, 60), 2)) == [[*range(COUNT)]]


def test_tensors(source):
    label = np.arange(COUNT, dtype="i8")
    names = {"fields": ["frame", "label", "scan"]}
    (batch,) = loading.IterableBatches({"frame": source, "label": label}, 60, **names)
    assert batch["frame"].dtype == torch.uint16
    assert {value.dtype for name, value in batch.items() if name != "frame"} == {torch.int64}
    for tensor in batch.values():
        assert tensor.is_contiguous()
        assert tensor.numpy().flags.writeable
    fields = {"frame": source, "label": label}
    options = {"dtype": torch.float32, "transform": lambda batch: batch["frame"].mean((1, 2))}
    (means,) = loading.IterableBatches(fields, 60, **options)
    assert (means == torch.arange(COUNT)).all()


def test_objects_are_lists(tmp_path):
    path = tmp_path / "a.beton"
    dask_tiled.to_beton(
        path, [(b"a", 1), (b"bc", 2)], {"text": "bytes", "n": "int"}, progress=False
    )
    (batch,) = loading.IterableBatches(path, 2)
    assert batch["text"] == [b"a", b"bc"]
    assert loading.Frames(path)[1]["text"] == b"bc"


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_frames_by_number(source, workers):
    options = {"multiprocessing_context": "fork"} if workers else {}
    data = loading.Frames(source, fields=["frame", "index"], dtype=torch.int32)
    loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=workers, **options)
    assert sorted(chain.from_iterable(numbers(loader))) == [*range(COUNT)]
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 5, False)
    loader = DataLoader(data, batch_size=None, sampler=sampler, num_workers=workers, **options)
    assert sorted(chain.from_iterable(numbers(loader))) == [*range(COUNT)]


def test_frames_like_a_sequence(source):
    data = loading.Frames(
        source, fields=["frame", "index"], transform=lambda one: int(one["index"])
    )
    assert len(data) == COUNT
    assert [data[k] for k in (0, 41, -1)] == [0, 41, COUNT - 1]
    with pytest.raises(IndexError, match="no sample 43 of 43"):
        data[COUNT]


@pytest.mark.thorough
def test_a_killed_worker_is_an_error(source):
    data = batches_of(source, transform=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match="worker"):
        next(iter(loaded(data, 1)))


def test_a_file_that_changes_is_an_error(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 6, 4), "u2"))
    data = batches_of(path)
    np.save(path, np.zeros((5, 6, 4), "u2"))
    with pytest.raises(dask_tiled.StaleFileError, match=r"a\.npy"):
        next(iter(loaded(data, 1)))


@pytest.fixture
def ranks(monkeypatch):
    """Pretend to be one of two ranks; return a function that sets which."""
    store, distributed = torch.distributed.HashStore(), torch.distributed
    private = "torch.distributed.distributed_c10d._get_default_store"
    monkeypatch.setattr(private, lambda: store)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)

    def be(rank):
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(loading, "_number", iter(range(9)))

    return be


@pytest.mark.thorough
def test_ranks_of_torch_divide_samples(source, ranks):
    found = []
    for rank in range(2):
        ranks(rank)
        found += chain.from_iterable(numbers(batches_of(source, tail="keep")))
    assert found == [*range(COUNT)]


def test_ranks_that_disagree_are_told(source, ranks):
    ranks(0)
    batches_of(source, shuffle="all", seed=1)
    ranks(1)
    with pytest.warns(UserWarning, match=r"ranks disagree.*43, 2, 'all'.*rank 1.*43, 1, 'all'"):
        batches_of(source, shuffle="all", seed=2)


def test_processes_without_ranks_are_told(source, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="init_process_group"):
        batches_of(source)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rank": 1}, "belong together"),
        ({"rank": 2, "world_size": 2}, r"part\[0\]"),
        ({"dtype": "float32"}, "torch.dtype"),
        ({"tail": "cut"}, "invalid tail"),
        ({"epoch": -1}, "epoch"),
        ({"size": 0}, "batch_size"),
        ({"samples": "image"}, "invalid samples"),
        ({"shuffle": "x"}, "invalid shuffle"),
        ({"transform": 3}, "invalid transform"),
    ],
)
def test_wrong_arguments(source, options, problem):
    with pytest.raises(DatasetError, match=problem):
        batches_of(source, **options)


def test_a_batch_whose_transform_fails_is_resumed(source):
    data = batches_of(source, transform=lambda batch: 1 // int(batch["index"][0] != 8))
    with pytest.raises(ZeroDivisionError):
        list(data)
    assert data.state_dict() == {"epoch": 0, "batch": 2}


def test_foreign_byte_order():
    (batch,) = loading.IterableBatches({"label": np.arange(3, dtype=">i4")}, 3)
    assert batch["label"].tolist() == [0, 1, 2]


def test_wrong_numbers_of_frames(source):
    data = loading.Frames(source)
    assert data.__getitems__([]) == []
    for number in (1.5, "a", True, [], np.arange(2), ["a"]):
        with pytest.raises(DatasetError, match="number"):
            data[number]


def test_wrong_states_and_dtypes(source):
    for state in (None, 5, {"epoch": 0, "batch": 99}):
        with pytest.raises(DatasetError, match=r"invalid state|batch.*0 to 11"):
            batches_of(source).load_state_dict(state)
    with pytest.raises(DatasetError, match="invalid state"):
        batches_of(source).load_state_dict({"epoch": 1})
    dates = {"frame": np.zeros(2, "M8[s]")}
    with pytest.raises(DatasetError, match=r"no such dtype.*'frame'.*datetime64"):
        next(iter(loading.IterableBatches(dates, 2)))


@pytest.mark.thorough
def test_patterns_and_patches_in_workers(source):
    scan = source[0]
    data = loading.IterableBatches(dask_tiled.Patterns(scan, size=(2, 2)), 4, shuffle="all")
    found = torch.cat([batch["frame"][:, 0, 0] for batch in loaded(data, 2)])
    assert sorted(found.tolist()) == [*range(20)]
    patches = loading.Frames(scan, patch={"y": 2, "x": 4}, fields=["frame", "start"])
    starts = [item["start"].tolist() for item in patches.__getitems__(range(4))]
    assert starts == [[0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 4, 0], [0, 1, 0, 0]]


def test_tensors_elsewhere_are_refused():
    with pytest.raises(DatasetError, match=r"no array in memory.*'label'.*meta device"):
        loading.Frames({"label": torch.zeros(3, device="meta")})


@pytest.mark.slow
def test_loaders_do_not_import_distributed(tmp_path):
    """It takes .2 s, and a client is looked for where it is imported."""
    np.save(tmp_path / "a.npy", np.zeros((9, 6, 4), "u2"))
    code = """
import sys, dask_tiled
arr = dask_tiled.open_dataset(sys.argv[1])
for source in (arr, arr + 1, {"frame": arr, "sums": arr.sum((1, 2))}):
    for options in ({}, {"shuffle": "all", "prefetch": 0}):
        assert len([*dask_tiled.torch.IterableBatches(source, 4, **options)]) == 3
    dask_tiled.torch.Frames(source)[[0, 8]]
assert "distributed" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.npy"], check=True)


@pytest.mark.slow
def test_without_torch():
    code = "import sys; sys.modules['torch'] = None; import dask_tiled; dask_tiled.torch.Frames"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "dask-tiled[torch]"' in done.stderr
