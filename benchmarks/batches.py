"""Compare shuffled batches of frames for training: MiB/s, and ratios to bare reads.

Run ``python benchmarks/batches.py FOLDER`` with PyTorch, and WebDataset if installed. All loaders
read the same frames of 256 x 256 pixels of 16 bits, 64 a batch, in random order, from one Merlin
file, an HDF5 file and a zarr array in chunks of a frame, and a tar file; WebDataset shuffles 1,000
samples. ``preadv`` reads the same frames into one buffer, without a change of byte order. The
loaders take turns. Times are those of an epoch after its first batch: wall time and, as other
programs may run, processor time of all processes, with the start of workers.

``--cold`` drops the files from the page cache before each epoch. ``--sparse GB`` adds files of that
size, of which only headers are on disk; ``--frames 0`` leaves out the others.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import zarr

import dask_tiled
from dask_tiled.testing import write_mib

if find_spec("torch") is None:
    raise SystemExit(print("not installed: PyTorch, see TORCH= in make help"))
torch: Any = import_module("torch")

SIG, BATCH = (256, 256), 64
FRAME_BYTES = 2 * SIG[0] * SIG[1]
HEADER_BYTES = 384
WORKERS = 0, 2
Loader = Callable[[int, int], Iterable[Any]]
"""Returns the batches of an epoch, by the number of the epoch and of workers."""


class Singles(torch.utils.data.Dataset):  # type: ignore[misc]
    """Frames of an array that is opened in each worker, one by one."""

    def __init__(self, count: int, open_array: Callable[[], Any]) -> None:
        self._count, self._open = count, open_array
        self._opened: tuple[int, Any] = (0, None)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        if self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
        return torch.from_numpy(self._opened[1][number])


def write(folder: Path, count: int) -> None:
    """Write the same frames in every layout; the first pixel counts the frames."""
    frames = np.random.default_rng(0).integers(0, 1 << 12, (count, *SIG), "u2")
    frames[:, 0, 0] = np.arange(count)
    write_mib(folder / "scan.mib", frames)
    with h5py.File(folder / "scan.h5", "w") as file:
        file.create_dataset("frames", data=frames, chunks=(1, *SIG))
    options: Any = {"chunks": (1, *SIG), "compressors": None, "overwrite": True}
    zarr.create_array(folder / "scan.zarr", data=frames, **options)
    with tarfile.open(folder / "scan.tar", "w") as tar:
        for number, frame in enumerate(frames):
            content = BytesIO()
            np.save(content, frame)
            member = tarfile.TarInfo(f"{number:06}.npy")
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
    os.sync()


def write_sparse(folder: Path, gigabytes: float) -> int:
    """Write zeros in every layout without storing them; return the number of frames."""
    path = folder / "scan.mib"
    small = write_mib(path, np.zeros((1, *SIG), "u2")).read_bytes()
    count = int(gigabytes * 1e9) // len(small)
    with path.open("wb") as file:
        for number in range(count):
            file.seek(number * len(small))
            file.write(small[:HEADER_BYTES].replace(b"MQ1,000001", b"MQ1,%06d" % (number + 1)))
        file.truncate(count * len(small))
    with h5py.File(folder / "scan.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1, *SIG))
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((count, *SIG))
        h5py.h5d.create(file.id, b"frames", h5py.h5t.STD_U16LE, space, properties)
    options: Any = {"chunks": (1, *SIG), "compressors": None, "overwrite": True}
    zarr.create_array(folder / "scan.zarr", shape=(count, *SIG), dtype="u2", **options)
    for number in range(count):
        chunk = folder / "scan.zarr" / "c" / str(number) / "0" / "0"
        chunk.parent.mkdir(parents=True)
        with chunk.open("wb") as file:
            file.truncate(FRAME_BYTES)
    head = BytesIO()
    np.save(head, np.zeros(SIG, "u2"))
    with (folder / "scan.tar").open("wb") as file:
        for number in range(count):
            member = tarfile.TarInfo(f"{number:06}.npy")
            member.size = head.tell()
            file.write(member.tobuf() + head.getvalue()[:-FRAME_BYTES])
            file.seek(-(-(file.tell() + FRAME_BYTES) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        file.truncate(file.tell() + 2 * tarfile.BLOCKSIZE)
    return count


def bare(path: Path, count: int) -> Loader:
    """Read frames by number into one buffer."""

    def batches(epoch: int, _: int) -> Iterator[Any]:
        order = np.random.default_rng([0, epoch]).permutation(count)
        fd, buffer = os.open(path, os.O_RDONLY), np.empty((BATCH, FRAME_BYTES), "u1")
        for at in range(0, count, BATCH):
            for k, number in enumerate(order[at : at + BATCH].tolist()):
                place = number * (HEADER_BYTES + FRAME_BYTES) + HEADER_BYTES
                os.preadv(fd, [buffer[k]], place)
            yield buffer
        os.close(fd)

    return batches


def loaded(data: Any, workers: int, **options: Any) -> Iterable[Any]:
    """Return the batches of a DataLoader."""
    start = {"multiprocessing_context": "fork"} if workers else {}
    return torch.utils.data.DataLoader(data, num_workers=workers, **start, **options)


def ours(path: Path, count: int) -> dict[str, Loader]:
    """Return the loaders of this package."""
    arr = dask_tiled.open_dataset(path, nav_shape=(count,))
    frames = dask_tiled.torch.Frames(arr)

    def ahead(prefetch: int) -> Loader:
        made = dask_tiled.torch.IterableBatches(arr, BATCH, shuffle="all", prefetch=prefetch)

        def batches(epoch: int, workers: int) -> Iterable[Any]:
            made.set_epoch(epoch)
            return loaded(made, workers, batch_size=None)

        return batches

    def whole(_: int, workers: int) -> Iterable[Any]:
        order = torch.utils.data.RandomSampler(frames)
        sampler = torch.utils.data.BatchSampler(order, BATCH, drop_last=False)
        return loaded(frames, workers, batch_size=None, sampler=sampler)

    def stacked(_: int, workers: int) -> Iterable[Any]:
        return loaded(frames, workers, batch_size=BATCH, shuffle=True)

    return {
        "IterableBatches, prefetch=0": ahead(0),
        "IterableBatches, prefetch=1": ahead(1),
        "Frames, BatchSampler": whole,
        "Frames, stacked": stacked,
    }


def others(folder: Path, count: int) -> dict[str, Loader]:
    """Return the usual loaders, and that of WebDataset if it is installed."""

    def singles(open_array: Callable[[], Any]) -> Loader:
        data = Singles(count, open_array)
        return lambda _, workers: loaded(data, workers, batch_size=BATCH, shuffle=True)

    made = {
        "torch + h5py": singles(lambda: h5py.File(folder / "scan.h5")["frames"]),
        "torch + zarr": singles(lambda: zarr.open_array(folder / "scan.zarr", mode="r")),
    }
    if find_spec("webdataset") is None:
        print("not installed: webdataset")
        return made
    webdataset = import_module("webdataset")

    def of_tar(_: int, workers: int) -> Iterable[Any]:
        shards = [str(folder / "scan.tar")]
        data = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
        steps = data.shuffle(1000).decode().to_tuple("npy").map_tuple(torch.from_numpy)
        return loaded(steps.batched(BATCH, partial=True), workers, batch_size=None)

    return {**made, "WebDataset, one tar": of_tar}


def drop(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    of = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def timed(loader: Loader, epoch: int, workers: int, most: int) -> tuple[float, float]:
    """Return the wall and the processor seconds of a batch."""
    begin = processor_seconds()
    batches = iter(islice(loader(epoch, workers), most))
    next(batches)
    start = time.perf_counter()
    number = sum(1 for _ in batches)
    wall = (time.perf_counter() - start) / number
    del batches
    return wall, (processor_seconds() - begin) / (number + 1)


def compare(
    loaders: dict[str, Loader], workers: int, repeats: int, most: int, before: Callable[[], None]
) -> None:
    """Time loaders in turns, and print their medians; the first is what others are compared to."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for epoch in range(repeats):
        for name, loader in loaders.items():
            before()
            times[name].append(timed(loader, epoch, workers, most))
    mib = BATCH * FRAME_BYTES / 2**20
    print(f"{f'{workers} workers':<30}{'MiB/s':>8}{'wall ms':>9}{'CPU ms':>8}{'of first':>10}")
    first = None
    for name, some in times.items():
        wall, processor = (statistics.median(column) for column in zip(*some, strict=True))
        first = first or processor
        shown = f"{mib / wall:>8.0f}{1e3 * wall:>9.2f}{1e3 * processor:>8.2f}"
        print(f"{name:<30}{shown}{first / processor:>10.2f}")


def pixels_of(batch: Any) -> Any:
    """Return the frames of a batch of any loader."""
    if isinstance(batch, (list, tuple)):
        return batch[0]
    return batch["frame"] if isinstance(batch, dict) else batch


def check(loaders: dict[str, Loader], count: int) -> None:
    """Check that each loader yields each frame once."""
    for name, loader in loaders.items():
        found = [number for batch in loader(0, 0) for number in pixels_of(batch)[:, 0, 0].tolist()]
        if sorted(found) != [*range(count)]:
            raise SystemExit(f"{name}: other frames than were written")


def run(folder: Path, count: int, epoch: int, args: argparse.Namespace) -> None:
    """Compare the loaders of the files in a folder; an epoch has some of ``count`` frames."""
    own = ours(folder / "scan.mib", count)
    loaders = {"preadv": bare(folder / "scan.mib", count), **own, **others(folder, count)}
    if epoch == count:
        check({name: loader for name, loader in loaders.items() if name != "preadv"}, count)
    before = (lambda: drop(folder)) if args.cold else (lambda: None)
    print("from the disk" if args.cold else "from the page cache", f"load {os.getloadavg()[0]:.1f}")
    for workers in WORKERS:
        compare(loaders, workers, args.repeats, -(-epoch // BATCH), before)


def main() -> None:
    """Run the benchmark, and print a line for each loader."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=8192, help="frames of the real files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--sparse", type=float, metavar="GB", help="size of the sparse file")
    args = parser.parse_args()
    torch.set_num_threads(1)  # its threads wait actively, which counts as processor time
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    count = args.frames
    if count:
        if not (folder / "scan.tar").exists():
            write(folder, count)
        run(folder, count, count, args)
    if args.sparse:
        with TemporaryDirectory(dir=folder) as name:
            total = write_sparse(Path(name), args.sparse)
            print(f"{total} frames of {args.sparse:g} GB, sparse")
            run(Path(name), total, count or 8192, args)


if __name__ == "__main__":
    main()
