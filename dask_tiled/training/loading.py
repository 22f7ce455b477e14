"""Data sets of PyTorch: batches for the workers of a DataLoader and for ranks, frames by number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np

from dask_tiled.blocks.ahead import AHEAD_BYTES
from dask_tiled.errors import DatasetError, check_whole, require_extra, warn
from dask_tiled.foreign import NoSuchNameError, find
from dask_tiled.model.indexing import Index
from dask_tiled.training.arrays import Make
from dask_tiled.training.batches import cut, read_batches, worker_of_torch
from dask_tiled.training.order import Shuffle, Tail, check_shuffle, part_of, shuffled, span_of
from dask_tiled.training.patches import POSITION, START, Edges, Patches
from dask_tiled.training.scans import Batch, SampleSet
from dask_tiled.training.shared import SentBatches

torch: Any = require_extra("torch", "torch")

_number = count()
"""Numbers data sets, for comparisons among ranks."""


class IterableBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of samples as tensors, divided among the workers of a DataLoader and among ranks.

    Pass it to a DataLoader with ``batch_size=None``. The batches and their order are the same with
    any number of workers, so an epoch resumes anywhere: :meth:`state_dict` is read by torchdata's
    StatefulDataLoader, or without workers by yourself.

    Parameters
    ----------
    source : array, path, list of them, catalogue, or mapping of str to these
        As in :func:`~dask_tiled.iter_batches`.
    batch_size : int
        Samples of a batch; the last batch may have fewer.
    samples, patch, overlap, edges, fields, shuffle, seed, tail, drop_last : optional
        As in :func:`~dask_tiled.iter_batches`.
    prefetch, max_bytes : int
        As in :func:`~dask_tiled.iter_batches`, for each worker.
    epoch : int
        Number of the first epoch; see :meth:`set_epoch`.
    rank, world_size : int, optional
        Number of this process, and of all processes that train together; by default those of
        torch.distributed, if that is initialised.
    dtype : torch.dtype, optional
        Type of fields that are arrays, such as frames; by default their own. Numbers, such as
        labels, keep theirs.
    transform : callable, optional
        Called with each batch of tensors; its result is returned.
    **options
        Options of :func:`~dask_tiled.open_dataset`, for each path.

    Returns
    -------
    iterator of dict of str to Tensor or list
        Contiguous, writeable tensors; for objects a list.

    Raises
    ------
    ImportError
        PyTorch is not installed.
    DatasetError, TilingError
        The arguments are invalid or inconsistent.

    Warns
    -----
    UserWarning
        Ranks differ in the seed or in the samples; or the environment tells of several processes,
        but torch.distributed is not initialised.

    Examples
    --------
    >>> import torch
    >>> import dask_tiled
    >>> scan = dask_tiled.samples.gold()
    >>> data = dask_tiled.torch.IterableBatches(scan, 64, shuffle="pages", dtype=torch.float32)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=None)
    >>> next(iter(loader))["frame"].shape
    torch.Size([64, 128, 128])
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        samples: str | Sequence[str] = "frame",
        patch: Mapping[str, int] | None = None,
        overlap: Mapping[str, int] | None = None,
        edges: Edges = "shift",
        fields: Sequence[str] | None = None,
        shuffle: Shuffle = False,
        seed: int = 0,
        tail: Tail = "pad",
        drop_last: bool = False,
        prefetch: int = 1,
        max_bytes: int = AHEAD_BYTES,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        patches = Patches.of(patch, overlap, edges)
        self._samples = SampleSet.of(source, samples, fields, options, patches)
        self._size = check_whole("batch_size", batch_size, least=1)
        self._seed = check_whole("seed", seed, least=0)
        self._shuffle, self._tail, self._drop_last = shuffle, tail, drop_last
        check_shuffle(shuffle)
        self._dtype, self._transform = _checked(dtype, transform)
        self._prefetch = check_whole("prefetch", prefetch, least=0)
        self._max_bytes = check_whole("max_bytes", max_bytes, least=0)
        self._part = _part_of_ranks(rank, world_size, (len(self._samples), seed, shuffle))
        span_of(len(self._samples), self._part, tail)  # checks the arguments
        # In shared memory: workers that persist see later epochs.
        first = torch.tensor(check_whole("epoch", epoch, least=0), dtype=torch.int64)
        self._epoch = first.share_memory_()
        self._next = self._first = 0
        self._is_loaded_in_worker = False
        self._sent = SentBatches()

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, on which the order depends, before iterating over it.

        The position of a loaded state is kept, if it is of this epoch.
        """
        if check_whole("epoch", epoch, least=0) != self.epoch:
            self._epoch.fill_(epoch)
            self._next = self._first = 0

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        _, n_samples = span_of(len(self._samples), self._part, self._tail)
        return n_samples // self._size + (not self._drop_last and n_samples % self._size > 0)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of this worker and rank, from a loaded state on."""
        worker, workers = worker_of_torch()
        first = self._first + (0 if self._is_loaded_in_worker else worker)
        self._first, self._is_loaded_in_worker = 0, False
        chance = self._seed, self.epoch
        order = shuffled(len(self._samples), self._shuffle, self._samples.stored_bytes, chance)
        order = part_of(order, self._part, self._tail)
        self._next = first
        batches = cut(order, self._size, drop_last=self._drop_last)
        return self._read(batches[first::workers], workers)

    def _read(self, batches: Sequence[Index], step: int) -> Iterator[Any]:
        is_direct = self._dtype is None and self._transform is None
        memory = self._sent.make if is_direct else lambda: np.empty
        made = read_batches(self._samples, batches, self._prefetch, self._max_bytes, memory)
        with closing(made):
            for batch, numbers in zip(made, batches, strict=True):
                tensors = _tensors(batch, self._dtype)
                made_of = tensors if self._transform is None else self._transform(tensors)
                del batch, tensors
                self._next += step  # not before: the state names a batch that fails
                yield self._sent.shared(made_of, self._size / len(numbers))

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of the next batch, of this worker if there are any."""
        return {"epoch": self.epoch, "batch": self._next}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin the next iteration at the place of a state.

        Raises
        ------
        DatasetError
            It is no state of such a data set.
        """
        if not isinstance(state, Mapping) or not {"epoch", "batch"} <= {*state}:
            raise DatasetError("invalid state", expected="epoch and batch", found=repr(state))
        in_worker = torch.utils.data.get_worker_info() is not None
        # The next batch of a worker may be behind the last one.
        most = None if in_worker else len(self)
        batch = check_whole("batch", state["batch"], least=0, most=most)
        self.set_epoch(state["epoch"])
        self._next = self._first = batch
        self._is_loaded_in_worker = in_worker


class Frames(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, as tensors: a map-style data set for any sampler.

    A DataLoader with automatic batching reads a batch at once, and stacks copies of its samples.
    With ``batch_size=None`` and a BatchSampler as ``sampler``, it asks for all numbers of a batch,
    which is returned as it was read.

    Parameters
    ----------
    source : array, path, list of them, catalogue, or mapping of str to these
        As in :func:`~dask_tiled.iter_batches`.
    samples, patch, overlap, edges, fields : optional
        As in :func:`~dask_tiled.iter_batches`.
    dtype : torch.dtype, optional
        Type of fields that are arrays, such as frames; by default their own.
    transform : callable, optional
        Called with each sample, or with each batch that is asked for as a whole: a dict of
        tensors; its result is returned.
    **options
        Options of :func:`~dask_tiled.open_dataset`, for each path.

    Raises
    ------
    ImportError
        PyTorch is not installed.
    DatasetError, TilingError
        The arguments are invalid or inconsistent.

    Examples
    --------
    >>> import torch
    >>> import dask_tiled
    >>> frames = dask_tiled.torch.Frames(dask_tiled.samples.gold(), fields=["frame", "position"])
    >>> len(frames), frames[70]["frame"].shape
    (3840, torch.Size([128, 128]))
    >>> loader = torch.utils.data.DataLoader(frames, batch_size=64, shuffle=True)
    >>> frames[[3, 70, 5]]["frame"].shape
    torch.Size([3, 128, 128])
    """

    def __init__(
        self,
        source: Any,
        *,
        samples: str | Sequence[str] = "frame",
        patch: Mapping[str, int] | None = None,
        overlap: Mapping[str, int] | None = None,
        edges: Edges = "shift",
        fields: Sequence[str] | None = None,
        dtype: Any = None,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        patches = Patches.of(patch, overlap, edges)
        self._samples = SampleSet.of(source, samples, fields, options, patches)
        self._dtype, self._transform = _checked(dtype, transform)
        self._sent = SentBatches()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def __getitem__(self, number: Any) -> Any:
        """Read a sample, or several as one batch."""
        if isinstance(number, (list, tuple)) and number:
            is_direct = self._dtype is None and self._transform is None
            batch = self._read(number, self._sent.make() if is_direct else np.empty)
            return self._sent.shared(self._transformed(batch))
        if np.ndim(number):
            raise DatasetError("not a number of a sample", found=repr(number))
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read several samples at once."""
        if not len(numbers):
            return []
        columns = self._read(numbers)
        some = ({name: column[k] for name, column in columns.items()} for k in range(len(numbers)))
        return [*map(self._transformed, some)]

    def _read(self, numbers: Sequence[int], make: Make = np.empty) -> dict[str, Any]:
        wanted = np.array([check_whole("number", number) for number in numbers], np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        wrong = (wanted < 0) | (wanted >= len(self))
        if wrong.any():
            raise IndexError(f"no sample {np.asarray(numbers)[wrong][0]} of {len(self)}")
        (batch,) = self._samples.read([wanted], make)
        return _tensors(batch, self._dtype)

    def _transformed(self, sample: Any) -> Any:
        return sample if self._transform is None else self._transform(sample)


def _checked(dtype: Any, transform: Any) -> tuple[Any, Any]:
    if transform is not None and not callable(transform):
        raise DatasetError("invalid transform", expected="a function", found=repr(transform))
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise DatasetError("invalid dtype", expected="a torch.dtype", found=repr(dtype))
    return dtype, transform


def _tensors(batch: Batch, dtype: Any) -> dict[str, Any]:
    """Return tensors that share the memory of arrays; lists of objects stay."""
    return {
        name: value if isinstance(value, list) else _tensor(name, np.asarray(value), dtype)
        for name, value in batch.items()
    }


def _tensor(name: str, value: Any, dtype: Any) -> Any:
    native = value.dtype.newbyteorder("=")
    try:
        tensor = torch.from_numpy(np.require(value, native, requirements=["C", "W"]))
    except TypeError as error:
        raise DatasetError(
            "PyTorch has no such dtype",
            where=f"field {name!r}",
            found=value.dtype,
            hint="Convert it: arr.astype(...).",
        ) from error
    casts = dtype is not None and tensor.ndim > 1 and name not in (POSITION, START)
    return tensor.to(dtype) if casts else tensor


def _part_of_ranks(rank: int | None, world_size: int | None, facts: object) -> tuple[int, int]:
    """Return the number of this process and of all; compare facts among ranks.

    The store of torch.distributed holds the facts of ranks that came earlier: nothing waits for
    another rank.
    """
    if (rank is None) != (world_size is None):
        raise DatasetError("rank= and world_size= belong together", found=f"{rank}, {world_size}")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            warn(
                "WORLD_SIZE tells of several processes, but torch.distributed is not initialised, "
                "so this one reads all samples: call init_process_group() before, or pass rank= "
                "and world_size="
            )
        return 0, 1
    mine, world = distributed.get_rank(), distributed.get_world_size()
    name = f"dask-tiled/batches/{next(_number)}"
    try:
        store = find("torch.distributed.distributed_c10d", "_get_default_store")()
        store.set(f"{name}/{mine}", repr(facts))
        for other in range(world):
            if other != mine and store.check([f"{name}/{other}"]):
                theirs = store.get(f"{name}/{other}").decode()
                if theirs != repr(facts):
                    warn(
                        "ranks disagree on the number of samples, the seed or the shuffle, so they "
                        f"do not divide the samples: {facts} of rank {mine}, {theirs} of {other}"
                    )
    except (NoSuchNameError, NotImplementedError):  # a store that cannot check
        pass
    return mine, world
