"""The plan of an export: a frozen, printable value, made before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dask.base import tokenize

from dask_tiled.blocks.alignment import aligned_chunks
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.grids import ChunkGrid, Pyramid, grids_of, pyramid_of
from dask_tiled.export.zarr.group import dimension_names
from dask_tiled.export.zarr.layout import ExportLayout, Settings, layout_of
from dask_tiled.export.zarr.levels import Level, LevelStack
from dask_tiled.export.zarr.relay import relayed
from dask_tiled.export.zarr.results import LateResult
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import check_counts
from dask_tiled.opened.spec import Given
from dask_tiled.tiling.bases import Chunks, split
from dask_tiled.tiling.sizes import divides


class BlockPass(NamedTuple):
    """A pass over an array, or over a stored level, block by block."""

    stack: LevelStack
    """The levels that are written."""
    chunks: Chunks
    """The blocks along each axis."""
    source: Level | None = None
    """The stored level to read; None for the array itself."""
    step: int = 0
    """Index of the step that stores this level."""
    results: tuple[str, ...] = ()
    """Names of the results computed from the same tiles."""

    @property
    def block_bytes(self) -> int:
        """Bytes of the largest block, before it is encoded."""
        block = (max(axis, default=0) for axis in self.chunks)
        return math.prod(block) * self.stack.base.encoder.dtype.itemsize


@dataclass(frozen=True)
class StoreStep:
    """A step of an export: arrays and metadata stored at one place."""

    documents: Mapping[str, bytes]
    """Metadata and coordinates, by key."""
    stack: LevelStack
    """The array, or the levels of a pyramid."""
    results: tuple[Level, ...]
    """The arrays of results."""
    passes: tuple[BlockPass, ...]
    source: str
    settings: str
    """Hashes of the array, and of the settings: 32 hexadecimal digits each."""

    @property
    def attempt(self) -> str:
        """Key: exports with equal keys may resume each other."""
        return f"{self.source}-{self.settings}"

    def keys(self) -> Iterator[str]:
        """List the keys of the pixels."""
        return self.stack.keys(tuple((0, n) for n in self.stack.base.encoder.shape))


@dataclass(frozen=True)
class ExportPlan:
    """The steps of an export: a temporary store, if there is one, then the target."""

    steps: tuple[StoreStep, ...]
    results: tuple[LateResult, ...] = ()
    """Results, held in memory until the end."""

    @property
    def memory(self) -> int:
        """Peak bytes of a worker: a block, its means, and an encoded shard."""
        return max(
            one.block_bytes * 4 // 3 + max(level.nbytes for level in one.stack.levels)
            for step in self.steps
            for one in step.passes
        )

    def __str__(self) -> str:
        lines = []
        for number, step in enumerate(self.steps):
            between = len(self.steps) - 1 > number
            size = sum(map(len, step.documents.values()))
            lines.append(
                f"{'temporary store' if between else 'stored'}: "
                f"{len(step.documents)} documents, {size:,} bytes"
            )
            lines += [f"  {level}" for level in (*step.stack.levels, *step.results)]
            for one in step.passes:
                made = [x.name for x in one.stack.levels[one.stack.stored :]]
                source = "the array" if one.source is None else one.source.name
                count = math.prod(map(len, one.chunks))
                lines.append(
                    f"  {source} -> {', '.join([*made, *one.results])}: "
                    f"{count:,} blocks of {one.block_bytes / 2**20:,.1f} MiB"
                )
        lines += [
            f"computed separately: {one.name}: {one.apart}" for one in self.results if one.apart
        ]
        lines.append(f"memory: {self.memory / 2**20:,.1f} MiB per worker")
        return "\n".join(lines)


def plan_of(
    given: Given,
    settings: Settings,
    results: Sequence[LateResult] = (),
    *,
    relay: bool = False,
    first: ChunkGrid | None = None,
) -> ExportPlan:
    """Plan the export of an array.

    Parameters
    ----------
    results : sequence of Result
        Results stored with the array.
    relay : bool
        Whether a temporary store is possible.
    first : ChunkGrid, optional
        Chunks and shards of the array; by default from the settings.

    Raises
    ------
    DatasetError, TilingError
        The array cannot be stored with these settings.
    """
    own = given.shown.axes
    given, names = _labelled(given, settings)
    company = tuple(one.name for one in results if not one.apart)
    keeps = bool(company) and given.description is not None
    flat = settings.zarr_format == 2
    if first is None:
        chunk, shard = grids_of(given, settings.chunks, settings.shards, keeps=keeps)
        first = ChunkGrid(given.shape, chunk, None if flat else shard)
    called, like = names if settings.member else None, settings.chunks is not None
    wanted = settings.pyramid, settings.pyramid_method
    pyramid = pyramid_of(given, *wanted, called, first, like=like, keeps=keeps)
    if flat:
        pyramid = pyramid._replace(levels=tuple(one.unsharded for one in pyramid.levels))
    layout = layout_of(given, settings._replace(names=names), first, pyramid, results, own)
    step = _step(given, layout, company)
    between = relayed(given, step.passes[0].chunks, keeps=keeps) if relay else None
    steps: tuple[StoreStep, ...] = (step,)
    if between is not None:
        alone = layout_of(given, Settings(layout="array"), between, Pyramid())
        parts = _step(given, alone, company)
        start = step.passes[0]._replace(source=parts.stack.base, step=0, results=())
        rest = (one._replace(step=1) for one in step.passes[1:])
        steps = parts, replace(step, passes=(start, *rest))
    made = {name for one in steps for name in one.passes[0].results}
    return ExportPlan(steps, tuple(x if x.name in made else x.moved(_MISFIT) for x in results))


_MISFIT = "the zarr chunks or shards do not divide the chunks of the array"


def _step(given: Given, layout: ExportLayout, results: tuple[str, ...]) -> StoreStep:
    """Divide a step into passes; the first one computes results where its tasks can."""
    documents, stack, _ = layout
    # Results need the blocks of the array itself, whatever zarr chunks are cut from them.
    is_opened = given.description is not None
    keeps = bool(results) and is_opened and divides(stack.base.encoder.stored, given.chunks)
    passes = []
    for some in stack.passes(partial(divides, chunks=given.chunks) if keeps else None):
        if some.stored:
            chunks = tuple(map(split, some.base.encoder.shape, some.unit))
            passes.append(BlockPass(some, chunks, some.base))
            continue
        chunks = given.chunks if keeps else aligned_chunks(given, some.unit)
        passes.append(BlockPass(some, chunks, results=results if keeps or not is_opened else ()))
    told = tokenize(sorted(documents.items()))
    return StoreStep(documents, stack, layout.results, tuple(passes), given.token, told)


def _labelled(given: Given, settings: Settings) -> tuple[Given, list[Any] | None]:
    """Choose axes and dimension names; in a group every dimension has a name, as xarray needs."""
    names, axes = settings.names, given.shown.axes
    if names is None:
        if settings.member:
            return given, dimension_names(axes)
        known = [axis and axis.name for axis in axes]
        return given, known if any(known) else None
    told = [] if isinstance(names, str) else [*names]
    called = [one.name if isinstance(one, Axis) else one for one in told]
    if len(called) != len(axes) or not all(isinstance(x, str) for x in called):
        problem = "invalid dimension_names"
        raise DatasetError(problem, expected=f"{len(axes)} names", found=repr(names))
    pairs = zip(told, axes, strict=True)
    axes = tuple(one if isinstance(one, Axis) else x for one, x in pairs)
    for one, size in zip(told, given.shape, strict=True):
        if isinstance(one, Axis):
            check_counts(one, size)
    return given._replace(shown=given.shown._replace(axes=axes)), called
