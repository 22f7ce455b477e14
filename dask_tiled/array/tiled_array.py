"""Arrays that remember what they were opened from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import dask.array as da
import numpy as np
from dask import config
from dask.base import get_annotations, tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.at_once import Reducing
from dask_tiled.array.choosing import SETTINGS, at_points, picked, reshaped
from dask_tiled.array.dask_graph.layers import (
    DESCRIPTION,
    Annotations,
    fused,
    symbolic_graph,
)
from dask_tiled.array.dask_graph.results import is_one_task, whole
from dask_tiled.array.dask_graph.rewriting import optimize
from dask_tiled.array.late import LateArray, runs_here
from dask_tiled.array.page import page
from dask_tiled.array.persisted import follow, remember
from dask_tiled.array.tasks import Function, Kwargs
from dask_tiled.array.verbs import Verb
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import Calibration, Calibrations, calibrated
from dask_tiled.model.description import BY_USER, Description
from dask_tiled.model.indexing import Cut, basic_cuts, cut_chunks
from dask_tiled.model.instrument import Instrument
from dask_tiled.model.saved_axes import save_axes
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Edges, Grid, cut_no_block
from dask_tiled.tiling.scheme import TilingScheme, negotiate
from dask_tiled.tiling.sizes import read_chunks, rechunked


class Opening(Protocol):
    """How an array was opened."""

    @property
    def settled(self) -> bool:
        """Whether the user has given the shape of the scan."""

    def again(self, arr: TiledArray, old: Description) -> da.Array:
        """Open what an array shows again."""


class TiledArray(LateArray):
    """A dask array that remembers what it was opened from.

    Integers, slices with a positive step and an ellipsis cut the source, so a crop reads only the
    bytes of the crop. Of navigation axes lists, masks, points and negative steps choose frames,
    which alone are read; other shapes of these axes, and other chunks that read nothing twice,
    show the same frames. Every other operation gives a plain dask array; where its graph is
    optimised, what is computed of opened arrays runs tile by tile.
    """

    __slots__ = ("_annotations", "_description", "_grid", "_opening", "_scheme", "_source")

    _description: Description | None
    """What the array shows; None once items have been assigned to it."""
    _source: Source
    _scheme: TilingScheme
    """Of a slice, that of what it is a slice of."""
    _grid: Grid
    _annotations: Annotations
    """Those of dask that were in force when the array was made, not when its graph is."""
    _opening: Opening | None
    """How to open the files again; None of a slice."""

    def __new__(  # noqa: D102 - dask's class is made this way
        cls,
        description: Description,
        scheme: TilingScheme,
        io: str,
        chunks: Chunks | None = None,
        grid: Grid | None = None,
        annotations: Annotations | None = None,
        opening: Opening | None = None,
    ) -> Self:
        with SETTINGS:
            if config.get("array_optimize", None) is None:  # the user has set nothing else
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
        self._opening = opening
        self._meta = np.empty((0,) * len(self._chunks), dtype=self._source.dtype)
        shown = self
        for plugin in plugins:
            replacement = None if plugin is follow else plugin(shown)
            shown = shown if replacement is None else replacement
        return shown

    explain, explore, show = Verb(), Verb(), Verb()
    to_hyperspy, to_xarray = Verb(), Verb()
    to_zarr = Verb()  # never dask's: that names no axes
    max, mean, min, sum = Reducing(), Reducing(), Reducing(), Reducing()

    @property
    def description(self) -> Description | None:
        """What the array shows; None once items have been assigned to it."""
        return self._description

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, with units and scales."""
        return self._described("axes").axes

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes; xarray takes them from here."""
        return self._described("dims").dims

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the headers say, as the format names it."""
        return self._described("metadata").metadata

    @property
    def instrument(self) -> Instrument:
        """What the files say of the instrument, in one vocabulary."""
        return self._described("instrument").instrument

    def _described(self, asked: str) -> Description:
        if self._description is None:
            problem = f"no {asked}: items have been assigned to the array"
            raise AttributeError(problem, name=asked, obj=self)
        return self._description

    def _repr_html_(self) -> str:
        desc = self._description
        return super()._repr_html_() if desc is None else page(desc, self.scheme, self.io)

    @property
    def scheme(self) -> TilingScheme:
        """The chunks and tiles, with reasons; only of an array that has a description."""
        description = self._described("scheme")
        if self._scheme.chunks != self.chunks:
            self._scheme = negotiate(description, self._scheme.requests, chunks=self.chunks)
        return self._scheme

    @property
    def io(self) -> str:
        """How bytes are fetched."""
        return self._source.io

    def _make_name(self) -> str:
        name = array_name(self._described("name"), self._source, self._grid)
        remember(self, name)
        return name

    def _make_graph(self) -> HighLevelGraph:
        graph = symbolic_graph(self.name, self.chunks, self._source, self._grid)
        for layer in graph.layers.values():
            layer.annotations = self._annotations or None
        noted = {"shape": self.shape, "dtype": self.dtype, "chunks": self.chunks}
        graph.layers[self.name].collection_annotations = {**noted, DESCRIPTION: self._description}
        return graph

    def _become_plain(self) -> None:
        super()._become_plain()
        self._description = None

    def __getitem__(self, index: object) -> da.Array:
        cuts = basic_cuts(index, self.shape)
        if cuts is None or self._description is None:
            found = self._description and picked(self, self._description, index)
            return self._show(*found) if found else super().__getitem__(index)
        if all(cut == Cut(0, 1, n) for cut, n in zip(cuts, self.shape, strict=True)):
            return self
        chunks, edges = [], []
        for axis_chunks, axis_edges, cut in zip(self.chunks, self._grid.axes, cuts, strict=True):
            if cut == Cut(0, 1, axis_edges.size):  # the same objects: there may be a million
                chunks.append(axis_chunks)
                edges.append(axis_edges)
            elif cut.kept:
                chunks.append(cut_chunks(axis_chunks, cut))
                edges.append(Edges(chunks[-1]))
        return self._show(self._description.cut(cuts), tuple(chunks), Grid(tuple(edges)))

    @property
    def vindex(self) -> Any:
        """Choose points, as dask does; those of navigation axes are frames."""
        return type(super().vindex)(self._choose)

    def _choose(self, key: object) -> da.Array:
        found = self._description and at_points(self._description, self.chunks, key)
        if not found:
            return super().vindex[key]
        frames, shape = found
        return self._show(*frames).reshape(shape)

    def reshape(self, *shape: object, **options: object) -> da.Array:
        """Reshape the array, as dask does; navigation axes alone show the same frames."""
        asked = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        found = self._description and reshaped(self, self._description, asked, **options)
        return self._show(*found) if found else super().reshape(asked, **options)

    def rechunk(
        self,
        chunks: object = "auto",
        threshold: int | None = None,
        block_size_limit: int | None = None,
        balance: bool = False,  # noqa: FBT001, FBT002 - dask's signature
        method: str | None = None,
    ) -> da.Array:
        """Show the same pixels in other chunks, which are read where nothing is read twice."""
        if self._description is not None and method in (None, "tasks", "p2p"):
            asked = rechunked(chunks, self.chunks, self.dtype, block_size_limit, balance=balance)
            if asked == self.chunks:
                return self
            if cut_no_block(self._description, asked, self.chunks):
                return self._show(self._description, asked)
            chunks, balance = asked, False
        return super().rechunk(chunks, threshold, block_size_limit, balance, method)

    def compute(self, **options: Any) -> Any:
        """Read the pixels, as dask does; a frame, which is one task, without making its graph."""
        alone = self._description is not None and runs_here(options)
        if alone and is_one_task(self._source, self.shape, self.npartitions):
            return whole(self._source, Grid.of([(n,) for n in self.shape]))
        return super().compute(**options)

    def with_chunks(self, chunks: object) -> Self:
        """Show the same pixels in other chunks, as dask takes them: they are read so."""
        description = self._description
        if description is None:
            raise TilingError("items have been assigned to the array", hint="Use rechunk().")
        return self._show(
            description, read_chunks(chunks, self.shape, self.dtype, description.dims)
        )

    def with_axes(self, axes: Calibrations = MappingProxyType({}), /, **named: Calibration) -> Self:
        """Show the same pixels with axes that are described anew: calibrate the array.

        Parameters
        ----------
        axes : mapping of str, or sequence of Axis, optional
            By the names of some axes what they are: a quantity, ``"0.5 nm"``, ``"0.02 1/nm"`` or
            ``"0.5 nm from 10 nm"``; a tuple of scale, unit and, if it is not 0, offset; a number, a
            scale without unit; or an :class:`Axis`, which may have another name. Or an
            :class:`Axis` for each axis.
        **named
            The same, for axes whose names are keywords: ``arr.with_axes(scan_x="0.5 nm")``.

        Returns
        -------
        TiledArray
            Nothing is computed. Its chunks are the same, and pixels of both arrays are read once.
            What is computed of it has these axes, and so has :meth:`refresh`.

        Raises
        ------
        DatasetError
            There is no such axis, or a description has no meaning; or items have been assigned to
            the array.
        """
        desc = self._description
        if desc is None:
            raise DatasetError("items have been assigned to the array", hint="Calibrate it before.")
        given = {**axes, **named} if isinstance(axes, Mapping) else axes
        if named and given is axes:
            problem = "all axes are described, and some of them twice"
            raise DatasetError(problem, found=", ".join(named))
        found = calibrated(desc.axes, given, desc.shape, desc.files[0].path)
        shown = desc.with_axes(found, BY_USER)
        scheme = replace(self._scheme, dims=shown.dims)
        made = shown, scheme, self._source.io, self.chunks, self._grid
        return type(self)(*made, inherited(self), self._opening)

    def save_axes(self) -> str:
        """Keep the axes beside the scan, in a small file that is read whenever that is opened.

        Only axes that :meth:`with_axes` or ``axes=`` have described are kept, by the names that the
        scan's own files give them. What has been kept of others stays; ``axes=`` goes first.

        Returns
        -------
        str
            The path of the file, ``scan.mib.axes.json`` for one. To forget the axes, remove it.

        Raises
        ------
        DatasetError
            All axes are as the scan's own files say; the array is a part of what was opened, or
            lies behind a URL; or the folder cannot be written to.
        """
        hint = "Save the axes of the array that was opened, then cut it."
        _, description = self._as_opened("the axes of this array are not saved", hint)
        return save_axes(description)

    def on_source(self, func: Function, *values: object, name: str) -> HighLevelGraph | None:
        """Have ``func(source, *values, grid, block_id)`` called for each chunk: a graph.

        None once items have been assigned to the array: it shows more than its source.
        """
        if self._description is None:
            return None
        graph = symbolic_graph(name, self.chunks, self._source, self._grid, func, values)
        for layer in graph.layers.values():
            layer.annotations = self._annotations or None
        return graph

    @property
    def can_refresh(self) -> bool:
        """Whether the array is as it was opened."""
        return self._opening is not None and self._description is not None

    @property
    def is_settled(self) -> bool:
        """Whether the user has said how many frames there will be."""
        return self._opening is not None and self._opening.settled

    def refresh(self) -> da.Array:
        """See the frames that have been added to the files since.

        They are described again, with the arguments that they were opened with. The last frame
        may be half written, and the last file only begun: both are left out until they are there.
        Frames that a header or a ``nav_shape`` promises, and that are not there yet, are missing.

        Returns
        -------
        TiledArray
            It goes on being right while files grow. Chunks stay as they are, and those that follow
            are as long. A slice of frames that both arrays hold has the same name in both, so that
            what dask keeps of it stays valid.

        Raises
        ------
        StaleFileError
            A file was removed, replaced, cut off or written anew, or its frames lie elsewhere.
        DatasetError
            The array is a part of what was opened, or computed, or lies behind a URL; or as for
            :func:`open_dataset`.
        """
        hint = "Refresh the array that was opened, then cut it."
        opening, description = self._as_opened("the array cannot be refreshed", hint)
        return opening.again(self, description)

    def _as_opened(self, problem: str, hint: str) -> tuple[Opening, Description]:
        """Return how the array was opened and what it shows; refuse what was cut or changed."""
        if self._opening is None or self._description is None:
            expected = "an array as it was opened"
            found = "a part of one, or one that items were assigned to"
            raise DatasetError(problem, expected=expected, found=found, hint=hint)
        return self._opening, self._description

    def _show(self, description: Description, chunks: Chunks, grid: Grid | None = None) -> Self:
        opening = self._opening if description is self._description else None
        shown = description, self._scheme, self._source.io, chunks
        return type(self)(*shown, grid, inherited(self), opening)

    def copy(self) -> da.Array:
        """Copy the array, not its pixels."""
        make, values = self.__reduce__()
        return make(*values)

    def __array_function__(
        self, func: Function, types: Iterable[type], args: tuple[object, ...], kwargs: Kwargs
    ) -> object:
        """Let dask take arrays like this one for its own."""
        types = [da.Array if issubclass(one, da.Array) else one for one in types]
        if func is np.reshape and len(args) == 2 and not kwargs:
            return self.reshape(args[1])
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> tuple[Function, tuple[object, ...]]:
        if self._description is None:
            return super().__reduce__()
        shown = self._description, self._scheme, self._source.io, self.chunks
        return TiledArray, (*shown, None, self._annotations, self._opening)


def inherited(*arrays: TiledArray) -> Annotations:
    """Return the annotations of what is made of arrays now: theirs, and those that are in force."""
    given = [*(x._annotations for x in arrays), get_annotations()]  # noqa: SLF001
    return fused(*given) if any(given) else {}


def read_once(arr: da.Array, chunks: Chunks | None = None) -> da.Array:
    """Show an array whose files do not stay mapped: it is gone through once, from end to end.

    Nothing changes where somebody has said how it is read.

    Parameters
    ----------
    chunks : tuple of tuple of int, optional
        Other chunks: those of an opened array are read so.
    """
    as_is = chunks is None or chunks == arr.chunks
    if not isinstance(arr, TiledArray) or arr.description is None:
        return arr if as_is else da.rechunk(arr, chunks)
    io, scheme = arr._source.io, arr._scheme  # noqa: SLF001
    shown = arr.description, scheme, "once" if io == "auto" else io
    if not as_is:
        return TiledArray(*shown, chunks, None, inherited(arr))
    return arr if io != "auto" else TiledArray(*shown, arr.chunks, arr._grid, arr._annotations)  # noqa: SLF001


def array_name(description: Description, source: Source, grid: Grid) -> str:
    """Return the name of an array."""
    # A name of our own: dask would hash every number of the chunks to make one.
    told = description.calibrations
    axes = [astuple(axis) if axis.name in told else None for axis in description.axes]
    described = (axes,) if any(axes) else ()  # the axes of files follow from their pixels
    return f"{description.format}-{tokenize(source, grid, *described)}"
