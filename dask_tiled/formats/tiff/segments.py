"""Layouts of TIFF pages: strips and tiles as pieces.

Consecutive strips become one piece, and so do pages whose pieces are equally spaced: in most files,
an uncompressed stack is a single piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff.kind import PageLayout, counts_of
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import Columns, axis_columns, joined, piece_table

MOST_SAMPLES = 1 << 62  # larger arrays exceed 64-bit indices

CONVERT = "Convert the file, for example with tiffcp -c none old.tif new.tif."


def layout_of(
    pages: Pages, rows: Sequence[int] | Index, lost: Sequence[tuple[int, int]] = ()
) -> tools.Layout:
    """Lay out pages of one shape and dtype, of any kinds and files, as frames of an array.

    ``lost`` are the first and last numbers, plus one, of frames in lost files.
    """
    rows = np.asarray(rows, np.int64)
    first = pages.kind_of(int(rows[0]))
    files, kinds, _, _, _, counts = pages.columns(rows)
    starts = counts.cumsum() - counts
    for first_lost, stop in lost:
        starts[starts >= first_lost] += stop - first_lost
    n_frames = int(counts.sum()) + sum(stop - first_lost for first_lost, stop in lost)
    if n_frames * math.prod(first.full) >= MOST_SAMPLES:
        path = pages.file_of(int(rows[0])).path
        raise tools.CorruptFileError("the array is too large", path=path)
    used, inverse = np.unique(files, return_inverse=True)
    decoders: dict[tools.Decoder | tools.BlockDecoder, int] = {}
    tables = []
    for number in np.unique(kinds).tolist():
        own = np.flatnonzero(kinds == number)
        kind = pages.kinds[number]
        _check_kind(kind, first, pages.file_of(int(rows[own[0]])).path)
        frames, segments = (starts[own], counts[own]), pages.segments(rows[own])
        _check_segments(pages, kind, rows[own], *segments)
        boxes = _boxes_of(kind, *frames, inverse[own], *segments)
        both = [decoders.setdefault(one, len(decoders)) for one in (kind.decoder, kind.blank)]
        axes = [0, *(1 + k for k in kind.kept)]
        shown = {name: getattr(boxes, name)[:, axes] for name in ("start", "shape", "strides")}
        boxes = boxes._replace(decoder=np.array(both)[boxes.decoder], **shown)
        tables.append(piece_table(**boxes._asdict()))
    chosen = [pages.files[k] for k in used]
    return tools.Layout(chosen, (n_frames,), first.shape, joined(tables), [*decoders], lost=lost)


def base_shape_of(kind: PageLayout) -> tuple[int, ...]:
    """Return the shape of the blocks that pages are read in; empty if any part can be read."""
    if isinstance(kind.decoder, tools.Decoder) and not kind.tiled:
        return ()
    block = [min(n, step) for n, step in zip(kind.full, kind.segment, strict=True)]
    return (1, *(block[k] for k in kind.kept))


def _check_kind(kind: PageLayout, first: PageLayout, path: str) -> None:
    if kind.image != first.image:
        expected, found = ("{} {} {}".format(*one.image) for one in (first, kind))
        raise tools.DatasetError("the pages differ", path=path, expected=expected, found=found)
    if kind.problem:
        what = "a page has an unsupported storage"
        raise tools.DatasetError(what, path=path, found=kind.problem, hint=CONVERT)


def _check_segments(
    pages: Pages, kind: PageLayout, rows: Index, offsets: Index, nbytes: Index
) -> None:
    """Check that segments are long enough, or have neither offset nor size (never written)."""
    least = np.array([1])
    if isinstance(kind.decoder, tools.Decoder):
        shape, strides = _shapes_of(kind)[1], _strides_of(kind)
        least = ((shape - 1) * strides).sum(axis=1) + kind.dtype.itemsize
    wrong = np.where(offsets == 0, nbytes > 0, nbytes < least)
    if kind.tiled and kind.n_segments == 1:  # some writers give empty tiles an offset
        wrong &= nbytes > 0
    if wrong.any():
        page, segment = np.argwhere(wrong)[0].tolist()
        place, found = int(offsets[page, segment]), int(nbytes[page, segment])
        expected = f"{np.broadcast_to(least, wrong.shape[1])[segment]} bytes or more"
        what, row = "tile" if kind.tiled else "strip", int(rows[page])
        where = f"{pages.name_of(row)}, {what} {segment} at byte {place}"
        raise tools.CorruptFileError(
            f"a {what} has too few bytes" if place else f"a {what} has a byte count, but no offset",
            path=pages.file_of(row).path,
            where=where,
            expected=expected if place else "an offset behind the header",
            found=f"a byte count of {found}",
        )


def _boxes_of(
    kind: PageLayout, frames: Index, counts: Index, files: Index, offsets: Index, nbytes: Index
) -> Columns:
    """Return boxes for the segments, (pages, segments), of pages of one kind.

    Their axes are the frame axis, then the five axes of a page. Decoder 1 is that of unwritten
    segments.
    """
    start, shape = _shapes_of(kind)
    is_plain = isinstance(kind.decoder, tools.Decoder)
    strides = _strides_of(kind) * is_plain
    page, segment = np.indices(offsets.shape).reshape(2, -1)
    steps = np.where(counts == 1, 0, kind.nbytes(kind.full))[page]
    blank = (nbytes == 0).ravel()
    boxes = Columns(
        file=files[page],
        decoder=blank.astype(np.int64),
        offset=np.where(blank, 0, offsets.ravel()),
        nbytes=np.where(blank | is_plain, 0, nbytes.ravel()),
        start=axis_columns(frames[page], start[segment]),
        shape=axis_columns(counts[page], shape[segment]),
        strides=axis_columns(steps, strides) * ~blank[:, None],
    )
    if not is_plain:
        return boxes
    return _join_frames(boxes if kind.tiled else _join_strips(boxes, kind.dtype.itemsize))


def _shapes_of(kind: PageLayout) -> tuple[Index, Index]:
    """Return start and shape of each segment of a page."""
    start = np.indices(counts_of(kind.full, kind.segment)).reshape(5, -1).T * kind.segment
    return start, np.minimum(kind.segment, np.array(kind.full) - start)


def _strides_of(kind: PageLayout) -> Index:
    """Return the strides of uncompressed pixels in a segment."""
    return np.append(np.cumprod(kind.segment[:0:-1])[::-1], 1) * kind.dtype.itemsize


def _take(boxes: Columns, chosen: Index) -> Columns:
    return Columns(*(column[chosen] for column in boxes))


def _join_strips(boxes: Columns, itemsize: int) -> Columns:
    """Join strips of a page that are adjacent in the image and in the file."""
    stop = boxes.offset + boxes.shape[:, 1:].prod(axis=1) * itemsize
    written = boxes.decoder == 0
    below = (boxes.start[1:, 3] > 0) & written[1:] & written[:-1] & (stop[:-1] == boxes.offset[1:])
    heads = np.flatnonzero(np.append([True], ~below))
    strips = _take(boxes, heads)
    strips.shape[:, 3] = np.add.reduceat(boxes.shape[:, 3], heads)
    return strips


def _join_frames(boxes: Columns) -> Columns:
    """Join equal boxes of consecutive frames that are equally spaced in one file."""
    box = np.column_stack([boxes.file, boxes.decoder, boxes.start[:, 1:], boxes.shape])
    order = np.lexsort([boxes.start[:, 0], *box.T[::-1]])
    boxes, box = _take(boxes, order), box[order]
    steps = np.diff(boxes.offset)
    linked = (box[1:] == box[:-1]).all(axis=1) & (np.diff(boxes.start[:, 0]) == 1)
    # Where the step changes, the middle box belongs to the previous run.
    changes = linked[1:] & linked[:-1] & (steps[1:] != steps[:-1])
    new = ~np.append([False], linked) | np.append([False, False], changes)[: len(box)]
    heads = np.flatnonzero(new)
    counts, stacks = np.diff(heads, append=len(box)), _take(boxes, heads)
    stacks.shape[:, 0] *= counts
    stacks.strides[:, 0] = np.where(counts > 1, np.append(steps, 0)[heads], stacks.strides[:, 0])
    return stacks
