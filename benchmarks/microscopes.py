"""Time of opening, and of graphs, for a million frames of ND2 and a million tiles of CZI.

Run ``python benchmarks/microscopes.py``. Files have tiny frames. Targets: opening in less than a
second, the graph of a slice in less than 10 ms.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import dask_tiled
from dask_tiled.testing import Tile, write_czi, write_nd2

SIDE = 4
RUNS = 5


def records(first: bytes, count: int) -> np.ndarray:
    """Return `count` copies of a record as rows of bytes."""
    return np.tile(np.frombuffer(first, np.uint8), (count, 1))


def long_nd2(path: Path, count: int) -> None:
    """Write an ND2 file of many frames, from the chunks and the chunk map of a short file."""
    write_nd2(path, np.zeros((2, SIDE, SIDE), "u2"), "tyx")
    data = path.read_bytes()
    size, room = 8 + 2 * SIDE * SIDE, 32
    every = [f"ImageDataSeq|{k}!".encode() for k in range(count)]
    head = struct.pack("<IIQ", 0x0ABECEDA, room, size)
    frames = b"".join(head + name.ljust(room, b"\0") + bytes(size) for name in every)
    (at,) = struct.unpack("<Q", data[-8:])
    kept = data[at + 48 : -40]
    first, last = kept.index(b"ImageDataSeq|0!"), kept.index(b"ImageDataSeq|1!") + 31
    step, start = 16 + room + size, at
    places = (struct.pack("<QQ", start + k * step, size) for k in range(count))
    entries = b"".join(name + place for name, place in zip(every, places, strict=True))
    content = kept[:first] + entries + kept[last:]
    place = at + len(frames)
    label = "uiCount\0".encode("utf-16-le")
    counted = data[:at].replace(label + struct.pack("<I", 2), label + struct.pack("<I", count))
    tail = struct.pack("<IIQ", 0x0ABECEDA, 32, len(content)) + data[at + 16 : at + 48] + content
    path.write_bytes(counted + frames + tail + data[-40:-8] + struct.pack("<Q", place))


def long_czi(path: Path, count: int) -> None:
    """Write a CZI file of many tiles, each with its own time, channel and z."""
    tile = np.zeros((SIDE, SIDE), "u2")
    start = {"X": 0, "Y": 0, "C": 0, "Z": 0, "T": 0, "M": 0}
    write_czi(path, [Tile(start, tile)])
    data = path.read_bytes()
    directory, metadata = struct.unpack_from("<qq", data, 84)
    at = data.index(b"ZISRAWSUBBLOCK")
    block, entry = data[at:directory], data[directory + 160 : directory + 160 + 32 + 20 * 6]
    numbers = np.arange(count)
    rows = records(entry, count)
    columns = {2: numbers % 4, 3: numbers // 4 % 250, 4: numbers // 1000}
    for k, column in columns.items():
        rows[:, 32 + 20 * k + 4 : 32 + 20 * k + 8] = column.astype("<i4")[:, None].view(np.uint8)
    rows[:, 6:14] = (at + len(block) * numbers).astype("<i8")[:, None].view(np.uint8)
    blocks = records(block, count)
    blocks[:, 48 : 48 + len(entry)] = rows
    with path.open("wb") as file:
        file.write(data[:at])
        blocks.tofile(file)
        place = file.tell()
        content = struct.pack("<i", count).ljust(128, b"\0")
        size = len(content) + rows.size
        file.write(struct.pack("<16sqq", b"ZISRAWDIRECTORY", size, size) + content)
        rows.tofile(file)
        xml = file.tell()
        file.write(data[metadata:])
        file.seek(84)
        file.write(struct.pack("<qq", place, xml))


def main() -> None:
    """Run the benchmark and print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="number of frames and tiles")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="microscopes-") as folder:
        for suffix, write in {"nd2": long_nd2, "czi": long_czi}.items():
            path = Path(folder) / f"long.{suffix}"
            write(path, args.count)
            described, graphs = [], []
            for _ in range(RUNS):
                start = time.perf_counter()
                desc = dask_tiled.describe(path)
                described.append(time.perf_counter() - start)
                arr = dask_tiled.open_dataset(path)
                start = time.perf_counter()
                _ = arr[: len(arr) // 2, ..., 1:].dask
                graphs.append(time.perf_counter() - start)
            seconds, graph = median(described), 1e3 * median(graphs)
            print(f"{suffix}: {desc.shape}, opened in {seconds:.2f} s, a graph in {graph:.1f} ms")


if __name__ == "__main__":
    main()
