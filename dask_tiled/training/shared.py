"""Batches of a DataLoader's worker in memory that its main process maps, instead of in messages.

PyTorch copies each tensor to a new shared file: its pages are cleared, filled and mapped for every
batch. Here a worker has one file with room for some batches, which are used again.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import ceil, prod
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import require_extra
from dask_tiled.model.indexing import Array
from dask_tiled.system.forks import after_fork, before_fork
from dask_tiled.system.names import offered
from dask_tiled.training.arrays import Make

torch: Any = require_extra("torch", "torch")

SLOTS = 16
"""Batches of a worker at a time, of which others are sent as PyTorch does; unused ones take no
memory."""
HEADER_BYTES = mmap.PAGESIZE
"""Bytes before the first slot."""
HERE, THERE = 0, 1
"""Rows of the bytes that tell whether the worker, and the receiver, use each slot."""
USED, LOST = 1, 2
"""Values of these bytes: a fork of the receiver may use a lost slot, as long as it runs."""
ALIGNMENT = 64
_create: Callable[[str], int] | None = offered("os", "memfd_create")  # Linux


class TensorPlace(NamedTuple):
    """A tensor in a slot."""

    offset: int
    shape: tuple[int, ...]
    dtype: Any


class MemoryFile(NamedTuple):
    """A file in memory, as another process of this machine opens it."""

    pid: int
    fd: int
    inode: int
    slot_bytes: int

    @property
    def path(self) -> str:
        """Its path while its process runs."""
        return f"/proc/{self.pid}/fd/{self.fd}"

    @property
    def is_there(self) -> bool:
        """Whether its process still has it open."""
        with suppress(OSError):
            return os.stat(self.path).st_ino == self.inode
        return False

    def mapped(self, fd: int) -> Array:
        """Return the bytes of the file, by an own descriptor of it."""
        return np.frombuffer(mmap.mmap(fd, HEADER_BYTES + SLOTS * self.slot_bytes), "u1")

    def slot(self, memory: Array, number: int) -> Array:
        """Return the bytes of a slot as an array that other arrays of it keep alive."""
        start = HEADER_BYTES + number * self.slot_bytes
        return np.frombuffer(memory.data[start : start + self.slot_bytes], "u1")


def in_use_of(memory: Array) -> Array:
    """Return a byte for each process and slot at the start of shared memory; 0 is free."""
    return memory[: 2 * SLOTS].reshape(2, SLOTS)


class BatchMemory:
    """Slots for the batches of a worker.

    Parameters
    ----------
    nbytes : int
        Bytes of a slot.

    Raises
    ------
    OSError
        The system has no such memory.
    """

    def __init__(self, nbytes: int) -> None:
        if _create is None:
            raise OSError("no file in memory")
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = _create("dask-tiled")  # open until this process ends
        os.ftruncate(fd, HEADER_BYTES + SLOTS * nbytes)
        self.name = MemoryFile(os.getpid(), fd, os.fstat(fd).st_ino, nbytes)
        if not self.name.is_there:
            os.close(fd)
            raise OSError("no /proc")
        self._memory = self.name.mapped(fd)
        self._address, self._in_use = self._memory.ctypes.data, in_use_of(self._memory)
        self._lock = threading.Lock()
        self._open = dict[int, BatchSlot]()

    def slot(self) -> BatchSlot | None:
        """Return a free slot; None if there is none."""
        with self._lock:
            number = int(np.argmin(self._in_use.any(axis=0)))
            if self._in_use[:, number].any():
                return None
            self._in_use[HERE, number] = USED
            held = self.name.slot(self._memory, number)
            slot = self._open[number] = BatchSlot(number, held, self._in_use)
        _call_after(held, self._drop, number)
        return slot

    @property
    def is_worn(self) -> bool:
        """Whether half of the slots are lost."""
        return 2 * int(np.count_nonzero(self._in_use[THERE] == LOST)) >= SLOTS

    def close(self) -> bool:
        """Close the file unless a batch is being sent or in use; return whether it is closed.

        Processes that have mapped it keep the memory.
        """
        is_idle = not self._in_use[HERE].any() and not (self._in_use[THERE] == USED).any()
        if is_idle:
            os.close(self.name.fd)
        return is_idle

    def _drop(self, number: int) -> None:
        """Take note that no array of the worker uses a slot any more."""
        del self._open[number]
        self._in_use[HERE, number] = 0

    def make(self) -> Make:
        """Return a function that allocates arrays in a slot, if there is one."""
        slot = self.slot()
        return np.empty if slot is None else partial(slot.make, slot.release())

    def slot_of(self, tensor: Any) -> BatchSlot | None:
        """Return the slot in which a tensor lies; None if it lies elsewhere."""
        at: int = tensor.data_ptr() - self._address - HEADER_BYTES
        return self._open.get(at // self.name.slot_bytes) if at >= 0 else None


class SentBatches:
    """The batches that a worker sends: in shared memory, if the system offers that."""

    def __init__(self) -> None:
        self._memory: BatchMemory | None = None
        self._worn = list[BatchMemory]()
        """Earlier memory, of which batches are still in use."""
        self._pid = 0
        """The worker whose memory it is, or that has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Send no memory to other processes."""
        return SentBatches, ()

    def make(self) -> Make:
        """Return a function that allocates the arrays of a batch."""
        is_here = self._memory is not None and self._pid == os.getpid()
        return self._memory.make() if self._memory is not None and is_here else np.empty

    def shared(self, batch: Any, ratio: float = 1.0) -> Any:
        """Return a batch of tensors in shared memory, in a worker.

        ``ratio`` is that of the largest batch to the first.
        """
        if type(batch) is not dict or torch.utils.data.get_worker_info() is None:
            return batch
        if self._pid != os.getpid():
            self._pid, self._memory, self._worn = os.getpid(), None, []
            with suppress(OSError):
                self._memory = BatchMemory(ceil(bytes_of(batch) * ratio) + mmap.PAGESIZE)
        elif self._memory is not None and self._memory.is_worn:
            with suppress(OSError):
                another = BatchMemory(self._memory.name.slot_bytes)
                worn = [*self._worn, self._memory]
                self._memory, self._worn = another, [one for one in worn if not one.close()]
        return batch if self._memory is None else shared(batch, self._memory)


class BatchSlot:
    """A slot while arrays of its worker use it."""

    def __init__(self, number: int, held: Array, in_use: Array) -> None:
        self.number, self.is_sent = number, False
        self._in_use = in_use
        self._used, self._address, self._nbytes = 0, held.ctypes.data, held.nbytes
        self._weak: Any = weakref.ref(held)
        self._held: Array | None = held

    def release(self) -> Array:
        """Return the memory, which other references have to keep from now on."""
        held: Array = self._weak()
        self._held = None
        return held

    def make(self, held: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate an array in the memory of the slot; elsewhere if there is no room."""
        start, stop = self._used, self._used + prod(shape) * np.dtype(dtype).itemsize
        if stop > held.nbytes:
            return np.empty(shape, dtype)
        self._used = -(-stop // ALIGNMENT) * ALIGNMENT
        arr: Array = held[start:stop].view(dtype).reshape(shape)
        return arr

    def moved(self, held: Array, tensor: Any) -> Any:
        """Return a tensor in the slot, a copy if it lies elsewhere; itself without room."""
        if self.place(tensor) is not None:
            return tensor
        at = self._used
        copy = self.make(held, (tensor.nbytes,), np.uint8)
        if self._used == at:
            return tensor
        return torch.frombuffer(copy, dtype=tensor.dtype).reshape(tensor.shape).copy_(tensor)

    def place(self, value: Any) -> TensorPlace | None:
        """Return the place of a tensor in the slot; None for all else."""
        if not _is_plain(value) or not value.numel() or not value.is_contiguous():
            return None
        at = value.data_ptr() - self._address
        is_here = at >= 0 and at + value.nbytes <= self._nbytes
        return TensorPlace(at, tuple(value.shape), value.dtype) if is_here else None

    def send(self) -> None:
        """Take note that the receiver will use the slot."""
        self.is_sent, self._in_use[THERE, self.number] = True, USED


class SharedBatch(dict[str, Any]):
    """A batch with tensors in shared memory, of which a worker sends the places.

    Whatever else pickles or copies it gets the tensors themselves.
    """

    def __init__(
        self, batch: Mapping[str, Any], slot: BatchSlot, held: Array, name: MemoryFile
    ) -> None:
        super().__init__(batch)
        self.slot, self.name = slot, name
        self.held = held  # until the batch is sent

    def __copy__(self) -> SharedBatch:
        """Return a batch in the same memory: a DataLoader copies batches before it sends them."""
        return SharedBatch(self, self.slot, self.held, self.name)

    def __reduce__(self) -> Any:
        """Return the elements as an ordered dict, which ``torch.load`` accepts."""
        return OrderedDict(self).__reduce__()


def _sent(batch: SharedBatch) -> tuple[Any, ...]:
    """Reduce a batch to the places of what lies in its slot, once: the receiver frees the slot."""
    slot = batch.slot
    places = {} if slot.is_sent else {key: slot.place(value) for key, value in batch.items()}
    places = {key: place for key, place in places.items() if place is not None}
    if not places:
        return dict, ({**batch},)
    slot.send()
    rest = {key: value for key, value in batch.items() if key not in places}
    return _received, (batch.name, slot.number, places, rest, [*batch])


ForkingPickler.register(SharedBatch, _sent)


def shared(batch: Mapping[str, Any], memory: BatchMemory) -> Mapping[str, Any]:
    """Return a batch of tensors in shared memory; the same one if there is no room."""
    tensors = {name: value for name, value in batch.items() if _is_plain(value) and value.numel()}
    slots = filter(None, map(memory.slot_of, tensors.values()))
    slot = next(slots, None) or (memory.slot() if tensors else None)
    if slot is None:
        return batch
    held = slot.release()
    moved = {name: slot.moved(held, tensor) for name, tensor in tensors.items()}
    return SharedBatch({**batch, **moved}, slot, held, memory.name)


def _is_plain(value: Any) -> bool:
    is_tensor = type(value) is torch.Tensor and value.layout is torch.strided
    if not is_tensor or value.device.type != "cpu":
        return False
    return not (value.requires_grad or value.is_conj() or value.is_neg())


def bytes_of(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a slot for a batch of tensors."""
    tensors = filter(_is_plain, batch.values())
    return sum(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors)


_mapped: dict[MemoryFile, Array] = {}
"""Memory of workers, mapped once."""
_forks = 0
"""Forks of this process: their children share the slots of the batches that exist then."""


def _received(
    name: MemoryFile,
    number: int,
    places: Mapping[str, TensorPlace],
    rest: Mapping[str, Any],
    order: list[str],
) -> dict[str, Any]:
    """Return the batch in a slot of a worker; the slot is free when no tensor of it is left."""
    memory = _mapped.get(name)
    if memory is None:
        _forget_ended()
        fd = os.open(name.path, os.O_RDWR)
        try:
            memory = _mapped[name] = name.mapped(fd)
        finally:
            os.close(fd)
    held = name.slot(memory, number)
    _call_after(held, _free, memory, number, _forks)
    tensors = {
        key: torch.frombuffer(held, dtype=dtype, count=prod(shape), offset=at).reshape(shape)
        for key, (at, shape, dtype) in places.items()
    }
    values = {**rest, **tensors}
    return {key: values[key] for key in order}


def _call_after(arr: Array, function: Callable[..., None], *args: Any) -> None:
    """Call a function once an array is garbage, in this process only: forks have it, too."""

    def call(pid: int) -> None:
        if os.getpid() == pid:
            function(*args)

    weakref.finalize(arr, call, os.getpid()).atexit = False


def _free(memory: Array, number: int, forks: int) -> None:
    in_use_of(memory)[THERE, number] = 0 if forks == _forks else LOST
    _forget_ended()


def _forget_ended() -> None:
    for name in [name for name in [*_mapped] if not name.is_there]:
        _mapped.pop(name, None)


def _count_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


before_fork(_count_fork)
after_fork(_mapped.clear)
