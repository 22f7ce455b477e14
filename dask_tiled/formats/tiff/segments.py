"""Pages of TIFF files become a layout: strips and tiles become pieces.

Strips that follow one another become one piece, and so do pages whose pieces are equally spaced: a
stack without compression is one piece in most files, however many pages it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tiff.kind import Kind, counts_of
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.indexing import Index
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import axis_columns, piece_table

MOST_SAMPLES = 1 << 62
"""Pixels of larger arrays cannot be numbered."""


class Boxes(NamedTuple):
    """Columns of boxes of pixels: a box for each segment, or for several that are equally spaced.

    There are `frames` from `frame` on, `step` bytes apart. The last three have five numbers for
    each box, and the others are as in a :class:`~dask_tiled.model.pieces.Piece`.
    """

    frame: Index
    frames: Index
    step: Index
    file: Index
    decoder: Index
    offset: Index
    nbytes: Index
    start: Index
    shape: Index
    strides: Index

    def take(self, chosen: Index) -> Boxes:
        """Take some of them."""
        return Boxes(*(column[chosen] for column in self))


def layout_of(pages: Pages, rows: Sequence[int] | Index) -> Layout:
    """Lay out pages, in the order of the frames, as frames of one array.

    They may be of several kinds, and in several files; the files are those of these pages only.
    """
    rows = np.asarray(rows, np.int64)
    first = pages.kind_of(int(rows[0]))
    files, kinds, _, _, _, counts = pages.columns(rows)
    n_frames = int(counts.sum())
    if n_frames * math.prod(first.full) >= MOST_SAMPLES:
        raise CorruptFileError("larger than any file", path=pages.file_of(int(rows[0])).path)
    used, inverse = np.unique(files, return_inverse=True)
    decoders: dict[Decoder | BlockDecoder, int] = {}
    parts = []
    for number in np.unique(kinds).tolist():
        own = np.flatnonzero(kinds == number)
        kind = pages.kinds[number]
        _check_kind(kind, first, pages.file_of(int(rows[own[0]])).path)
        frames = (counts.cumsum() - counts)[own], counts[own]
        boxes = _boxes_of(kind, *frames, inverse[own], *pages.segments(rows[own]))
        both = [decoders.setdefault(one, len(decoders)) for one in (kind.decoder, kind.blank)]
        parts.append(boxes._replace(decoder=np.array(both)[boxes.decoder]))
    boxes = Boxes(*map(np.concatenate, zip(*parts, strict=True)))
    kept = list(first.kept)
    table = piece_table(
        axis_columns(boxes.frame, boxes.start[:, kept]),
        axis_columns(boxes.frames, boxes.shape[:, kept]),
        boxes.offset,
        axis_columns(boxes.step, boxes.strides[:, kept]),
        file=boxes.file,
        decoder=boxes.decoder,
        nbytes=boxes.nbytes,
    )
    chosen = [pages.files[k] for k in used]
    return Layout(chosen, (n_frames,), first.shape, table, [*decoders])


def base_shape_of(kind: Kind) -> tuple[int, ...]:
    """Give the shape of the blocks that pages are read in; empty where any part can be read."""
    if isinstance(kind.decoder, Decoder) and not kind.tiled:
        return ()
    block = [min(n, step) for n, step in zip(kind.full, kind.segment, strict=True)]
    return (1, *(block[k] for k in kind.kept))


def _check_kind(kind: Kind, first: Kind, path: str) -> None:
    if kind.image != first.image:
        raise DatasetError(
            "the pages differ",
            path=path,
            expected=f"{first.shape} {first.axes} {first.dtype}",
            found=f"{kind.shape} {kind.axes} {kind.dtype}",
        )
    if kind.problem:
        what = "a page is stored in a way that is not read"
        raise DatasetError(what, path=path, found=kind.problem)


def _boxes_of(
    kind: Kind, frames: Index, counts: Index, files: Index, offsets: Index, nbytes: Index
) -> Boxes:
    """Make boxes of the segments of pages of one kind, whose numbers are (pages, segments).

    Their decoder is 0, or 1 where nothing was ever written.
    """
    start = np.indices(counts_of(kind.full, kind.segment)).reshape(5, -1).T * kind.segment
    shape = np.minimum(kind.segment, np.array(kind.full) - start)
    is_plain = isinstance(kind.decoder, Decoder)
    strides = np.append(np.cumprod(kind.segment[:0:-1])[::-1], 1) * kind.dtype.itemsize * is_plain
    page, segment = np.indices(offsets.shape).reshape(2, -1)
    blank = ((offsets == 0) | (nbytes == 0)).ravel()
    boxes = Boxes(
        frame=frames[page],
        frames=counts[page],
        step=np.where(blank | (counts[page] == 1), 0, kind.page_bytes),
        file=files[page],
        decoder=blank.astype(np.int64),
        offset=np.where(blank, 0, offsets.ravel()),
        nbytes=np.where(blank | is_plain, 0, nbytes.ravel()),
        start=start[segment],
        shape=shape[segment],
        strides=strides * ~blank[:, None],
    )
    if not is_plain:
        return boxes
    return _join_frames(boxes if kind.tiled else _join_strips(boxes, kind.dtype.itemsize))


def _join_strips(boxes: Boxes, itemsize: int) -> Boxes:
    """Join strips of a page that follow one another, in the image and in the file."""
    below = boxes.start[1:, 2] > 0
    stop = boxes.offset + boxes.shape.prod(axis=1) * itemsize
    written = boxes.decoder == 0
    joined = below & written[1:] & written[:-1] & (stop[:-1] == boxes.offset[1:])
    heads = np.flatnonzero(np.append([True], ~joined))
    shape = boxes.shape[heads]
    shape[:, 2] = np.add.reduceat(boxes.shape[:, 2], heads)
    return boxes.take(heads)._replace(shape=shape)


def _join_frames(boxes: Boxes) -> Boxes:
    """Join the same boxes of single frames that follow one another, equally spaced in one file."""
    box = np.column_stack([boxes.file, boxes.decoder, boxes.frames, boxes.start, boxes.shape])
    order = np.lexsort([boxes.frame, *box.T[::-1]])
    boxes, box = boxes.take(order), box[order]
    steps = np.diff(boxes.offset)
    linked = (box[1:] == box[:-1]).all(axis=1) & (np.diff(boxes.frame) == 1)
    linked &= boxes.frames[1:] == 1
    # Where the step changes, the box between belongs to those before.
    changes = linked[1:] & linked[:-1] & (steps[1:] != steps[:-1])
    heads = np.flatnonzero(
        ~np.append([False], linked) | np.append([False, False], changes)[: len(box)]
    )
    joined, heads_only = np.diff(heads, append=len(box)), boxes.take(heads)
    step = np.where(joined > 1, np.append(steps, 0)[heads], heads_only.step)
    return heads_only._replace(frames=heads_only.frames * joined, step=step)
