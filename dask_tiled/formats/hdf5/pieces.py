"""Pieces of HDF5 datasets: contiguous, chunked, or in other files.

Layout facts: the HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.byte_codecs import compressor
from dask_tiled.codecs.chunks import chunk_decoder, unwritten
from dask_tiled.codecs.limits import most_bytes
from dask_tiled.codecs.pipeline import BYTES
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.formats.hdf5.chunk_index import list_chunks
from dask_tiled.formats.hdf5.filters import Filter, codecs_of
from dask_tiled.formats.hdf5.grids import Box, join_chunks
from dask_tiled.formats.hdf5.library import chunks_of, filters_of, shape_of
from dask_tiled.formats.hdf5.sources import external_boxes, whole_sources
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.grids import gaps
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import PER_AXIS, PieceTable, joined, piece_table, strides_of

READ_BYTES = 1 << 20
"""Target size of a block that the HDF5 library reads."""
MOST_BLOCKS = 100_000
"""Maximum number of blocks that the HDF5 library reads."""
MOST_SPARSE_BYTES = MOST_BLOCKS << 30
"""Largest dataset for which unwritten chunks need not be known."""
LOST_CHUNKS = "unwritten_chunks_are_lost"
"""Attribute of datasets whose chunks that were not written are frames that have not come."""
READ = "dask_tiled.formats.hdf5.boxes:read"
"""Decoder of blocks that the HDF5 library reads."""
Numbers = npt.ArrayLike


class Pieces:
    """Collects the pieces of an array, from one dataset or several.

    ``shape`` has the stored axes, of which the last ``sig_ndim`` are signal axes; ``order``
    reorders them, if given.
    """

    def __init__(
        self,
        tree: Tree,
        shape: tuple[int, ...],
        stored: np.dtype,
        order: tuple[int, ...] = (),
        *,
        sig_ndim: int,
    ) -> None:
        self.tree = tree
        self.files = [tree.file]
        self.shape = shape
        self.stored = stored
        self.order = order
        self.decoders: list[Decoder | BlockDecoder] = []
        self.tables: list[PieceTable] = []
        self.plain = plain(stored)
        self.sig_ndim = sig_ndim
        self.lost: list[Box] = []
        """Boxes of whole frames in missing files."""
        self.covers_lost = False
        """Whether pieces that the library reads have lost frames, too."""
        self.missing: list[str] = []
        """Names of missing files and datasets."""
        self.has_pixels = False
        """Whether a file with pixels is there."""
        self.fill_value: Any = 0
        """Value of missing frames."""
        self.unwritten = 0
        """Number of chunks that were never written."""
        self._numbers = {tree.file.path: 0}
        self._blocks: list[Box] = [((0,) * len(shape), (1,) * len(shape))]

    def base_shape(self) -> tuple[int, ...]:
        """Return the shape of the blocks that the array consists of; empty for single pixels."""
        origins, chunks = map(np.array, zip(*self._blocks, strict=True))
        sizes = np.minimum(chunks.max(axis=0), self.shape)
        sizes[(origins % sizes).any(axis=0)] = 1
        sizes = sizes[list(self.order)] if self.order else sizes
        return tuple(sizes.tolist()) if sizes.max() > 1 else ()

    def table(self) -> PieceTable:
        """Return all pieces in a table, with reordered axes."""
        table = joined(self.tables)
        if not self.order:
            return table
        columns, order = table.rows()._asdict(), list(self.order)
        return piece_table(**columns | {name: columns[name][:, order] for name in PER_AXIS})

    def blocks(self, origin: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        """Record the block shape of a part of the array."""
        self._blocks.append((origin, (1,) * (len(self.shape) - len(chunk)) + chunk))

    def shown(self, dataset: Any) -> tuple[int, ...]:
        """Return the used shape of a dataset: some are padded to whole chunks."""
        shape = shape_of(dataset)
        return tuple(map(min, shape, self.shape[-len(shape) :]))

    def file(self, path: str) -> int:
        """Return the index of a file."""
        if path not in self._numbers:
            self._numbers[path] = len(self.files)
            self.files.append(File.at(path))
        return self._numbers[path]

    def decoder(self, decoder: Decoder | BlockDecoder) -> int:
        """Return the index of a decoder."""
        if decoder not in self.decoders:
            self.decoders.append(decoder)
        return self.decoders.index(decoder)

    def by_library(self, dataset: Any, origin: tuple[int, ...]) -> int:
        """Return the index of the decoder that calls the HDF5 library."""
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
        """Add pieces at ``start``, relative to ``origin``; their axes are the last ones."""
        more = len(self.shape) - np.shape(start)[-1]

        def wide(columns: Numbers, value: int) -> Index:
            lead = np.full((*np.shape(columns)[:-1], more), value)
            return np.concatenate([lead, columns], axis=-1)

        corner = wide(start, 0) + np.array(origin, np.int64)
        self.tables.append(piece_table(corner, wide(shape, 1), offset, wide(strides, 0), **numbers))

    def lose(self, dataset: Any, origin: tuple[int, ...], box: Box, name: str) -> None:
        """Add the box of a missing file: missing frames, or filled pixels of frames."""
        self.missing.append(name)
        if not self._lose_frames(dataset, origin, box):
            self.fill(dataset, origin, np.array([box[0]]), np.array([box[1]]))

    def _lose_frames(self, dataset: Any, origin: tuple[int, ...], box: Box) -> bool:
        """Mark the frames of a box as missing; return whether these are whole frames."""
        lead = len(self.shape) - len(box[0])
        corner = tuple((np.array(origin) + ((0,) * lead + box[0])).tolist())
        whole = ((1,) * lead + box[1])[-self.sig_ndim :] == self.shape[-self.sig_ndim :]
        if whole and not self.order:
            self.lost.append((corner, (1,) * lead + box[1]))
            self.fill_value = self._fill_of(dataset).view(self.plain.dtype)[0]
            return True
        return False

    def fill(self, dataset: Any, origin: tuple[int, ...], start: Numbers, shape: Numbers) -> None:
        """Add boxes that were never written."""
        if not np.size(start):
            return
        pixel = self._fill_of(dataset).astype(self.plain.dtype).tobytes()
        number = self.decoder(unwritten(self.plain.dtype, pixel))
        self.put(origin, start, shape, 0, np.zeros_like(shape), decoder=number)

    def _fill_of(self, dataset: Any) -> Any:
        """Return the fill value of a dataset, in an array of one element."""
        value = np.zeros(1, self.stored)
        if dataset.id.get_create_plist().fill_value_defined():
            fill = np.asarray(dataset.fillvalue).reshape(-1)
            if len({one.tobytes() for one in fill}) > 1:
                raise DatasetError(
                    "fill values that differ within an element are not supported",
                    path=dataset.file.filename,
                    where=dataset.name,
                    found=fill.tolist(),
                )
            value[:] = fill[:1] if fill.dtype.names == self.stored.names else fill.view(self.stored)
        return value

    def add(self, dataset: Any, origin: tuple[int, ...], stored: np.dtype | None = None) -> None:
        """Add a dataset at ``origin`` of the array; its axes are the last ones.

        ``stored`` is its dtype, if it differs from that of the previous one.
        """
        from h5py import h5d

        if stored is not None:
            self.stored, self.plain = stored, plain(stored)
        kind, offset = dataset.id.get_create_plist().get_layout(), dataset.id.get_offset()
        shape, file = self.shown(dataset), self.file(dataset.file.filename)
        start, strides = (0,) * len(shape), strides_of(shape_of(dataset), self.stored.itemsize)
        whole = shape == shape_of(dataset)
        self.has_pixels |= kind != h5d.VIRTUAL and not dataset.external
        if kind == h5d.CHUNKED:
            self._add_chunks(dataset, file, origin)
        elif kind == h5d.VIRTUAL and whole:
            self._add_virtual(dataset, file, origin)
        elif (
            kind in {h5d.COMPACT, h5d.VIRTUAL}
            or not is_plain(dataset)
            or (dataset.external and not whole)
        ):
            self._add_blocks(dataset, file, origin)
        elif dataset.external:
            decoder = self.decoder(self.plain)
            for path, box, at, name in external_boxes(self.tree, dataset, self.stored.itemsize):
                if path is None:
                    self.lose(dataset, origin, box, name)
                else:
                    self.has_pixels = True
                    self.put(origin, *box, at, strides, file=self.file(path), decoder=decoder)
        elif offset is None:
            self.unwritten += 1
            self.fill(dataset, origin, start, shape)
        else:
            decoder = self.decoder(self.plain)
            self.put(origin, start, shape, offset, strides, file=file, decoder=decoder)

    def _add_virtual(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Add the sources of a virtual dataset, if they are whole datasets."""
        with self.tree.inside(dataset):
            whole = whole_sources(self.tree, dataset)
            if whole is not None:
                self.fill(dataset, origin, *whole.rest)
                for name, box in whole.lost:
                    self.lose(dataset, origin, box, name)
                for start, source in whole.sources:
                    at = np.array(origin) + ((0,) * (len(origin) - dataset.ndim) + start)
                    for member in self.tree.members(dataset, source):
                        self.add(member, tuple(at.tolist()))
        if whole is None:
            self._add_blocks(dataset, file, origin)

    def _add_blocks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Add blocks of about READ_BYTES, which the HDF5 library reads from a dataset."""
        shape = np.array(self.shown(dataset))
        block = np.minimum(chunks_of(dataset) or (1, *shape[1:]), shape)
        for axis in reversed(range(len(shape))):
            times = max(1, READ_BYTES // (math.prod(block.tolist()) * self.stored.itemsize))
            block[axis] = min(shape[axis], block[axis] * times)
        for axis in range(len(shape)):
            times = -(-math.prod((-(-shape // block)).tolist()) // MOST_BLOCKS)
            block[axis] = min(shape[axis], block[axis] * times)
        corners = np.indices(-(-shape // block)).reshape(len(shape), -1).T * block
        boxes = np.minimum(block, shape - corners)
        lost = self.tree.check_sources(dataset)
        self.missing += dict.fromkeys(name for name, _ in lost)
        for _, box in lost:  # the library fills what is no whole frame
            self.covers_lost |= self._lose_frames(dataset, origin, box)
        sources = dataset.virtual_sources() if lost else ()
        filled = sum(source.vspace.get_select_npoints() for source in sources)
        gone = sum(math.prod(size) for _, (_, size) in lost)
        self.has_pixels |= not lost or gone < filled
        number = self.by_library(dataset, origin)
        self.put(origin, corners, boxes, 0, np.zeros_like(boxes), file=file, decoder=number)
        self.blocks(origin, tuple(block.tolist()))

    def _add_chunks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Add the stored chunks, and the boxes of unwritten ones."""
        shape, chunk = self.shown(dataset), chunks_of(dataset)
        blocks, pipeline = chunk, filters_of(dataset)
        nbytes = self.stored.itemsize * math.prod(chunk)
        where, masks, offsets, sizes, placed = list_chunks(dataset, self.files[file], len(pipeline))
        if not placed:
            self._check_room(dataset, pipeline, nbytes, sizes)
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
        inside = (where < shape).all(axis=1)
        where, masks, offsets, sizes = (one[inside] for one in (where, masks, offsets, sizes))
        self.unwritten += math.prod(-(-n // k) for n, k in zip(shape, chunk, strict=True))
        self.unwritten -= len(where)
        absent = gaps(where // chunk, shape, chunk)
        if LOST_CHUNKS in dataset.attrs and not self.order:
            for start, size in zip(*(np.asarray(one).tolist() for one in absent), strict=True):
                if not self._lose_frames(dataset, origin, (tuple(start), tuple(size))):
                    self.fill(dataset, origin, np.array([start]), np.array([size]))
        else:
            self.fill(dataset, origin, *absent)
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
        """Raise if the chunks in sum cannot decode to their size; decoding checks each chunk."""
        codecs, packed = codecs_of(filters), int(sizes.sum())
        names = [compressor(one["name"], one.get("configuration", {})) for one in codecs or ()]
        packs = next(filter(None, names), "")
        most = packed if codecs is not None and not packs else most_bytes(packs, packed)
        if nbytes * len(sizes) > most:
            raise CorruptFileError(
                "the chunks are too large for their stored bytes",
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


def is_plain(dataset: Any) -> bool:
    """Return whether NumPy can use the stored bytes of a dataset."""
    from h5py import h5t

    stored = dataset.id.get_type()
    bits = [getattr(h5t, f"STD_B{8 * n}{order}") for n in (1, 2, 4, 8) for order in ("LE", "BE")]
    same = h5t.py_create(dataset.dtype, logical=True).equal(stored)
    return bool(same) or any(stored.equal(one) for one in bits)
