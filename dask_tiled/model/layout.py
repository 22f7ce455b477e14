"""The layout of an array: the pieces that hold it, and the selected part."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.model.decoders import BlockDecoder, Decoder, EventDecoder
from dask_tiled.model.indexing import Cut, Index, cut_again
from dask_tiled.model.pieces import Columns, Piece, PieceTable, check_reach, strides_of, table_of

MAX_NDIM = 64
"""Maximum number of axes of an array in NumPy."""


class Selection(NamedTuple):
    """Frame numbers by position in the navigation shape, in C order.

    Numbers below 0, beyond the last frame or in a lost file denote missing frames.
    """

    nav_shape: tuple[int, ...]
    n_frames: int  # frames in the files, and lost ones between them
    first: int = 0  # number of the first selected frame; the others follow it
    numbers: Index | None = None
    """Frame number at every position, if they are not consecutive."""
    lost: tuple[tuple[int, int], ...] = ()
    """First and stop of the frames that no file holds, in ascending ranges that do not touch."""

    @property
    def n_held(self) -> int:
        """Number of frames in the files."""
        return self.n_frames - sum(stop - first for first, stop in self.lost)

    def at(self, places: Index) -> Index:
        """Return the frame numbers at some positions."""
        return places + self.first if self.numbers is None else self.numbers[places]

    def are_absent(self, numbers: Index) -> npt.NDArray[np.bool_]:
        """Return a mask of the numbers of missing frames."""
        absent = (numbers < 0) | (numbers >= self.n_frames)
        if self.lost:
            edges = np.array(self.lost).ravel()
            absent |= np.searchsorted(edges, numbers, side="right") % 2 == 1
        return absent

    def absent(self) -> int:
        """Count the positions without a frame."""
        if self.numbers is not None:
            return int(self.are_absent(self.numbers).sum())
        places = math.prod(self.nav_shape)
        low, high = max(0, self.first), min(self.n_frames, self.first + places)
        lost = sum(max(0, min(high, stop) - max(low, first)) for first, stop in self.lost)
        return places - max(0, high - low) + lost

    def ignored(self) -> int:
        """Count the frames that are not selected."""
        if self.numbers is not None:
            there = self.numbers[~self.are_absent(self.numbers)]
            return self.n_held - len(np.unique(there))
        return self.n_held - (math.prod(self.nav_shape) - self.absent())


class Layout:
    """Files, pieces and decoders of an array, and the selected part of it.

    Parameters
    ----------
    files : sequence of File
        Files of the pieces.
    grid : tuple of int
        Navigation shape of the frames in the files; ``(n,)`` for n consecutive frames.
    sig_shape : tuple of int
        Shape of a frame.
    pieces : sequence of Piece, or PieceTable
        They must cover ``grid + sig_shape`` unless ``partial``, and must not overlap unless
        ``overlapping``. Sparse pieces are free of both.
    decoders : sequence of Decoder
        Several dtypes are promoted to the dtype of the array.
    selection : Selection, optional
        Selected frames and their navigation shape; by default all frames in the shape ``grid``.
    cuts : tuple of Cut, optional
        Selected part of each axis of ``nav_shape + sig_shape``; by default the whole axis.
    repeats : tuple of int, optional
        Number of times that every stored unit is repeated along each signal axis, which spreads
        binned pixels over the detector again. Strides count stored units; everything else counts
        repeated pixels. The last axis only repeats units of one pixel.
    overlapping : bool
        Whether pieces overlap: later pieces of the table win.
    partial : bool
        Whether pieces leave holes, which are filled.
    lost : sequence of (int, int), optional
        First and stop of frames that no piece holds, in ascending ranges; they are missing.

    Raises
    ------
    TruncatedFileError
        A piece reaches beyond its file.
    """

    def __init__(
        self,
        files: Sequence[File],
        grid: tuple[int, ...],
        sig_shape: tuple[int, ...],
        pieces: Sequence[Piece] | PieceTable,
        decoders: Sequence[Decoder | BlockDecoder],
        selection: Selection | None = None,
        cuts: tuple[Cut, ...] | None = None,
        *,
        repeats: tuple[int, ...] | None = None,
        overlapping: bool = False,
        partial: bool = False,
        lost: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.files = tuple(files)
        self.grid = grid
        self.sig_shape = sig_shape
        try:
            self.pieces = pieces if isinstance(pieces, PieceTable) else table_of(pieces)
        except OverflowError as error:
            raise TruncatedFileError(
                "the pixels reach beyond the file",
                path=self.files[0].path,
                expected="offsets, lengths and strides of 8 bytes",
                found=str(error),
            ) from error
        self.decoders = tuple(decoders)
        self.repeats = repeats or (1,) * len(sig_shape)
        self.overlapping = overlapping
        self.partial = partial
        self.selection = selection or Selection(grid, math.prod(grid), lost=tuple(lost))
        self.cuts = (
            tuple(Cut(0, 1, n) for n in self.nav_shape + sig_shape) if cuts is None else cuts
        )
        self._token: str | None = None
        self._check()

    @cached_property
    def dtype(self) -> np.dtype:
        """Dtype of the pixels, in native byte order."""
        first, *others = {decoder.dtype: None for decoder in self.decoders}
        return np.result_type(first, *others) if others else first

    @property
    def object_bytes(self) -> int:
        """Mean bytes of a Python object if pixels are objects, else 0."""
        return max(getattr(decoder, "object_bytes", 0) for decoder in self.decoders)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected part."""
        return tuple(cut.length for cut in self.cuts if cut.kept)

    @property
    def nav_shape(self) -> tuple[int, ...]:
        """Navigation shape before cuts."""
        return self.selection.nav_shape

    @property
    def nav_ndim(self) -> int:
        """Number of navigation axes of the selected part."""
        return sum(cut.kept for cut in self.cuts[: len(self.nav_shape)])

    @cached_property
    def has_blocks(self) -> bool:
        """Whether some pixels are in compressed blocks, which decode only as a whole."""
        return any(isinstance(self.decoders[k], BlockDecoder) for k in self.pieces.decoders)

    @cached_property
    def is_sparse(self) -> bool:
        """Whether pieces hold events that are added to pixels."""
        return any(isinstance(decoder, EventDecoder) for decoder in self.decoders)

    @cached_property
    def is_by_time(self) -> bool:
        """Whether frames are made of events by their times; some may come late."""
        return any(isinstance(decoder, EventDecoder) and decoder.marks for decoder in self.decoders)

    @property
    def n_frames(self) -> int:
        """Number of frames in the files, and of lost ones between them."""
        return math.prod(self.grid)

    def unit_shape(self) -> tuple[int, ...]:
        """Return the smallest part of a frame that can be decoded separately."""
        sig = self.cuts[len(self.nav_shape) :]
        decoders = [d for d in self.decoders if isinstance(d, Decoder)]
        last = max((d.pixels for d in decoders), default=1) if sig[-1].step == 1 else 1
        units = [1] * (len(sig) - 1) + [last]
        return tuple(unit for unit, cut in zip(units, sig, strict=True) if cut.kept)

    def frame_numbers(self, nav: Sequence[Cut]) -> Index:
        """Return the frame numbers in cuts of the navigation axes, in C order."""
        return self.selection.at(self._places(nav))

    def _places(self, nav: Sequence[Cut]) -> Index:
        places = np.zeros(1, np.int64)
        for cut, stride in zip(nav, strides_of(self.nav_shape, 1), strict=True):
            places += cut.start * stride
            if cut.length != 1:
                places = np.add.outer(places, np.arange(cut.length) * (cut.step * stride)).ravel()
        return places

    def at(self, positions: Index) -> Layout:
        """Select positions along the first axis, a navigation axis, in any order."""
        n = len(self.nav_shape)
        axis = next(k for k, cut in enumerate(self.cuts[:n]) if cut.kept)
        first, inner = self.cuts[axis], self.cuts[axis + 1 : n]
        row = self._places((*self.cuts[:axis], first._replace(length=1), *inner))
        stride = first.step * strides_of(self.nav_shape, 1)[axis]
        numbers = self.selection.at(np.add.outer(positions * stride, row).ravel())
        shape = len(positions), *(cut.length for cut in inner if cut.kept)
        return self.show(shape, numbers=numbers)

    def missing(self) -> Index:
        """Return the positions of missing frames, in C order of the selected part."""
        if not self.selection.absent():
            return np.empty(0, dtype=np.int64)
        numbers = self.frame_numbers(self.cuts[: len(self.nav_shape)])
        return np.flatnonzero(self.selection.are_absent(numbers))

    def count_missing(self) -> int:
        """Count the missing frames, without listing them if nothing is cut."""
        places = math.prod(self.nav_shape)
        shown = [cut.length for cut in self.cuts[: len(self.nav_shape)]]
        return self.selection.absent() if math.prod(shown) == places else len(self.missing())

    def show(
        self, nav_shape: tuple[int, ...], first: int = 0, numbers: Index | None = None
    ) -> Layout:
        """Select all or some of the frames; the parameters are those of :class:`Selection`."""
        whole = tuple(Cut(0, 1, n) for n in self.nav_shape)
        if numbers is None and self.cuts[: len(whole)] != whole:
            raise DatasetError(
                "a slice cannot be given another nav_shape",
                path=self.files[0].path,
                expected=f"all of {self.nav_shape}",
                found=f"a nav_shape {nav_shape} for a part of it",
                hint="Open the file with that nav_shape, or reshape the array.",
            )
        cuts = (*(Cut(0, 1, n) for n in nav_shape), *self.cuts[len(self.nav_shape) :])
        selection = Selection(nav_shape, self.n_frames, first, numbers, self.selection.lost)
        _check_axes(self.files, len(cuts))
        return self._changed(selection=selection, cuts=cuts, _token=None)

    def shown_like(self, other: Layout) -> Layout:
        """Select one pixel of each frame, at the positions of another layout.

        Both layouts have the same frame numbers.
        """
        nav = other.cuts[: len(other.nav_shape)]
        one = (Cut(0, 1, 1, kept=False),) * len(self.sig_shape)
        return self._changed(selection=other.selection, cuts=(*nav, *one), _token=None)

    def grown(self, newer: Layout) -> Layout:
        """Return the same selected part of a longer version of the files, described again."""
        count, lost = newer.n_frames, newer.selection.lost
        selection = self.selection._replace(n_frames=count, lost=lost)
        return newer._changed(selection=selection, cuts=self.cuts, _token=None)

    def cut(self, cuts: Sequence[Cut]) -> Layout:
        """Select a part of each axis of the current selection."""
        return self._changed(cuts=cut_again(self.cuts, cuts), _token=self.token)

    def with_pieces(self, pieces: PieceTable) -> Layout:
        """Return the layout with another table of the same pieces."""
        return self._changed(pieces=pieces, _token=self.token)

    def _changed(self, **values: Any) -> Layout:
        """Return a copy with other values; nothing is checked, as the pieces are the same."""
        layout = object.__new__(Layout)
        vars(layout).update(vars(self) | values)
        return layout

    @property
    def token(self) -> str:
        """Identity of the whole layout, whatever part is shown."""
        # repr and bytes are equal in all processes; pickled bytes are not.
        if self._token is None:
            *shown, numbers, lost = self.selection
            shown += [lost] if lost else []
            shapes = self.grid, self.sig_shape, self.repeats, self.overlapping, self.partial
            text = repr((self.files, self.decoders, *shapes, shown))
            digest = hashlib.blake2b(text.encode(), digest_size=16)
            for column in self.pieces.content:
                digest.update(column)
            digest.update(b"" if numbers is None else numbers.tobytes())
            self._token = digest.hexdigest()
        return self._token

    def _shown_token(self) -> tuple[str, ...]:
        """Return the identity of the selected pixels, independent of other frames."""
        nav, selection, count = len(self.nav_shape), self.selection, self.n_frames
        cuts = self.cuts[:nav]
        if selection.numbers is None:
            strides = strides_of(self.nav_shape, 1)
            ends = [(cut.start, cut.start + cut.step * (cut.length - 1)) for cut in cuts]
            low, high = (
                selection.first + sum(end[k] * n for end, n in zip(ends, strides, strict=True))
                for k in (0, 1)
            )
            shown = repr((selection.first, self.nav_shape[1:], selection.lost))
            if low < 0 or high >= count:
                shown += f" of {count}"
        else:
            numbers = self.frame_numbers(cuts)
            there = numbers[~selection.are_absent(numbers)]
            low, high = (int(there.min()), int(there.max())) if len(there) else (0, -1)
            known = np.where(selection.are_absent(numbers), -1, numbers).tobytes()
            shown = hashlib.blake2b(known, digest_size=16).hexdigest()
        frames = self.frames_token(max(low, 0), min(high + 1, count))
        return frames, shown, repr(tuple(map(tuple, self.cuts)))

    def frames_token(self, first: int, stop: int, without: Index | None = None) -> str:
        """Return the identity of some frames: their files, and their positions in these.

        Pieces that begin with one of the frames ``without`` are left out.
        """
        held = self.held(first, stop)
        if without is not None:
            starts = tuple(held.start[:, : len(self.grid)].T)
            kept = ~np.isin(np.ravel_multi_index(starts, self.grid), without)
            held = Columns(*(column[kept] for column in held))
        touched, file = np.unique(held.file, return_inverse=True)
        found = [self.files[k] for k in touched]
        files = [(file.path, file.inode, file.mtime_ns, file.ctime_ns) for file in found]
        kinds = self.sig_shape, self.repeats, self.overlapping, self.partial
        text = repr((files, self.decoders_until(stop), *kinds))
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        for column in held._replace(file=file):
            digest.update(column.tobytes())
        return digest.hexdigest()

    def decoders_until(self, stop: int) -> tuple[Decoder | BlockDecoder, ...]:
        """Return the decoders of the frames before one."""
        return tuple(d.until(stop) if isinstance(d, EventDecoder) else d for d in self.decoders)

    def held(self, first: int, stop: int) -> Columns:
        """Return the pieces of frames ``first`` to ``stop``, cut along the first frame axis."""
        pieces, inner = self.pieces, math.prod(self.grid[1:])
        first, stop = first // inner, -(-stop // inner)
        start, length = pieces.column("start"), pieces.column("shape")
        meet = np.broadcast_to((start < stop) & (start + length > first), len(pieces))
        rows = pieces.rows(np.flatnonzero(meet))
        dense = np.array([isinstance(decoder, Decoder) for decoder in self.decoders])[rows.decoder]
        cut = dense | self.is_sparse
        low = np.where(cut, np.maximum(rows.start[:, 0], first), rows.start[:, 0])
        end = rows.start[:, 0] + rows.shape[:, 0]
        high = np.where(cut, np.minimum(end, stop), end)
        offset = rows.offset + dense * (low - rows.start[:, 0]) * rows.strides[:, 0]
        starts, shapes = rows.start.copy(), rows.shape.copy()
        starts[:, 0], shapes[:, 0] = low, high - low
        return rows._replace(offset=offset, start=starts, shape=shapes)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        if self.files[-1].grows:  # a longer version of a growing file has the same frames
            return "dask_tiled.Layout", *self._shown_token()
        return "dask_tiled.Layout", self.token, tuple(map(tuple, self.cuts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.__dask_tokenize__() == other.__dask_tokenize__()

    def __hash__(self) -> int:
        return hash(self.__dask_tokenize__())

    def _check(self) -> None:
        """Check that the pieces lie inside their files and cover the array."""
        _check_axes(self.files, max(len(self.cuts), len(self.grid + self.sig_shape)))
        check_reach(self.files, self.pieces, self.decoders, self.repeats)
        exact = not self.overlapping and not self.partial and not self.is_sparse
        held = self.selection.n_held * math.prod(self.sig_shape)
        if exact and held != self.pieces.size:
            raise DatasetError("the pieces do not cover the array", path=self.files[0].path)


def _check_axes(files: Sequence[File], ndim: int) -> None:
    if ndim > MAX_NDIM:
        raise DatasetError(
            "too many axes", path=files[0].path, expected=f"at most {MAX_NDIM}", found=ndim
        )
