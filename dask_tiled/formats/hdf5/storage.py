"""Where the pixels of HDF5 datasets lie: in one stretch, in chunks, or in other files.

Layout facts: the HDF5 File Format Specification, version 3.0, and the reference manual of the HDF5
library (H5Pset_external, H5Pset_virtual, H5Dchunk_iter).
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.hdf5.chunks import open_file
from dask_tiled.formats.hdf5.filters import Filter, are_known
from dask_tiled.formats.hdf5.grids import boxes_between, gaps, join_chunks, uncovered
from dask_tiled.formats.hdf5.properties import (
    beside,
    c_strides,
    filters_of,
    is_plain,
    source_box,
)
from dask_tiled.formats.tools.unwritten import unwritten
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index
from dask_tiled.model.layout import MAX_NDIM
from dask_tiled.model.pieces import PieceTable, joined, piece_table

TASKS = "dask_tiled.formats.hdf5.chunks"
READ_BYTES = 1 << 20
"""So much of a dataset without chunks is read at a time where the library has to read it."""
MOST_BLOCKS = 100_000
"""It is read in so many parts, and no more."""
Numbers = npt.ArrayLike


class Pieces:
    """Collects the pieces of an array: those of one dataset, or of several side by side.

    Parameters
    ----------
    main : File
        The file that was opened.
    shape : tuple of int
        Shape of the array.
    stored : numpy.dtype
        Type of its pixels in the files.
    """

    def __init__(self, main: File, shape: tuple[int, ...], stored: np.dtype) -> None:
        self.files = [main]
        self.shape = shape
        self.stored = stored
        self.decoders: list[Decoder | BlockDecoder] = []
        self.tables: list[PieceTable] = []
        self._blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.plain = plain(stored)

    def table(self) -> PieceTable:
        """Give all pieces."""
        return joined(self.tables)

    def base_shape(self) -> tuple[int, ...]:
        """Give the shape of the blocks that all of the array consists of; empty for pixels."""
        sizes = np.array([(1,) * len(self.shape), *(chunk for _, chunk in self._blocks)]).max(0)
        origins = np.array([(0,) * len(self.shape), *(origin for origin, _ in self._blocks)])
        sizes[(origins % sizes).any(axis=0)] = 1
        return tuple(sizes.tolist()) if max(sizes, default=1) > 1 else ()

    def blocks(self, origin: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        """Note that something consists of blocks."""
        self._blocks.append((origin, (1,) * (len(self.shape) - len(chunk)) + chunk))

    def file(self, path: str) -> int:
        """Give the number of a file."""
        if os.path.abspath(path) == self.files[0].path:
            return 0
        try:
            found = File.at(path)
        except FileNotFoundError as error:
            raise TruncatedFileError(
                "a file that holds a part of the dataset is missing",
                path=self.files[0].path,
                expected=os.path.abspath(path),
            ) from error
        if found not in self.files:
            self.files.append(found)
        return self.files.index(found)

    def decoder(self, decoder: Decoder | BlockDecoder) -> int:
        """Give the number of a decoder."""
        if decoder not in self.decoders:
            self.decoders.append(decoder)
        return self.decoders.index(decoder)

    def task(self, function: str, **options: Any) -> int:
        """Give the number of a decoder of whole blocks."""
        dtype = self.plain.dtype
        values = (("dtype", dtype), *sorted(options.items()))
        return self.decoder(BlockDecoder(f"{TASKS}:{function}", dtype, values))

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
        pad = [(0, 0)] * (np.ndim(start) - 1) + [(more, 0)]
        wide = [np.pad(np.asarray(start), pad) + np.array(origin, np.int64)]
        for columns, value in ((shape, 1), (strides, 0)):
            rows = [(0, 0)] * (np.ndim(columns) - 1) + [(more, 0)]
            wide.append(np.pad(np.asarray(columns), rows, constant_values=value))
        self.tables.append(piece_table(wide[0], wide[1], offset, wide[2], **numbers))

    def fill(self, dataset: Any, origin: tuple[int, ...], start: Numbers, shape: Numbers) -> None:
        """Add boxes that were never written."""
        if not np.size(start):
            return
        value = np.zeros(1, self.stored)
        if dataset.id.get_create_plist().fill_value_defined():
            value[0] = dataset.fillvalue
        pixel = value.astype(self.plain.dtype).tobytes()
        number = self.decoder(unwritten(self.plain.dtype, pixel))
        self.put(origin, start, shape, 0, np.zeros_like(shape), decoder=number)

    def add(self, dataset: Any, path: str, origin: tuple[int, ...]) -> None:
        """Add a dataset.

        Parameters
        ----------
        dataset : h5py.Dataset
        path : str
            The file that it lies in.
        origin : tuple of int
            Where it begins in the array, the last axes of which are its own.
        """
        from h5py import h5d

        properties = dataset.id.get_create_plist()
        kind = properties.get_layout()
        number = self.file(path)
        if kind == h5d.CHUNKED:
            self._add_chunks(dataset, number, origin)
        elif kind == h5d.VIRTUAL and self._add_sources(dataset, path, origin):
            pass
        elif kind in {h5d.VIRTUAL, h5d.COMPACT} or not is_plain(dataset):
            self._add_blocks(dataset, number, origin)
        elif properties.get_external_count():
            self._add_external(dataset, origin)
        elif dataset.id.get_offset() is None:
            self.fill(dataset, origin, (0,) * dataset.ndim, dataset.shape)
        else:
            place = self.decoder(self.plain), dataset.id.get_offset()
            self._add_stretch(dataset, origin, number, *place)

    def _add_stretch(
        self, dataset: Any, origin: tuple[int, ...], file: int, decoder: int, offset: int
    ) -> None:
        start, strides = (0,) * dataset.ndim, c_strides(dataset.shape, self.stored)
        self.put(origin, start, dataset.shape, offset, strides, file=file, decoder=decoder)

    def _add_blocks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Let the library read a dataset without chunks, so many rows at a time."""
        _, *inner = dataset.shape
        rows = max(1, READ_BYTES // (math.prod(inner) * self.stored.itemsize))
        rows = max(rows, dataset.shape[0] // MOST_BLOCKS)
        starts = np.arange(0, dataset.shape[0], rows)
        start = np.zeros((len(starts), dataset.ndim), np.int64)
        start[:, 0] = starts
        shape = np.minimum((rows, *inner), np.array(dataset.shape) - start)
        number = self.task("read", dataset=dataset.name, origin=origin)
        self.put(origin, start, shape, 0, np.zeros_like(shape), file=file, decoder=number)
        self.blocks(origin, (min(rows, dataset.shape[0]), *inner))

    def _add_sources(self, dataset: Any, path: str, origin: tuple[int, ...]) -> bool:
        """Add the datasets that a virtual one is put together from, if it is of whole ones."""
        sources = [source_box(source) for source in dataset.virtual_sources()]
        boxes = [(start, shape) for start, shape, _, _ in sources]
        if any(not shape for _, shape in boxes):
            return False
        rest = uncovered(boxes, dataset.shape)
        if rest is None:
            return False
        found = []
        with ExitStack() as opened:
            for start, shape, name, inside in sources:
                place = path if name == "." else beside(name, path, "HDF5_VDS_PREFIX")
                file = opened.enter_context(open_file(self.files[self.file(place)]))
                source = file.get(inside)
                lead = len(shape) - getattr(source, "ndim", MAX_NDIM)
                if lead < 0 or shape != (1,) * lead + source.shape or source.dtype != dataset.dtype:
                    return False
                found.append((source, place, start))
            self.fill(dataset, origin, *rest)
            more = len(origin) - dataset.ndim
            for source, place, start in found:
                at = np.array(origin) + ((0,) * more + start)
                self.add(source, place, tuple(at.tolist()))
        return True

    def _add_external(self, dataset: Any, origin: tuple[int, ...]) -> None:
        """Add bytes in files that have nothing else to say: they follow one another."""
        properties = dataset.id.get_create_plist()
        itemsize, total = self.stored.itemsize, math.prod(dataset.shape)
        decoder = self.decoder(self.plain)
        strides = c_strides(dataset.shape, self.stored)
        first = 0
        for k in range(properties.get_external_count()):
            name, offset, size = properties.get_external(k)
            count, rest = divmod(min(size, (total - first) * itemsize), itemsize)
            if rest:
                raise DatasetError(
                    "a pixel lies in two files", path=self.files[0].path, where=os.fsdecode(name)
                )
            file = self.file(beside(os.fsdecode(name), self.files[0].path, "HDF5_EXTFILE_PREFIX"))
            for start, shape in boxes_between(first, first + count, dataset.shape):
                place = int(np.ravel_multi_index(start, dataset.shape)) - first
                at = offset + place * itemsize
                self.put(origin, start, shape, at, strides, file=file, decoder=decoder)
            first += count

    def _add_chunks(self, dataset: Any, file: int, origin: tuple[int, ...]) -> None:
        """Add chunks, each as it is stored, and what was never written."""
        shape, chunk = dataset.shape, dataset.chunks
        blocks = chunk
        where, masks, offsets, sizes = self._listed(dataset)
        self.fill(dataset, origin, *gaps(where // chunk, shape, chunk))
        pipeline = filters_of(dataset)
        strides = c_strides(chunk, self.stored)
        nbytes = self.stored.itemsize * math.prod(chunk)
        for mask in np.unique(masks).tolist():
            some = masks == mask
            start, offset = where[some], offsets[some]
            box = np.minimum(chunk, np.array(shape) - start)
            applied = tuple(f for k, f in enumerate(pipeline) if not mask >> k & 1)
            if not applied and is_plain(dataset):
                if (sizes[some] < nbytes).any():
                    raise TruncatedFileError(
                        "a chunk is too short", path=self.files[file].path, expected=nbytes
                    )
                whole, *joined = join_chunks(start, box, offset, np.array(strides), chunk, shape)
                blocks = (1,) * len(chunk) if whole else chunk
                number = self.decoder(self.plain)
                self.put(origin, *joined, file=file, decoder=number)
                continue
            number = self._chunk_decoder(dataset, applied, origin)
            zeros = np.zeros(len(shape), np.int64)
            self.put(
                origin, start, box, offset, zeros, file=file, decoder=number, nbytes=sizes[some]
            )
        self.blocks(origin, blocks)

    def _chunk_decoder(
        self, dataset: Any, filters: tuple[Filter, ...], origin: tuple[int, ...]
    ) -> int:
        if is_plain(dataset) and are_known(filters):
            stored = np.dtype("u1") if self.stored.kind == "b" else self.stored
            chunk = (1,) * (len(self.shape) - dataset.ndim) + dataset.chunks
            return self.task("decode", stored=stored, chunk=chunk, filters=filters)
        return self.task("read", dataset=dataset.name, origin=origin)

    def _listed(self, dataset: Any) -> tuple[Index, Index, Index, Index]:
        """List the chunks in C order: corners, masks of filters, offsets, sizes."""
        found: list[Any] = []
        dataset.id.chunk_iter(found.append)
        columns = zip(*found, strict=True) if found else ([], [], [], [])
        try:
            where, masks, offsets, sizes = (np.array(column, np.int64) for column in columns)
        except OverflowError as error:
            raise self._bad_index("a place in the file", "a larger number") from error
        where = where.reshape(-1, dataset.ndim)
        if (where % dataset.chunks).any() or (where >= dataset.shape).any() or (where < 0).any():
            raise self._bad_index(f"chunks of {dataset.chunks}", "others")
        grid = tuple(-(-n // size) for n, size in zip(dataset.shape, dataset.chunks, strict=True))
        places = np.ravel_multi_index(tuple((where // dataset.chunks).T), grid)
        order = np.argsort(places, kind="stable")
        if (np.diff(places[order]) == 0).any():
            raise self._bad_index("each chunk once", "one of them twice")
        return where[order], masks[order], offsets[order], sizes[order]

    def _bad_index(self, expected: str, found: str) -> CorruptFileError:
        return CorruptFileError(
            "the index of the chunks is wrong",
            path=self.files[0].path,
            expected=expected,
            found=found,
        )
