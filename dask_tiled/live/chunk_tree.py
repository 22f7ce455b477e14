"""The index of the chunks of an HDF5 dataset, in a file that others read meanwhile.

The HDF5 library takes longer to index a chunk than the system to store it. Layout facts: the HDF5
File Format Specification, version 3.0, "Version 1 B-trees", node type 1.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.model.indexing import Index
from dask_tiled.system.files import pread, pwrite

WIDTH = 64
"""Most entries of a node, unless the superblock has another number."""
HEAD = struct.Struct("<4sBBHQQ")
COUNT_AT = 6
"""Where a node has the number of its entries."""
CHUNKS, NOWHERE = 1, (1 << 64) - 1
"""The type of nodes, and the address of what does not exist."""


class IndexNode(NamedTuple):
    """A node in the file."""

    address: int
    rows: Any
    """Entries by their place, in a structured array; zeros where there is none."""
    content: bytes
    """The entries in the file."""

    @property
    def row(self) -> Any:
        """The entry of this node in its parent: the key of its first entry, and its address."""
        row = self.rows[self.rows["child"].nonzero()[0][0]].copy()
        row["child"] = self.address
        return row


class ChunkTree:
    """The index of chunks by their number in C order.

    Whoever reads the file, at any time, finds a sound index: entries are appended to a node before
    it counts them; any other change makes a new node, which is found once its parent is written.
    Nodes have no links to their siblings, which only the removal of chunks uses.

    Parameters
    ----------
    fd : int
        The file.
    root_at : int
        Where the file has the address of the root.
    grid : tuple of int
        Number of chunks along each axis but the first.
    allocate : callable
        Returns the address of new bytes of the file.

    Attributes
    ----------
    fixed : int
        Address before which nodes are not appended to any more: readers that know them may refuse
        the addresses of new chunks, which are beyond the end of the file that they opened.
    """

    def __init__(
        self, fd: int, root_at: int, grid: tuple[int, ...], allocate: Callable[[int], int]
    ) -> None:
        self._fd, self._root_at, self._grid, self._allocate = fd, root_at, grid, allocate
        where = "where", "<u8", len(grid) + 2  # the last one is that of a byte in a pixel
        self._entry = np.dtype([("size", "<u4"), ("mask", "<u4"), where, ("child", "<u8")])
        self._root = self._level = self.fixed = 0
        self._last = dict[int, IndexNode]()  # written of each level

    def insert(self, numbers: Index, addresses: Index, sizes: Index) -> None:
        """Insert chunks, whose numbers increase, by their addresses and sizes."""
        entries = np.zeros(len(numbers), self._entry)
        entries["size"], entries["child"] = sizes, addresses
        entries["where"][:, 0], rest = np.divmod(numbers, math.prod(self._grid))
        entries["where"][:, 1:-1] = np.transpose(np.unravel_index(rest, self._grid))
        root, level = self._root, self._level
        while numbers[-1] >= WIDTH ** (level + 1):
            if root:
                row = self._node(level, root).row
                root = self._change(level + 1, 0, 0, np.array([0]), row[None]).address
            level += 1
        root = self._put(level, root, numbers, entries).address
        if root != self._root:
            self._write(root.to_bytes(8, "little"), self._root_at)
        self._root, self._level = root, level

    def _put(self, level: int, address: int, numbers: Index, entries: Any) -> IndexNode:
        """Insert entries below a node, or a new one if it has no address; return the node."""
        index, places = divmod(numbers // WIDTH**level, WIDTH)
        if level:
            rows, below = self._node(level, address).rows, entries
            starts = np.flatnonzero(np.diff(places, prepend=-1)).tolist()
            ends, places = [*starts[1:], len(numbers)], places[starts]
            children, entries = rows["child"][places].tolist(), np.zeros(len(starts), self._entry)
            for k, (child, start, end) in enumerate(zip(children, starts, ends, strict=True)):
                entries[k] = self._put(level - 1, child, numbers[start:end], below[start:end]).row
        return self._change(level, address, int(index[0]), places, entries)

    def _change(
        self, level: int, address: int, index: int, places: Index, entries: Any
    ) -> IndexNode:
        """Write entries at places of a node; ``index`` is its number in the level."""
        _, rows, before = self._node(level, address)
        rows[places] = entries
        used = rows[rows["child"] > 0]
        bound = np.zeros(1, self._entry)
        bound["where"][0, 0] = -(-(index + 1) * WIDTH ** (level + 1) // math.prod(self._grid))
        content, key = used.tobytes(), bound.tobytes()[:-8]
        if address and content == before:
            pass
        elif 0 < address >= self.fixed and content.startswith(before):
            self._write(content[len(before) :] + key, address + HEAD.size + len(before))
            self._write(len(used).to_bytes(2, "little"), address + COUNT_AT)
        else:
            nbytes = HEAD.size + rows.nbytes + len(key)
            address = self._allocate(nbytes)
            head = HEAD.pack(b"TREE", CHUNKS, level, len(used), NOWHERE, NOWHERE)
            self._write((head + content + key).ljust(nbytes, b"\0"), address)
        self._last[level] = IndexNode(address, rows, content)
        return self._last[level]

    def _node(self, level: int, address: int) -> IndexNode:
        """Return a node; a new one if it has no address."""
        if not address:
            return IndexNode(0, np.zeros(WIDTH, self._entry), b"")
        if level in self._last and self._last[level].address == address:
            return self._last[level]
        head = HEAD.unpack(pread(self._fd, HEAD.size, address))
        content = pread(self._fd, head[3] * self._entry.itemsize, address + HEAD.size)
        entries, rows = np.frombuffer(content, self._entry), np.zeros(WIDTH, self._entry)
        steps = [math.prod(self._grid[axis:]) for axis in range(len(self._grid) + 1)]
        numbers = entries["where"][:, :-1] @ np.array(steps, np.uint64)
        rows[numbers // WIDTH**level % WIDTH] = entries
        return IndexNode(address, rows, content)

    def _write(self, data: bytes, at: int) -> None:
        if pwrite(self._fd, data, at) != len(data):
            raise OSError(errno.ENOSPC, "")
