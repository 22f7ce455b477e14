"""Trees that the engine can compute: pixels of sources, a view, and one last step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dask_tiled.engine.expressions import Apply
from dask_tiled.engine.reductions import SUM, Reduction
from dask_tiled.engine.tile_jobs import MapTiles
from dask_tiled.model.indexing import Cut, cut_chunks
from dask_tiled.plans.last_steps import (
    Contraction,
    LastStep,
    added,
    applied_before,
    binning_of,
    histogram_of,
    swapped,
    transposed,
)
from dask_tiled.plans.operands import Beside, is_other_array
from dask_tiled.plans.recipes import Recipe, cut
from dask_tiled.plans.tasks import ChunkJob, Label, run_job
from dask_tiled.plans.tree import (
    Argument,
    Bin,
    Call,
    Contract,
    Histogram,
    Labelled,
    Node,
    OfChunks,
    Read,
    Reduce,
    Reshape,
    Slice,
    TileFunction,
    Transpose,
)
from dask_tiled.plans.views import View
from dask_tiled.tiling.bases import Chunks, Grid

COUNTED = "-chunks"
"""Suffix of the layer keyed by chunk number, for histograms."""
Annotated = tuple[Mapping[str, object], ...]
"""Annotations of several layers, which the graph merges."""
Why = str
"""Reason why a layer is left to dask."""
LATER: Final = "its input is a result, or was computed by dask"
NOT_OF_NUMPY = "an operand may be masked or sparse, as a function of the user or a library makes it"


@dataclass(frozen=True, eq=False)
class Known:
    """A layer that the engine can compute."""

    name: str
    """Name of the resulting layer."""
    tree: Node
    """Tree of the layer."""
    recipe: Recipe
    """Computation of a chunk."""
    chunks: Chunks
    """Chunks of the sources."""
    grid: Grid
    labels: tuple[Label, ...]
    """Labels of the view's axes in the layer."""
    output: tuple[Label, ...]
    """Labels of the result."""
    annotated: Annotated
    """Annotations of the layers that are merged."""
    new_axes: Mapping[Label, int] = field(default_factory=dict)
    """Numbers of chunks of axes that the view lacks."""
    obstacle: Why | None = None
    """Why tasks compute from all pixels of a chunk at once, with NumPy; None on tiles."""

    def but(self, **changes: Any) -> Known:
        """Return a copy with other values, as ``dataclasses.replace`` does, which takes long."""
        made = object.__new__(Known)
        vars(made).update(vars(self) | changes)
        return made

    def with_recipe(self, **changes: Any) -> Known:
        """Return a copy with another expression, view or step of the recipe."""
        return self.but(recipe=self.recipe.but(**changes))

    @property
    def is_as_read(self) -> bool:
        """Whether the axes equal those of the sources."""
        return self.recipe.view == View.of(len(self.chunks))

    @property
    def places(self) -> tuple[Label, ...]:
        """Labels of the axes of the sources."""
        return tuple(self.labels[place] for place in self.recipe.view.places)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return self.recipe.view.shape(self.grid.shape)

    @property
    def shown_chunks(self) -> Chunks:
        """Chunks of the view."""
        found = self.recipe.view.chunks(self.chunks)
        assert found is not None  # noqa: S101 - or it would not be known
        return found

    @property
    def result_chunks(self) -> Chunks:
        """Chunks of the result, with the lengths that reduced axes had."""
        of_pixels = dict(zip(self.labels, self.shown_chunks, strict=True))
        own, ndim = self.tree.chunks or (), len(self.output)
        return tuple(
            of_pixels[axis] if axis in of_pixels else own[k - ndim]
            for k, axis in enumerate(self.output)
        )

    @property
    def made_chunks(self) -> Chunks | None:
        """Chunks of the result; None for the first step of a reduction."""
        if self.recipe.step is None:
            return self.shown_chunks
        done = self.recipe.step.done
        if isinstance(done, ChunkJob):
            mapped = isinstance(done.job, MapTiles) and done.job.sig_shape is None
            return self.shown_chunks if mapped else None
        # Only after binning do two axes share a label: the bins, and the pixels in each.
        return self.shown_chunks[::2] if len({*self.labels}) < len(self.labels) else None

    def shown(self, view: View | None, labels: tuple[Label, ...]) -> Known | Why:
        """Change the view, if each chunk of the sources stays one chunk."""
        if view is None or view.chunks(self.chunks) is None or (self.chunks and not labels):
            return "the new axes would split or merge the chunks of the file"
        return self.with_recipe(view=view).but(labels=labels, output=labels)


def known_trees(
    trees: Mapping[str, Node], numpy: Callable[[], Collection[str]]
) -> dict[str, Known | Why]:
    """Return what the engine computes of opened arrays, by layer.

    Other layers on opened arrays have a reason instead; layers without opened arrays are left out.
    ``numpy`` returns the layers that consist of NumPy arrays, which may be operands.
    """
    known: dict[str, Known | Why] = {}
    for name, tree in trees.items():
        match tree:
            case Read():
                result: Known | Why = known_pixels(tree)
            case _ if all(x.name not in known for x in tree.inner):
                continue
            case _ if not any(map(_as_pixels, (known.get(x.name) for x in tree.inner))):
                result = LATER
            case Call() | Contract():
                result = _of_chunks(tree, known, numpy)
            case _:
                pixels = _as_pixels(known.get(tree.inner[0].name))
                result = _of_one(tree, pixels) if pixels else _no_kernel(tree)
        if (
            isinstance(result, Known)
            and result.recipe.step is None
            and result.shown_chunks != tree.chunks
        ):
            result = "dask uses other chunks"  # otherwise the chunks of the result change
        key = name + COUNTED if isinstance(tree, Histogram) else name
        if key == name or key not in trees:
            known[key] = result.but(name=key, tree=tree) if isinstance(result, Known) else result
    return known


def known_pixels(tree: Read) -> Known:
    """Return the pixels of an opened array."""
    assert tree.chunks is not None  # noqa: S101 - arrays that are read have known chunks
    labels = tuple(range(len(tree.chunks)))
    recipe = Recipe(tree.source, View.of(len(labels)))
    shown = labels, labels, _annotated((tree.annotations,))
    return Known(tree.name, tree, recipe, tree.chunks, tree.grid, *shown)


def _annotated(*several: Annotated) -> Annotated:
    """Join annotations; of equal objects, the last one counts."""
    later = {id(one): one for some in reversed(several) for one in reversed(some) if one}
    return (*reversed(later.values()),)


def _as_pixels(one: Known | Why | None) -> Known | None:
    """Return a computation of pixels; None after a last step."""
    return one if isinstance(one, Known) and one.recipe.step is None else None


def _no_kernel(tree: Node) -> Why:
    return f"no kernel for {tree.words}"


def _of_one(tree: Node, pixels: Known) -> Known | Why:  # noqa: PLR0911 - one return per kind of node
    """Return the computation of a node with one input, or the reason against it."""
    pixels = pixels.but(annotated=_annotated(pixels.annotated, (tree.annotations,)))
    view = pixels.recipe.view
    axes = tuple(range(len(view.shown)))
    match tree:
        case TileFunction() if pixels.is_as_read:
            step = LastStep(tree.job, partial(run_job, job=tree.job))
            pixels = pixels.but(labels=tree.labels, output=tree.output, new_axes=tree.new_axes)
            return pixels.with_recipe(step=step)
        case Labelled():
            return pixels.shown(view, axes)
        case Transpose():
            shown = tuple(view.shown[k] for k in tree.order)
            return pixels.shown(view._replace(shown=shown), axes)
        case Slice():
            return _slice(tree, pixels)
        case Reshape():
            assert tree.chunks is not None  # noqa: S101 - a reshaped array has chunks
            other = view.reshaped(view.sizes(pixels.grid.shape), tree.shape)
            return pixels.shown(other, tuple(range(len(tree.chunks))))
        case Reduce(step=LastStep() as step):
            ends = {part.axis for axis in tree.axes for part in view.shown[axis]}
            recipe = _prepared(pixels.recipe.but(step=step))
            if recipe.needs_ending and ends & view.flipped:
                return "argmin or argmax along a reversed axis"
            return pixels.but(recipe=recipe, labels=tree.labels, output=tree.output)
        case Bin():
            return _bin(tree, pixels)
        case Histogram():
            step = histogram_of(tree.bins, len(axes))
            return pixels.with_recipe(step=step).but(labels=axes, output=axes)
        case _:
            return _no_kernel(tree)


def _prepared(recipe: Recipe) -> Recipe:
    """Apply the transformations that the row of a recipe's reduction needs first."""
    reduction = recipe.reduction
    for function, kwargs in [] if reduction is None else applied_before(reduction.row):
        recipe = recipe.but(expression=Apply(function, kwargs, (recipe.expression,)))
    return recipe


def _slice(tree: Slice, one: Known) -> Known | Why:
    """Push a slice down to the sources."""
    found = cut_pixels(one, tree.cuts)
    if not isinstance(found, Known):
        return found
    view = found.recipe.view
    shown = list(view.shown)
    for k in tree.new:
        shown.insert(k, ())
    return found.shown(view._replace(shown=tuple(shown)), tuple(range(len(shown))))


def _of_chunks(
    tree: OfChunks, known: Mapping[str, Known | Why], numpy: Callable[[], Collection[str]]
) -> Known | Why:
    """Return an elementwise computation or a contraction, or the reason against it."""
    if isinstance(tree, Call) and not tree.on_tiles:
        return _no_kernel(tree)
    inner = _operands(tree, known, numpy)
    if not isinstance(inner, tuple):
        return inner
    pixels, operands = inner
    pixels = pixels.but(output=tree.labels, new_axes=tree.new_axes)
    if isinstance(tree, Contract):
        return _contraction(tree, pixels, operands)
    further = any(isinstance(x, Beside) and x.has_further for x in operands)
    if further or pixels.labels != tree.labels:
        return "the result has other axes than the pixels"
    expression = Apply(tree.function, tree.kwargs, operands)
    return pixels.with_recipe(expression=expression)


def _operands(
    tree: OfChunks, known: Mapping[str, Known | Why], numpy: Callable[[], Collection[str]]
) -> tuple[Known, tuple[object, ...]] | Why:
    """Return the operands of a node: pixels of equal axes and chunks, other arrays, values.

    The first pixels get the annotations of all.
    """
    given = [known.get(x.value.name) if x.labels is not None else None for x in tree.arguments]
    inner = [*map(_as_pixels, given)]
    pixels = [*filter(None, inner)]
    labels = tree.arguments[inner.index(pixels[0])].labels or ()
    annotated = _annotated((tree.annotations,), *(x.annotated for x in pixels))
    first = pixels[0].but(labels=labels, annotated=annotated)
    operands: list[object] = []
    for source, x in zip(inner, tree.arguments, strict=True):
        if source is not None:
            same = first.labels, first.chunks, first.recipe.view
            if (x.labels, source.chunks, source.recipe.view) != same:
                return "the operands have different chunks or axes"
            operands.append(source.recipe.expression)
        elif x.labels is None:
            if is_other_array(x.value):
                return "an operand is not a NumPy array"
            operands.append(x.value)
        else:
            if x.value.name not in numpy():
                return NOT_OF_NUMPY
            beside = _beside(x, first)
            if beside is None:
                return "the pixels would be broadcast against several chunks of an operand"
            operands.append(beside)
    return first, tuple(operands)


def _beside(given: Argument, first: Known) -> Beside | None:
    """Return an operand that broadcasts to the pixels; None if it may be longer."""
    labels = given.labels or ()
    axes = [first.labels.index(x) if x in first.labels else None for x in labels]
    view = first.recipe.view
    unknown = any(
        n > 1 if axis is None else first.shape[axis] == 1 or not view.shown[axis]
        for axis, n in zip(axes, given.numblocks, strict=True)
    )
    if unknown or len({*labels}) < len(labels):
        return None
    spans = tuple(() if axis is None else view.spans(axis) for axis in axes)
    return Beside(given.value.name, spans, given.numblocks, (None,) * len(axes))


def _contraction(tree: Contract, one: Known, operands: tuple[object, ...]) -> Known | Why:
    """Return a contraction of pixels with another array.

    Over whole frames it is a matrix product; otherwise, products are computed and then summed.
    """
    recipe = one.recipe
    out, is_second = tree.labels, operands[1] is recipe.expression
    weights, given = operands[0 if is_second else 1], tree.arguments[0 if is_second else 1]
    if not isinstance(weights, Beside):
        return "both operands of a product are read from files"
    index = given.labels or ()
    labels = one.labels + tuple(x for x in index if x not in one.labels)
    unique = len({*labels}) == len(labels) == len(out) and len({*index}) == len(index)
    if not unique or {*labels} != {*out}:
        return "a product repeats or drops axes"
    gone = tuple(axis for axis, label in enumerate(one.labels) if label in tree.gone)
    order = tuple(map(labels.index, out))
    as_dask = partial(transposed, order=order)
    parts = [part for axis in gone for part in recipe.view.shown[axis]]
    nav_ndim = recipe.source.layout.nav_ndim
    whole = {*parts} == {part for part in recipe.view.parts if part.axis >= nav_ndim}
    if parts and whole and {*tree.gone} <= {*index}:
        kwargs = dict(tree.kwargs)
        if "axes" in kwargs:  # dask misplaces the axes of the result if these are negative
            first = tree.arguments[0].labels or ()
            kwargs["axes"] = tuple(map(first.index, tree.gone)), kwargs["axes"][1]
        plain = partial(tree.function, **kwargs)
        plain = partial(swapped, function=plain) if is_second else plain
        step = LastStep(Contraction(weights, gone), plain, as_dask)
        return one.with_recipe(step=step)
    if not gone or weights.has_further:
        return "no kernel for products with further axes over parts of frames"
    step = LastStep(Reduction(SUM, gone, None), partial(added, gone=gone, order=order), as_dask)
    return one.with_recipe(expression=Apply(operator.mul, {}, operands), step=step)


def cut_pixels(pixels: Known, cuts: Sequence[Cut]) -> Known | Why:
    """Apply cuts to the sources, the operands and the view."""
    recipe, sizes = pixels.recipe, pixels.grid.shape
    cut_view = recipe.view.cut(cuts, sizes)
    expression = None if cut_view is None else cut(recipe.expression, cut_view[0], sizes)
    if cut_view is None or expression is None:
        return "slices a split axis, or an operand of several chunks"
    of, view = cut_view
    chunks = tuple(cut_chunks(axis, x) for axis, x in zip(pixels.chunks, of, strict=True) if x.kept)
    labels = tuple(range(len(view.shown)))
    pixels = pixels.with_recipe(expression=expression, view=view)
    return pixels.but(chunks=chunks, grid=Grid.of(chunks), labels=labels, output=labels)


def _bin(tree: Bin, pixels: Known) -> Known | Why:
    """Return a binning of neighbours: axes are split, and the inner parts reduced."""
    ndim = len(tree.by)
    step = binning_of(tree.function, tree.kwargs, ndim)
    if step is None:
        return _no_kernel(tree)
    binned: Known | Why = pixels
    if tree.trims:
        ends = [Cut(0, 1, n - n % k) for n, k in zip(pixels.shape, tree.by, strict=True)]
        binned = cut_pixels(pixels, ends)
    if isinstance(binned, Known):
        view = binned.recipe.view
        sizes = view.sizes(binned.grid.shape)
        pairs = [n for size, k in zip(binned.shape, tree.by, strict=True) for n in (size // k, k)]
        labels = tuple(k // 2 for k in range(2 * ndim))
        binned = binned.shown(view.reshaped(sizes, pairs), labels)
    if not isinstance(binned, Known):
        return binned
    if binned.shown_chunks[::2] != tree.chunks:
        return "chunks are not multiples of the bins"
    return binned.with_recipe(step=step).but(output=labels[::2])
