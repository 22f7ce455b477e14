"""Arrays that remember the files they were opened from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self

import dask.array as da
import numpy as np
from dask import config
from dask.base import get_annotations, tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.formats.saved_axes import save_axes
from dask_tiled.graphs.layers import (
    DESCRIPTION,
    OPENING,
    Annotations,
    fused,
    symbolic_graph,
)
from dask_tiled.graphs.results import is_one_task, whole
from dask_tiled.graphs.rewriting import optimize
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import Calibration, Calibrations, calibrated
from dask_tiled.model.description import BY_USER, Description
from dask_tiled.model.indexing import basic_cuts, cut_again, cut_chunks
from dask_tiled.model.instrument import Instrument
from dask_tiled.opened.at_once import METHODS, LateArray, Reducing, unobserved
from dask_tiled.opened.by_name import by_axis, positions_of, selected
from dask_tiled.opened.choosing import SETTINGS, at_points, picked, reshaped
from dask_tiled.opened.page import page
from dask_tiled.opened.parts import OpenedPart
from dask_tiled.opened.persisted import follow, remember
from dask_tiled.opened.verbs import Verb
from dask_tiled.plans.tasks import Function, Kwargs
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Edges, Grid, cut_no_block
from dask_tiled.tiling.negotiation import block_chunks
from dask_tiled.tiling.scheme import TilingScheme, negotiate
from dask_tiled.tiling.sizes import read_chunks, rechunked


class Writer(Protocol):
    """What writes growing files, such as a recording."""

    @property
    def is_running(self) -> bool:
        """Whether more may be written."""

    @property
    def state(self) -> str:
        """The state, in a word."""

    @property
    def error(self) -> Exception | None:
        """Why writing has failed; None if it has not."""


class Opening(Protocol):
    """How an array was opened."""

    @property
    def writer(self) -> Writer | None:
        """What writes the files, if this process knows it."""

    def written_by(self, writer: Writer) -> Opening:
        """Return the same opening with what writes the files."""

    @property
    def settled(self) -> bool:
        """Whether the user passed the shape of the scan."""

    def described(self, old: Description, *, complete: bool = False) -> Description:
        """Describe the files of an array again, whose first frames have to be unchanged.

        Frames of events may be revised. ``complete``: nothing will be appended.
        """

    def again(self, arr: TiledArray, old: Description, *, complete: bool = False) -> da.Array:
        """Open the files of an array again, as for :meth:`described`; warn of revised frames."""

    def levels(self, arr: TiledArray, desc: Description) -> Iterator[da.Array]:
        """Open the lower levels of the pyramid of an array."""


class TiledArray(LateArray):
    """A dask array that remembers the files it was opened from.

    Integers, slices with a positive step and an ellipsis cut the source: a crop reads only its
    own bytes. Along navigation axes, lists, masks, points and negative steps select frames, and
    only these are read; reshaping these axes, or rechunking without repeated reads, keeps the
    frames. All other operations return plain dask arrays; when their graphs are optimised,
    computations on opened arrays run tile by tile.

    The methods ``calibrate``, ``show``, ``explore``, ``explain``, ``to_zarr``, ``to_xarray`` and
    ``to_hyperspy`` are the functions of these names.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> type(arr).__name__, arr.dims
    ('TiledArray', ('scan_y', 'scan_x', 'y', 'x'))
    >>> arr[10:20, :, 32:96, 32:96].axes[3]
    Axis(name='x', units='mrad', scale=0.4, offset=..., labels=())
    """

    __slots__ = (
        "_annotations", "_description", "_grid", "_growing", "_opening", "_part", "_scheme",
        "_source",
    )  # fmt: skip

    _description: Description | None
    """Description of the array; None after items have been assigned to it."""
    _source: Source
    _scheme: TilingScheme
    """Scheme of the array; slices keep that of the whole."""
    _grid: Grid
    _annotations: Annotations
    """dask annotations at the creation of the array, for a graph built later."""
    _opening: Opening | None
    """How to open the files again; None for a slice."""
    _part: OpenedPart | None
    """Which part of an opened array a slice is; None for others."""
    _growing: Opening | None
    """How the files of the whole array are opened again, also for a slice of it."""

    def __new__(  # noqa: D102 - as in dask's class
        cls,
        description: Description,
        scheme: TilingScheme,
        io: str,
        chunks: Chunks | None = None,
        grid: Grid | None = None,
        annotations: Annotations | None = None,
        opening: Opening | None = None,
        part: OpenedPart | None = None,
        *,
        growing: Opening | None = None,
    ) -> Self:
        with SETTINGS:
            if config.get("array_optimize", None) is None:  # not set by the user
                config.set(array_optimize=optimize)
            plugins = config.get("array_plugins", ())
            if follow not in plugins:
                plugins = (follow, *plugins)
                config.set(array_plugins=plugins)
        self = object.__new__(cls)
        self._begin()
        self._description = description
        self._scheme = scheme
        self._source = Source(description.layout, description.conversion, io)
        self._chunks = scheme.chunks if chunks is None else chunks
        self._grid = grid or Grid.of(self._chunks)
        self._annotations = inherited() if annotations is None else annotations
        self._opening, self._part, self._growing = opening, part, opening or growing
        self._meta = np.empty((0,) * len(self._chunks), dtype=self._source.dtype)
        shown = self
        for plugin in plugins:
            replacement = None if plugin is follow else plugin(shown)
            shown = shown if replacement is None else replacement
        return shown

    calibrate, explain, explore, show = Verb(), Verb(), Verb(), Verb()
    to_hyperspy, to_xarray = Verb(), Verb()
    to_zarr = Verb()  # dask's method would lose the names of axes
    max, mean, min, sum = Reducing(), Reducing(), Reducing(), Reducing()

    @property
    def description(self) -> Description | None:
        """Description of the array; None after items have been assigned to it."""
        return self._description

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes, with units and scales."""
        return self._described("axes").axes

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, which xarray uses."""
        return self._described("dims").dims

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the headers, in the format's own names."""
        return self._described("metadata").metadata

    @property
    def instrument(self) -> Instrument:
        """Instrument metadata of the files, in one vocabulary for all formats."""
        return self._described("instrument").instrument

    def _described(self, asked: str) -> Description:
        if self._description is None:
            problem = f"{asked} is not available: items have been assigned to the array"
            raise AttributeError(problem, name=asked, obj=self)
        return self._description

    def _repr_html_(self) -> str:
        desc = self._description
        return super()._repr_html_() if desc is None else page(desc, self.scheme, self.io)

    @property
    def scheme(self) -> TilingScheme:
        """Chunks and tiles, with reasons; not available after items have been assigned."""
        description = self._described("scheme")
        if self._scheme.chunks != self.chunks:
            nbytes = self._scheme.block_bytes
            scheme = negotiate(description, self._scheme.requests, chunks=self.chunks)
            self._scheme = replace(scheme, block_bytes=nbytes)
        return self._scheme

    @property
    def io(self) -> str:
        """Backend that fetches bytes."""
        return self._source.io

    def _make_name(self) -> str:
        name = array_name(self._described("name"), self._source, self._grid)
        remember(self, name)
        return name

    def _make_graph(self) -> HighLevelGraph:
        shown = self.name, self.chunks, self._source, self._grid
        graph = symbolic_graph(*shown, annotations=self._annotations)
        noted: dict[str, object] = {"shape": self.shape, "dtype": self.dtype}
        noted["chunks"] = self.chunks
        noted[DESCRIPTION] = self._description
        if self._description and self._description.files[-1].grows:
            noted[OPENING] = self._growing
        graph.layers[self.name].collection_annotations = noted
        return graph

    def _become_plain(self) -> None:
        super()._become_plain()
        self._description = None

    def __getitem__(self, index: object) -> da.Array:
        cuts = basic_cuts(index, self.shape)
        if cuts is None or self._description is None:
            chosen = self._description and picked(self, self._description, index)
            return self._show(*chosen) if chosen else super().__getitem__(index)
        chunks, edges = [], []
        for axis_chunks, axis_edges, cut in zip(self.chunks, self._grid.axes, cuts, strict=True):
            if cut == (0, 1, axis_edges.size, True):  # reuse objects: there may be a million chunks
                chunks.append(axis_chunks)
                edges.append(axis_edges)
            elif cut.kept:
                chunks.append(cut_chunks(axis_chunks, cut))
                edges.append(Edges(chunks[-1]))
        grid = Grid(tuple(edges))
        if grid.axes == self._grid.axes:  # nothing is cut
            return self
        part = self._part
        if self._opening is not None:
            part = OpenedPart(self._description, tuple(cuts))
        elif part is not None:
            part = part._replace(cuts=cut_again(part.cuts, cuts))
        return self._show(self._description.cut(cuts), tuple(chunks), grid, part=part)

    @property
    def vindex(self) -> Any:
        """Select points as in dask; points of navigation axes select frames."""
        return type(super().vindex)(self._choose)

    def _choose(self, key: object) -> da.Array:
        found = self._description and at_points(self._description, self.chunks, key)
        if not found:
            return super().vindex[key]
        frames, shape = found
        return self._show(*frames).reshape(shape)

    def reshape(self, *shape: object, **options: object) -> da.Array:
        """Reshape the array as in dask; reshaped navigation axes keep their frames."""
        asked = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        found = self._description and reshaped(self, self._description, asked, **options)
        return self._show(*found) if found else super().reshape(asked, **options)

    def rechunk(
        self,
        chunks: object = "auto",
        threshold: int | None = None,
        block_size_limit: int | None = None,
        balance: bool = False,  # noqa: FBT001, FBT002 - signature of dask
        method: str | None = None,
    ) -> da.Array:
        """Rechunk the array; it is read in the new chunks, unless that would repeat reads."""
        if self._description is not None and method in (None, "tasks", "p2p"):
            asked = rechunked(chunks, self.chunks, self.dtype, block_size_limit, balance=balance)
            if asked == self.chunks:
                return self
            if cut_no_block(self._description, asked, self.chunks):
                return self._show(self._description, asked, as_blocks=True)
            chunks, balance = asked, False
        parts = self.blocks_in_memory
        return da.Array.rechunk(parts, chunks, threshold, block_size_limit, balance, method)

    def compute(self, **options: Any) -> Any:
        """Compute the array as dask does; one task, such as a frame, is read without a graph."""
        if self._description is not None:
            shape = self._description.shape
            get = unobserved(**options)
            if get and is_one_task(self._source, shape, self.npartitions):
                return whole(self._source, shape, get)
        return super().compute(**options)

    def with_chunks(self, chunks: object) -> Self:
        """Return the array in other chunks, in dask's notation; it is read in these chunks."""
        description = self._description
        if description is None:
            raise TilingError("items have been assigned to the array", hint="Use rechunk().")
        asked = read_chunks(chunks, self.shape, self.dtype, description.dims)
        return self._show(description, asked, as_blocks=True)

    @property
    def blocks_in_memory(self) -> Self:
        """The array in parts of its chunks for functions of whole chunks.

        Chunks that were chosen for tiles are split into blocks that fit into memory several times.
        """
        nbytes, description = self._scheme.block_bytes, self._description
        if nbytes is None or description is None:
            return self
        parts = block_chunks(description, self.chunks, nbytes)
        as_is = parts == self.chunks
        return self if as_is else self._show(description, parts, as_blocks=True)

    def map_blocks(self, func: Function, *args: Any, **kwargs: Any) -> da.Array:  # type: ignore[override]
        """Apply a function to every block, as dask does.

        Blocks are chunks; where chunks of a large array were chosen for tiles, they are parts of
        chunks, so that functions get no more than usual. Then the result has smaller chunks.
        """
        parts, chunks = self.blocks_in_memory, kwargs.get("chunks")
        if parts is not self and chunks is not None:
            pairs = dict(zip(self.chunks, parts.chunks, strict=True))
            plain = all(isinstance(axis, tuple) for axis in chunks)
            if plain and all(axis in pairs or len(axis) == 1 for axis in chunks):
                kwargs["chunks"] = tuple(pairs.get(axis, axis) for axis in chunks)
            else:  # the caller counts on the chunks
                parts = self
        made: da.Array = da.map_blocks(func, parts, *args, **kwargs)
        return made

    def with_axes(self, axes: Calibrations = MappingProxyType({}), /, **named: Calibration) -> Self:
        """Calibrate the array: return the same pixels with other axes.

        Parameters
        ----------
        axes : mapping of str, or sequence of Axis, optional
            Calibrations by the names of axes: a quantity, ``"0.5 nm"``, ``"0.02 1/nm"`` or
            ``"0.5 nm from 10 nm"``; a tuple of scale, unit and, if it is not 0, offset; a number, a
            scale without unit; or an :class:`Axis`, which may have another name. Or an
            :class:`Axis` for each axis.
        **named
            The same, for axes whose names are keywords: ``arr.with_axes(scan_x="0.5 nm")``.

        Returns
        -------
        TiledArray
            The same chunks; nothing is computed, and pixels shared by both arrays are read once.
            Results computed from it have these axes, and so has :meth:`refresh`.

        Raises
        ------
        DatasetError
            There is no such axis, or a calibration is invalid; or items have been assigned to
            the array.
        """
        desc = self._description
        if desc is None:
            raise DatasetError(
                "items have been assigned to the array",
                hint="Calibrate the array before assigning items.",
            )
        given = {**axes, **named} if isinstance(axes, Mapping) else axes
        if named and given is axes:
            problem = "a sequence describes all axes, so none can be passed by name"
            raise DatasetError(problem, found=", ".join(named))
        new_axes = calibrated(desc.axes, given, desc.shape, desc.files[0].path)
        return self._calibrated(new_axes, BY_USER)

    def with_measured_axes(self, axes: tuple[Axis, ...], source: str) -> Self:
        """Return the same pixels with axes that were measured; the description names the source."""
        return self._calibrated(axes, f"{BY_USER} from {source}")

    def _calibrated(self, axes: tuple[Axis, ...], by: str) -> Self:
        shown = self._described("axes").with_axes(axes, by)
        scheme = replace(self._scheme, dims=shown.dims)
        made = shown, scheme, self._source.io, self.chunks, self._grid
        opened = self._opening, self._part
        return type(self)(*made, inherited(self), *opened, growing=self._growing)

    def isel(
        self, positions: Mapping[str, Any] = MappingProxyType({}), /, **named: Any
    ) -> da.Array:
        """Return a part of the array, chosen by positions along named axes.

        Parameters
        ----------
        positions : mapping, optional
            Position, slice, list or mask by name of the axis. Lists of several axes select along
            each of them.
        **named : int, slice, list of int or mask
            The same, for axes whose names are keywords: ``arr.isel(z=3, t=slice(2, 5))``.

        Returns
        -------
        TiledArray
            As for an index: a plain dask array where lists select pixels of frames.

        Raises
        ------
        DatasetError
            There is no axis of a name.

        Examples
        --------
        >>> import dask_tiled
        >>> arr = dask_tiled.open_dataset(dask_tiled.samples.cells())
        >>> arr.dims, arr.isel(z=3, c=slice(2)).shape
        (('c', 'z', 'y', 'x'), (2, 256, 256))
        """
        desc = self._described("axes")
        return selected(self, by_axis(desc.axes, {**positions, **named}, desc.files[0].path))

    def sel(self, labels: Mapping[str, Any] = MappingProxyType({}), /, **named: Any) -> da.Array:
        """Return a part of the array, chosen by names or coordinates of positions.

        Parameters
        ----------
        labels : mapping, optional
            Name of a position, such as a channel, or a coordinate, of which the nearest position is
            meant; slices of them, which include both ends, and follow the order of the axis; or
            lists of them; by name of the axis.
        **named : str, float, slice or list
            The same, for axes whose names are keywords: ``arr.sel(c="nuclei", z=2.5)``.

        Returns
        -------
        TiledArray
            As for :meth:`isel`.

        Raises
        ------
        DatasetError
            There is no such axis, or no such position.

        Examples
        --------
        >>> import dask_tiled
        >>> arr = dask_tiled.open_dataset(dask_tiled.samples.cells())
        >>> arr.axes[0].labels
        ('nuclei', 'membranes', 'spots')
        >>> arr.sel(c="nuclei", x=slice(0, 10)).dims
        ('z', 'y', 'x')
        """
        desc = self._described("axes")
        path = desc.files[0].path
        wanted = by_axis(desc.axes, {**labels, **named}, path)
        places = {
            k: positions_of(desc.axes[k], desc.shape[k], value, path) for k, value in wanted.items()
        }
        return selected(self, places)

    def save_axes(self, *, scan: bool = False) -> str:
        """Save the axes next to the scan, in a small file that is read whenever the scan is opened.

        Only axes calibrated by :meth:`with_axes` or ``axes=`` are saved, under their names in the
        scan's own files. Other saved axes are kept; ``axes=`` takes precedence over the file. Axes
        of a slice are saved as those of the whole array.

        Parameters
        ----------
        scan : bool
            Save the shape of the scan, too, and the crop if the array is one, such as
            ``arr[:, :-1]``. Opening then returns this part of the scan, and a warning says so;
            ``nav_shape=`` opens all of it.

        Returns
        -------
        str
            Path of the file, such as ``scan.mib.axes.json``. Delete it to discard the axes.

        Raises
        ------
        DatasetError
            No axis was calibrated; the array is neither an opened one nor a slice of one, or lies
            behind a URL; the folder is not writable; or the scan is not that of the file, as with
            ``sync_offset=``, ``roi=`` or a step.
        """
        if self._part is not None and self._description is not None:
            whole = self._part.calibrated(self._description)
            return save_axes(whole, self._part.scan() if scan else None)
        hint = "Call save_axes on the opened array, or on a slice of it."
        _, description = self._as_opened("the axes of this array cannot be saved", hint)
        part = OpenedPart.all_of(description)
        return save_axes(part.calibrated(description), part.scan() if scan else None)

    def on_source(
        self, func: Function, value: Callable[[Source], Any], *, name: str
    ) -> HighLevelGraph:
        """Return the graph that calls ``func(value(source), grid, block_id)`` for each chunk.

        Parameters
        ----------
        value : callable
            Makes a value of the source; with ``is_large``, it is sent to a cluster once.
        """
        shown = name, self.chunks, value(self._source), self._grid
        return symbolic_graph(*shown, func, annotations=self._annotations)

    @property
    def opening(self) -> Opening | None:
        """How the files of the whole array are opened again; None if they cannot be."""
        return self._growing

    def written_by(self, writer: Writer) -> Self:
        """Return the array with what writes its files, which knows when they are complete."""
        shown = self._described("opening"), self._scheme, self._source.io, self.chunks, self._grid
        growing = self._growing and self._growing.written_by(writer)
        opening = self._opening and growing
        return type(self)(*shown, inherited(self), opening, self._part, growing=growing)

    @property
    def can_refresh(self) -> bool:
        """Whether the array is as it was opened."""
        return self._opening is not None and self._description is not None

    @property
    def is_settled(self) -> bool:
        """Whether the user fixed the number of frames."""
        return self._opening is not None and self._opening.settled

    def refresh(self, *, complete: bool = False) -> da.Array:
        """Return the array with the frames that have been added to the files since.

        The files are described again, with the original arguments. An incomplete last frame or
        file is left out until it is complete. Frames announced by a header or ``nav_shape`` that
        are not there yet are missing frames.

        Parameters
        ----------
        complete : bool
            Whether nothing more will be written, so that the last frames of a stream of events are
            complete, too. Of a :class:`Recording` this is known.

        Returns
        -------
        TiledArray
            It stays valid while files grow. Existing chunks are kept, and new ones have the same
            length. A slice of frames that both arrays hold has the same name in both, so that
            dask's cached results stay valid.

        Raises
        ------
        StaleFileError
            A file was removed, replaced, truncated or rewritten, or its frames have moved.
        DatasetError
            The array is a part of the opened one, a result, or behind a URL; or as for
            :func:`open_dataset`.

        Warns
        -----
        UserWarning
            Events or frames came late: frames that counted as complete or lost have changed.
        """
        hint = "Refresh the whole opened array, then slice it."
        opening, description = self._as_opened("the array cannot be refreshed", hint)
        return opening.again(self, description, complete=complete)

    def levels(self) -> list[da.Array]:
        """Return the levels of the pyramid that the file stores, beginning with this array.

        Levels are opened with the same options. One that does not fit the level before, or is
        damaged, ends the list, with a warning.

        Returns
        -------
        list of TiledArray
            Just this array if the file has no lower levels.

        Raises
        ------
        DatasetError
            The array is a part of the opened one, or a result.

        Examples
        --------
        >>> import dask_tiled
        >>> image = dask_tiled.open_dataset(dask_tiled.samples.cells())
        >>> saved = dask_tiled.to_zarr(image, "cells.zarr", pyramid=1, progress=False)
        >>> [level.shape for level in dask_tiled.open_dataset("cells.zarr").levels()]
        [(3, 12, 256, 256), (3, 12, 128, 128)]
        """
        hint = "Open the levels of the whole array, then slice each of them."
        opening, description = self._as_opened("a part of an array has no levels", hint)
        return [self, *opening.levels(self, description)]

    def _as_opened(self, problem: str, hint: str) -> tuple[Opening, Description]:
        """Return how the array was opened, and its description; raise if it was cut or changed."""
        if self._opening is None or self._description is None:
            expected = "a whole opened array"
            found = "a part of an opened array, or an array with assigned items"
            raise DatasetError(problem, expected=expected, found=found, hint=hint)
        return self._opening, self._description

    def _show(
        self,
        description: Description,
        chunks: Chunks,
        grid: Grid | None = None,
        *,
        as_blocks: bool = False,
        part: OpenedPart | None = None,
    ) -> Self:
        """Return an array of other pixels or chunks, which functions get ``as_blocks`` if set."""
        opening = self._opening if description is self._description else None
        part = self._part if description is self._description else part
        scheme = replace(self._scheme, block_bytes=None) if as_blocks else self._scheme
        shown = description, scheme, self._source.io, chunks
        return type(self)(*shown, grid, inherited(self), opening, part, growing=self._growing)

    def copy(self) -> da.Array:
        """Copy the array, not its pixels."""
        make, values = self.__reduce__()
        return make(*values)

    def __array_function__(
        self, func: Function, types: Iterable[type], args: tuple[object, ...], kwargs: Kwargs
    ) -> object:
        """Dispatch to dask's functions, which accept opened arrays as dask arrays."""
        types = [da.Array if issubclass(one, da.Array) else one for one in types]
        if func is np.reshape and len(args) == 2 and not kwargs:
            return self.reshape(args[1])
        if func in METHODS and args and args[0] is self:
            return getattr(self, METHODS[func])(*args[1:], **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> tuple[Function, tuple[object, ...]]:
        if self._description is None:
            return super().__reduce__()
        shown = self._description, self._scheme, self._source.io, self.chunks
        opened = self._opening, self._part
        make = partial(TiledArray, growing=self._growing)
        return make, (*shown, None, self._annotations, *opened)


def description_of(arr: object) -> Description | None:
    """Return the description of an opened array, or of a slice of one; None for any other."""
    return arr.description if isinstance(arr, TiledArray) else None


def levels_of(arr: da.Array) -> list[da.Array]:
    """Return an array and the lower levels of its pyramid, if it is as it was opened."""
    return arr.levels() if isinstance(arr, TiledArray) and arr.can_refresh else [arr]


def inherited(*arrays: TiledArray) -> Annotations:
    """Merge the annotations of arrays with the current ones."""
    given = [*(x._annotations for x in arrays), get_annotations()]  # noqa: SLF001
    return fused(*given) if any(given) else {}


def read_once(arr: da.Array, chunks: Chunks | None = None) -> da.Array:
    """Return an array whose files do not stay mapped, to be read once from end to end.

    An explicit ``io`` of the array is kept.

    Parameters
    ----------
    chunks : tuple of tuple of int, optional
        Other chunks, in which an opened array is read.
    """
    as_is = chunks is None or chunks == arr.chunks
    if not isinstance(arr, TiledArray) or arr.description is None:
        return arr if as_is else da.rechunk(arr, chunks)
    io = "once" if arr.io == "auto" else arr.io
    if as_is and io == arr.io:
        return arr
    shown = arr.description, arr._scheme, io, chunks or arr.chunks  # noqa: SLF001
    return TiledArray(*shown, None, inherited(arr), growing=arr.opening)


def array_name(description: Description, source: Source, grid: Grid) -> str:
    """Return the name of an array."""
    # Not dask's name, which hashes every chunk size.
    told = description.calibrations
    axes = [astuple(axis) if axis.name in told else None for axis in description.axes]
    described = (axes,) if any(axes) else ()  # axes from files follow from the pixels
    return f"{description.format}-{tokenize(source, grid, *described)}"
