"""Where the pixels of HDF5 datasets lie: in one stretch, in chunks, or in other files.

Layout facts: the HDF5 File Format Specification, version 3.0, and the reference manual of the HDF5
library (H5Pset_external, H5Pset_virtual, H5Dchunk_iter).
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.byte_codecs import compressor
from dask_tiled.codecs.chunks import chunk_decoder, unwritten
from dask_tiled.codecs.limits import most_bytes
from dask_tiled.codecs.pipeline import BYTES
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.hdf5.chunk_layout import EXTENSIBLE_ARRAY, ChunkLayout, chunk_layout
from dask_tiled.formats.hdf5.filters import Filter, codecs_of
from dask_tiled.formats.hdf5.grids import Box, boxes_between, gaps, join_chunks, uncovered
from dask_tiled.formats.hdf5.library import chunks_of, filters_of, shape_of
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index
from dask_tiled.model.layout import MAX_NDIM
from dask_tiled.model.pieces import (
    PER_AXIS,
    PieceTable,
    joined,
    piece_table,
    strides_of,
)

READ_BYTES = 1 << 20
"""So much of a dataset is read at a time where the library has to read it."""
MOST_BLOCKS = 100_000
"""It is read in so many parts, and no more."""
MOST_SPARSE_BYTES = MOST_BLOCKS << 30
"""Larger datasets are refused where chunks that were never written cannot be told from others."""
USER_BLOCKS = (1, 14, 4)
"""From this version on the library counts offsets of chunks from where the file begins."""
READ = "dask_tiled.formats.hdf5.boxes:read"
"""What has the library read."""
Numbers = npt.ArrayLike


class Pieces:
    """Collects the pieces of an array: those of one dataset, or of several side by side.

    ``shape`` has the axes as they are stored. They are shown in another ``order`` where there is
    one.
    """

    def __init__(
        self, tree: Tree, shape: tuple[int, ...], stored: np.dtype, order: tuple[int, ...] = ()
    ) -> None:
        self.tree = tree
        self.files = [tree.file]
        self.shape = shape
        self.stored = stored
        self.order = order
        self.decoders: list[Decoder | BlockDecoder] = []
        self.tables: list[PieceTable] = []
        self.plain = plain(stored)
        self._numbers = {tree.file.path: 0}
        self._blocks: list[Box] = [((0,) * len(shape), (1,) * len(shape))]

    def base_shape(self) -> tuple[int, ...]:
        """Return the shape of the blocks that all of the array consists of; empty for pixels."""
        origins, chunks = map(np.array, zip(*self._blocks, strict=True))
        sizes = chunks.max(axis=0)
        sizes[(origins % sizes).any(axis=0)] = 1
        sizes = sizes[list(self.order)] if self.order else sizes
        return tuple(sizes.tolist()) if sizes.max() > 1 else ()

    def table(self) -> PieceTable:
        """Put all pieces into one table, in the order of the axes that is shown."""
        table = joined(self.tables)
        if not self.order:
            return table
        columns, order = table.rows()._asdict(), list(self.order)
        return piece_table(**columns | {name: columns[name][:, order] for name in PER_AXIS})

    def blocks(self, origin: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        """Note that something consists of blocks."""
        self._blocks.append((origin, (1,) * (len(self.shape) - len(chunk)) + chunk))

    def file(self, path: str) -> int:
        """Return the number of a file."""
        if path not in self._numbers:
            self._numbers[path] = len(self.files)
            self.files.append(File.at(path))
        return self._numbers[path]

    def decoder(self, decoder: Decoder | BlockDecoder) -> int:
        """Return the number of a decoder."""
        if decoder not in self.decoders:
            self.decoders.append(decoder)
        return self.decoders.index(decoder)

    def by_library(self, dataset: Any, origin: tuple[int, ...]) -> int:
        """Return the number of the decoder of blocks that the HDF5 library reads."""
        dtype = self.plain.dtype
        options = {"dataset": dataset.name, "origin": origin, "dtype": dtype, "order": self.order}
        return self.decoder(BlockDecoder(READ, dtype, tuple(options.items())))

    def put(
        self,
        origin: tuple[int, ...],
        start: Numbers,
        shape: Numbers,
        offset: Numbers,
        strides: Numbers,
        **numbers: Numbers,
    ) -> None:
        """Add pieces that begin at ``start`` of what begins at ``origin``, whose axes are last."""
        more = len(self.shape) - np.shape(start)[-1]

        def wide(columns: Numbers, value: int) -> Index:
            lead = np.full((*np.shape(columns)[:-1], more), value)
            return np.concatenate([lead, columns], axis=-1)

        corner = wide(start, 0) + np.array(origin, np.int64)
        self.tables.append(piece_table(corner, wide(shape, 1), offset, wide(strides, 0), **numbers))

    def fill(self, dataset: Any, origin: tuple[int, ...], start: Numbers, shape: Numbers) -> None:
        """Add boxes that were never written."""
        if not np.size(start):
            return
        value = np.zeros(1, self.stored)
        if dataset.id.get_create_plist().fill_value_defined():
            fill = np.asarray(dataset.fillvalue).reshape(-1)
            if len({one.tobytes() for one in fill}) > 1:
                raise DatasetError(
                    "fill values that differ within an element are not read",
                    path=dataset.file.filename,
                    where=dataset.name,
                    found=fill.tolist(),
                )
            value[:] = fill[:1] if fill.dtype.names == self.stored.names else fill.view(self.stored)
        pixel = value.astype(self.plain.dtype).tobytes()
        number = self.decoder(unwritten(self.plain.dtype, pixel))
        self.put(origin, start, shape, 0, np.zeros_like(shape), decoder=number)

    def add(self, dataset: Any, origin: tuple[int, ...]) -> None:
        """Add a dataset that begins at ``origin`` in the array, whose last axes are its own."""
        from h5py import h5d

        kind, offset = dataset.id.get_create_plist().get_layout(), dataset.id.get_offset()
        shape = shape_of(dataset)
        start = (0,) * len(shape)
        file = self.file(dataset.file.filename)
        if kind == h5d.CHUNKED:
            self._add_chunks(dataset, file, origin)
        elif kind == h5d.VIRTUAL:
            with self.tree.inside(dataset):
                whole = not dataset.dtype.shape and self._add_sources(dataset, origin)
            if not whole:
                self._add_blocks(dataset, file, origin)
        elif kind == h5d.COMPACT or not is_plain(dataset):
            self._add_blocks(dataset, file, origin)
        elif dataset.external:
            self._add_external(dataset, origin)
        elif offset is None:
            self.fill(dataset, origin, start, shape)
        else:
            strides, decoder = strides_of(shape, self.stored.itemsize), self.decoder(self.plain)
            self.put(origin, start, shape, offset, strides, file=file, decoder=decoder)

    def _add_blocks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Let the library read a dataset, about as many chunks or rows at a time as READ_BYTES."""
        shape = np.array(shape_of(dataset))
        block = np.minimum(chunks_of(dataset) or (1, *shape[1:]), shape)
        for axis in reversed(range(len(shape))):
            times = max(1, READ_BYTES // (math.prod(block.tolist()) * self.stored.itemsize))
            block[axis] = min(shape[axis], block[axis] * times)
        for axis in range(len(shape)):
            times = -(-math.prod((-(-shape // block)).tolist()) // MOST_BLOCKS)
            block[axis] = min(shape[axis], block[axis] * times)
        corners = np.indices(-(-shape // block)).reshape(len(shape), -1).T * block
        boxes = np.minimum(block, shape - corners)
        self.tree.check_sources(dataset)
        number = self.by_library(dataset, origin)
        self.put(origin, corners, boxes, 0, np.zeros_like(boxes), file=file, decoder=number)
        self.blocks(origin, tuple(block.tolist()))

    def _add_sources(self, dataset: Any, origin: tuple[int, ...]) -> bool:
        """Add the datasets that a virtual one is put together from, if it is of whole ones."""
        sources = dataset.virtual_sources()
        boxes = list(map(source_box, sources))
        rest = uncovered(boxes, dataset.shape) if all(shape for _, shape in boxes) else None
        if rest is None:
            return False
        for source, (_, shape) in zip(sources, boxes, strict=True):
            for member in self.tree.members(dataset, source):
                lead = len(shape) - getattr(member, "ndim", MAX_NDIM)
                if lead < 0 or shape != (1,) * lead + member.shape or member.dtype != dataset.dtype:
                    return False
        self.fill(dataset, origin, *rest)
        more = len(origin) - dataset.ndim
        for source, (start, _) in zip(sources, boxes, strict=True):
            for member in self.tree.members(dataset, source):
                at = np.array(origin) + ((0,) * more + start)
                self.add(member, tuple(at.tolist()))
        return True

    def _add_external(self, dataset: Any, origin: tuple[int, ...]) -> None:
        """Add bytes in files that have nothing else to say: they follow one another."""
        path, where = dataset.file.filename, f"the external files of {dataset.name}"
        itemsize, shape = self.stored.itemsize, shape_of(dataset)
        total = math.prod(shape)
        strides, decoder = strides_of(shape, itemsize), self.decoder(self.plain)
        first = 0
        for name, offset, size in dataset.external:
            count, rest = divmod(min(size, (total - first) * itemsize), itemsize)
            if rest:
                raise DatasetError("a pixel lies in two files", path=path, where=where, found=name)
            file = self.file(self.tree.need(name, path, where))
            for start, box in boxes_between(first, first + count, shape):
                place = int(np.ravel_multi_index(start, shape)) - first
                at = offset + place * itemsize
                self.put(origin, start, box, at, strides, file=file, decoder=decoder)
            first += count

    def _add_chunks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Add chunks, each as it is stored, and what was never written."""
        shape, chunk = shape_of(dataset), chunks_of(dataset)
        blocks, pipeline = chunk, filters_of(dataset)
        nbytes = self.stored.itemsize * math.prod(chunk)
        columns = self._listed(dataset)
        layout = self._layout(dataset, file, filtered=bool(pipeline))
        if (
            len(columns)
            and layout.index_type == EXTENSIBLE_ARRAY
            and one_unlimited_axis(dataset) > 0
        ):
            self._check_room(dataset, pipeline, nbytes, columns[:, -1])
            if math.prod(shape) * self.stored.itemsize > MOST_SPARSE_BYTES:
                raise DatasetError(
                    "the dataset is too large for an extensible array along an inner axis",
                    path=dataset.file.filename,
                    where=dataset.name,
                    expected=f"{MOST_SPARSE_BYTES} bytes at most",
                    found=f"shape {shape}",
                )
            self._add_blocks(dataset, file, origin)
            return
        where, masks, offsets, sizes = self._in_order(dataset, columns)
        self.fill(dataset, origin, *gaps(where // chunk, shape, chunk))
        if layout.unfiltered_edges:
            masks[(where + chunk > shape).any(axis=1)] = (1 << len(pipeline)) - 1
        strides = strides_of(chunk, self.stored.itemsize)
        for mask in np.unique(masks).tolist():
            some = masks == mask
            start, offset = where[some], offsets[some]
            box = np.minimum(chunk, np.array(shape) - start)
            applied = tuple(f for k, f in enumerate(pipeline) if not mask >> k & 1)
            if applied or not is_plain(dataset):
                self._check_room(dataset, applied, nbytes, sizes[some])
                number = self._chunk_decoder(dataset, applied, origin)
                numbers = {"file": file, "decoder": number, "nbytes": sizes[some]}
                self.put(origin, start, box, offset, np.zeros_like(chunk), **numbers)
                continue
            if (sizes[some] < nbytes).any():
                path = self.files[file].path
                raise TruncatedFileError("a chunk is too short", path=path, expected=nbytes)
            whole, *joined = join_chunks(start, box, offset, np.array(strides), chunk, shape)
            blocks = (1,) * len(chunk) if whole else chunk
            self.put(origin, *joined, file=file, decoder=self.decoder(self.plain))
        self.blocks(origin, blocks)

    def _check_room(
        self, dataset: Any, filters: tuple[Filter, ...], nbytes: int, sizes: Index
    ) -> None:
        """Refuse chunks that can never be so large; one alone among others is when it is read."""
        codecs, packed = codecs_of(filters), int(sizes.sum())
        names = [compressor(one["name"], one.get("configuration", {})) for one in codecs or ()]
        packs = next(filter(None, names), "")
        most = packed if codecs is not None and not packs else most_bytes(packs, packed)
        if nbytes * len(sizes) > most:
            raise CorruptFileError(
                "the chunks are too large for what is stored of them",
                path=dataset.file.filename,
                where=dataset.name,
                expected=f"{most} bytes at most, in {len(sizes)} chunks of {packed}",
                found=f"{nbytes} bytes for each",
            )

    def _chunk_decoder(
        self, dataset: Any, filters: tuple[Filter, ...], origin: tuple[int, ...]
    ) -> int:
        codecs = codecs_of(filters) if is_plain(dataset) else None
        if codecs is None:
            return self.by_library(dataset, origin)
        chunk = chunks_of(dataset)
        chunk = (1,) * (len(self.shape) - len(chunk)) + chunk
        lead = []
        if self.order:
            chunk = tuple(chunk[axis] for axis in self.order)
            order = [self.order.index(axis) for axis in range(len(chunk))]
            lead = [{"name": "transpose", "configuration": {"order": order}}]
        documents = [*lead, {"name": BYTES}, *codecs]
        return self.decoder(chunk_decoder(documents, chunk, self.stored, self.plain.dtype))

    def _layout(self, dataset: Any, file: int, *, filtered: bool) -> ChunkLayout:
        """Read how the chunks are indexed and filtered, if they need not be as in all versions."""
        edges = filtered and any(n % c for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        if not edges and one_unlimited_axis(dataset) < 1:
            return ChunkLayout(0, unfiltered_edges=False)
        layout = chunk_layout(dataset, self.files[file])
        if layout is None:
            raise DatasetError(
                "the layout of the chunks is unknown",
                path=dataset.file.filename,
                where=dataset.name,
                expected="a data layout message of version 5 or earlier",
                hint="If the file is being written, flush it first.",
            )
        return layout

    def _listed(self, dataset: Any) -> Index:
        """List the chunks: corners, masks of filters, offsets, sizes.

        The library reports wrong corners where the index is an extensible array along an axis that
        is not the first.
        """
        from h5py import version

        if version.hdf5_version_tuple < USER_BLOCKS and dataset.file.userblock_size:
            raise DatasetError(
                "this HDF5 library tells wrong places behind a user block",
                path=dataset.file.filename,
                expected="version 1.14.4 or later",
                found=version.hdf5_version,
                hint='Run: pip install "h5py>=3.12"',
            )
        count = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        inner = (0,) * len(dataset.dtype.shape)
        numbers, width = array("q"), dataset.ndim + len(inner) + 3

        def note(chunk: Any) -> bool | None:
            where = *chunk.chunk_offset, *inner
            numbers.extend((*where, chunk.filter_mask, chunk.byte_offset, chunk.size))
            return len(numbers) > width * count or None  # an index may go round in circles

        dataset.id.chunk_iter(note)
        return np.array(numbers).reshape(-1, width)

    @staticmethod
    def _in_order(dataset: Any, columns: Index) -> tuple[Index, Index, Index, Index]:
        """Sort the chunks in C order: corners, masks of filters, offsets, sizes."""
        shape, chunk = shape_of(dataset), chunks_of(dataset)
        grid = tuple(-(-n // size) for n, size in zip(shape, chunk, strict=True))
        where, (masks, offsets, sizes) = columns[:, :-3], columns[:, -3:].T
        places = np.ravel_multi_index(tuple((where // chunk).T), grid, mode="clip")
        order = np.argsort(places, kind="stable")
        astray = (where % chunk).any() or ((where < 0) | (where >= shape)).any()
        if astray or (np.diff(places[order]) == 0).any():
            raise CorruptFileError(
                "the index of the chunks is wrong",
                path=dataset.file.filename,
                where=dataset.name,
                expected=f"chunks of {dataset.chunks}" if astray else "each chunk once",
                found="others" if astray else "one of them twice",
            )
        return where[order], masks[order], offsets[order], sizes[order]


def is_plain(dataset: Any) -> bool:
    """Return whether the bytes of a dataset are what numpy takes them for."""
    from h5py import h5t

    stored = dataset.id.get_type()
    bits = [getattr(h5t, f"STD_B{8 * n}{order}") for n in (1, 2, 4, 8) for order in ("LE", "BE")]
    same = h5t.py_create(dataset.dtype, logical=True).equal(stored)
    return bool(same) or any(stored.equal(one) for one in bits)


def one_unlimited_axis(dataset: Any) -> int:
    """Find the axis of a dataset that alone is unlimited; -1 if there is none, or several."""
    axes = [axis for axis, most in enumerate(dataset.maxshape) if most is None]
    return axes[0] if len(axes) == 1 else -1


def source_box(source: Any) -> Box:
    """Read which box of a virtual dataset is a whole dataset; a shape without axes if none is."""
    from h5py import h5s

    none: Box = (), ()
    into, taken = source.vspace, source.src_space
    if is_unlimited(into) or is_unlimited(taken):
        return none
    whole = taken.get_select_type() == h5s.SEL_ALL or (
        taken.get_select_npoints() == math.prod(taken.shape)
    )
    if not whole or "%" in source.file_name + source.dset_name:
        return none
    if into.get_select_type() == h5s.SEL_ALL:
        return (0,) * len(into.shape), into.shape
    if not into.is_regular_hyperslab():
        return none
    start, stride, count, block = into.get_regular_hyperslab()
    shape = tuple(c * b for c, b in zip(count, block, strict=True))
    box = all(c == 1 or s == b for c, s, b in zip(count, stride, block, strict=True))
    return (start, shape) if box else none


def is_unlimited(space: Any) -> bool:
    """Return whether a selection is unlimited."""
    from h5py import h5s

    if space.get_select_type() != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return False
    _, _, count, block = space.get_regular_hyperslab()
    return h5s.UNLIMITED in count + block
