"""Optimisation of graphs: computations on opened arrays become tasks of the engine.

Layers are recognised by their functions, not by user code. Elementwise computations on opened
arrays and the first steps of their reductions are merged into recipes; a chunk of a recipe is one
task, which reads tile by tile. All other layers are unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.engine.reductions import HISTOGRAM, STATES, SUM, Reduction
from dask_tiled.errors import warn_once
from dask_tiled.foreign import NoSuchNameError
from dask_tiled.graphs.aggregation import (
    Concatenation,
    Ending,
    ending_of,
    merged,
    reduced,
    squeezed,
)
from dask_tiled.graphs.empty import reading_nothing
from dask_tiled.graphs.joins import JOINING, split_joins
from dask_tiled.graphs.labelling import LABELLED, unlabelled
from dask_tiled.graphs.layers import arrays_of_numpy, calls, fused, held
from dask_tiled.graphs.lending import lending
from dask_tiled.graphs.limits import LEVELS
from dask_tiled.graphs.names import (
    ArrayBlockIdDep,
    Layer,
    MaterializedLayer,
    TaskRef,
    blockwise,
    flatten,
)
from dask_tiled.graphs.reading import trees_of
from dask_tiled.graphs.results import concatenated, last_steps, put_together
from dask_tiled.graphs.schedulers import get_here
from dask_tiled.graphs.shared import reading_once
from dask_tiled.graphs.widening import in_few_levels
from dask_tiled.graphs.wrapped import unwrapped
from dask_tiled.model.indexing import Cut
from dask_tiled.plans.last_steps import LastStep, histogram_over
from dask_tiled.plans.lowering import COUNTED, LATER, Known, Why, cut_pixels, known_trees
from dask_tiled.plans.plan import (
    Plan,
    along_of,
    in_fewer_chunks,
    needed,
    obstacle,
    plans_of,
)
from dask_tiled.plans.recipes import Recipes, make, make_all, make_later
from dask_tiled.plans.tasks import ChunkJob, Key, Label, pixels_of
from dask_tiled.plans.tree import (
    Combine,
    Histogram,
    MappedChunks,
    Read,
    Reduce,
    Slice,
    Take,
    Tree,
    words_of,
)

Keys = Sequence["Key | str | Keys"]
"""Keys to compute, nested as in dask."""


def optimize(
    dsk: Any,
    keys: Any,
    noted: Callable[[Planned], object] | None = None,
    *,
    arriving: bool = False,
    **kwargs: Any,
) -> Any:
    """Optimise a graph of arrays; the function that dask's option ``array_optimize`` is set to.

    An unsupported graph is left to dask, with a warning. ``noted`` is called with the plans. With
    ``arriving``, tasks need no more frames than their chunk; values are the same, bit for bit.
    """
    if isinstance(dsk, HighLevelGraph):
        try:
            opened = unwrapped(dsk)
            if calls(opened, pixels_of):
                options: dict[str, Any] = {"arriving": True} if arriving else {}
                made = rewritten(opened, keys, *filter(None, [noted]), **options)
                if calls(made, pixels_of) and get_here():
                    made = lending(made, _names(keys))
                return da.optimize(made, keys, **kwargs)
        except NoSuchNameError:  # warned when the first array was opened
            pass
        except Exception as error:  # noqa: BLE001 - any error of a changed dask
            dask_is = f"dask {version('dask')}"
            warn_once(
                f"a graph of {dask_is} is computed chunk by chunk, not as tiles: {error!r}",
                RuntimeWarning,
            )
    return da.optimize(dsk, keys, **kwargs)


class Ended(NamedTuple):
    """End of a reduction."""

    of: str
    """Layer of the results of chunks."""
    ending: Ending | Concatenation
    final: str | None
    """Layer of dask's last step, if it needs other chunks."""


@dataclass(frozen=True, eq=False)
class Planned:
    """Rewriting of a graph."""

    graph: HighLevelGraph
    """dask's graph, with joins split and last steps replaced."""
    kept: Collection[str]
    """Layers of the graph that are kept."""
    why: Mapping[str, Why]
    """Reasons why layers have no recipe, by name; an ending may replace some. What dask computes
    is in ``left()``."""
    plans: tuple[Plan, ...] = ()
    endings: Mapping[str, Ended] = field(default_factory=dict)
    dependencies: Mapping[str, set[str]] = field(default_factory=dict)
    taken: Collection[str] = ()
    """Layers computed in place by their consumer."""

    def __str__(self) -> str:
        """Return as text the plans, and the layers left to dask."""
        left = [f"  {what}: {why}" for what, why in self.left()]
        lines = [*filter(None, map(str, self.plans)), *(["left to dask:", *left] if left else [])]
        return "\n".join(lines or ["pixels are read unchanged"])

    def left(self, but: Collection[str] = ()) -> list[tuple[str, Why]]:
        """Return the operations on whole chunks, with reasons, each once; ``but`` some layers.

        The later steps of a reduction are no operations of their own.
        """
        found = {(words_of(x), self.why[x]) for x in self.kept if x in self.why and x not in but}
        parts = chain.from_iterable(plan.parts for plan in self.plans)
        found |= {(x.recipe.words, x.obstacle) for x in parts if x.obstacle is not None}
        begun = {what for what, why in found if why != LATER}
        return sorted(one for one in found if one[1] != LATER or one[0] not in begun)


def planned(graph: HighLevelGraph, keys: Keys, *, arriving: bool = False) -> Planned:
    """Decide which layers of a graph the engine computes, and which dask does.

    ``arriving`` is that of :func:`optimize`.
    """
    wanted = _names(keys) & {*graph.layers}
    if any(name.startswith(LABELLED) for name in graph.layers):
        graph = unlabelled(graph, wanted)
    if any(name.startswith(JOINING) for name in graph.layers):
        graph = split_joins(graph)
    trees = trees_of(graph)
    if empty := {x: tree for x, tree in trees.items() if isinstance(tree, Take) and tree.is_empty}:
        graph = reading_nothing(graph, empty)
        trees = trees_of(graph)
    lowered = known_trees(trees, cache(partial(arrays_of_numpy, graph)))
    if sum(isinstance(tree, Read) for tree in trees.values()) > 1:
        graph = reading_once(graph, trees)
    known = {name: work for name, work in lowered.items() if isinstance(work, Known)}
    why = {name: reason for name, reason in lowered.items() if not isinstance(reason, Known)}
    users, steps = _users(graph.dependencies), last_steps(graph)
    finals = {x: task.key for x, task in steps.items() if len(users[x]) == 1 and x not in wanted}
    if long := [chain for chain in _chains(trees, known, users, wanted) if len(chain) > LEVELS]:
        graph = in_few_levels(graph, long)
    merging = len(wanted) == 1 and not arriving  # another result may read the same chunks
    graph, taken = put_together(graph, known, steps, finals, merging=merging)
    known |= taken
    if all(x.recipe.is_read for x in known.values()):
        return Planned(graph, graph.layers, why)
    endings = _endings(trees, known, users, wanted)
    ended = {of for of, ending in endings.values() if isinstance(ending, Ending)}
    known = {x: work for x, work in known.items() if x in ended or not work.recipe.needs_ending}
    ends = {name: of for name, (of, _) in endings.items()}
    need = needed(wanted, known, ends, graph.dependencies)
    reads = {x: known[x] for x in need.kept if x in known}
    reads = {name: work for name, work in reads.items() if work.recipe.is_read and work.is_as_read}
    parts = {name: part.but(obstacle=obstacle(part, trees)) for name, part in need.parts.items()}
    if not reads and parts.keys() <= ended:
        seen = {of for name, (of, _) in endings.items() if name not in finals}
        parts = in_fewer_chunks(parts, parts.keys() - seen, arriving=arriving)
    # Workers may still hold chunks of another graph: results of the engine get other names.
    made = {of: (parts[of].grid, sorted(parts[of].recipe.sources)) for of in ended & parts.keys()}
    own = {of: f"{of}-{tokenize(*values)}" for of, values in made.items()}
    in_others = {x for x, part in parts.items() if part.chunks != known[x].chunks}
    shown = {
        name: Ended(own.get(of, of), ending, finals.get(name) if of in in_others else None)
        for name, (of, ending) in endings.items()
        if name in need.dependencies
    }
    parts = {own.get(x, x): part.but(name=own.get(x, x)) for x, part in parts.items()}
    dependencies = {
        own.get(x, x): {own.get(y, y) for y in others} for x, others in need.dependencies.items()
    }
    plans = tuple(plans_of(parts, reads, dependencies))
    return Planned(graph, need.kept, why, plans, shown, dependencies, taken)


def _names(keys: Keys) -> set[str]:
    """Return the layers of keys."""
    return {key[0] if isinstance(key, tuple) else key for key in flatten([keys])}


def rewritten(
    graph: HighLevelGraph,
    keys: Keys,
    noted: Callable[[Planned], object] = lambda _: None,
    *,
    arriving: bool = False,
) -> HighLevelGraph:
    """Replace the layers that the engine can compute by its tasks; keep other layers."""
    decided = planned(graph, keys, arriving=arriving)
    noted(decided)
    if not decided.plans:
        return decided.graph
    graph, dependencies = decided.graph, {**decided.dependencies}
    layers: dict[str, Layer] = {name: graph.layers[name] for name in decided.kept}
    for plan in decided.plans:
        _make(plan, decided, layers, dependencies)
    parts = {part.name: part for plan in decided.plans for part in plan.parts}
    for name, (of, ending, final) in decided.endings.items():
        shown = name if final is None else f"{name}-{tokenize(parts[of].grid)}"
        chunks, annotations = parts[of].result_chunks, graph.layers[name].annotations or None
        alike = layers[of].annotations == annotations
        made = getattr(layers[of], "mapping", None) if alike else None
        if isinstance(ending, Ending) and final is None and made and ending.is_of_one(chunks):
            layers[shown] = ending.of_chunks(shown, next(iter(made.values())), chunks)
            layers[shown].annotations = annotations
            del layers[of]
            dependencies[name] = dependencies.pop(of)
            continue
        tasks = [*ending.tasks(shown, of, chunks, {} if made is None else made)]
        if made == {}:
            del layers[of]
            dependencies[name] = dependencies.pop(of)
        if final is None or isinstance(ending, Concatenation):
            layers[shown] = MaterializedLayer({task.key: task for task in tasks})
        else:
            ends = concatenated(final, tasks, shown, ending.chunks(chunks))
            result = ends.keys() - {shown, final}
            dependencies |= {x: set() for x in result}
            dependencies[shown] = dependencies.pop(name) | result
            dependencies[final] = {shown, *result}
            layers |= ends
        layers[shown].annotations = annotations
    return HighLevelGraph(layers, dependencies)


def _endings(
    trees: Mapping[str, Tree],
    known: dict[str, Known],
    users: Mapping[str, Sequence[str]],
    wanted: set[str],
) -> dict[str, tuple[str, Ending | Concatenation]]:
    """Match computations whose later steps are all known and have no other consumers.

    Their first steps return results of the engine, not of dask's functions.
    """
    endings: dict[str, tuple[str, Ending | Concatenation]] = {}
    is_alone = sum(work.recipe.reduces for work in known.values()) == 1  # others may share a pass
    for first, work in known.items():
        reduction = work.recipe.reduction
        counts = reduction is not None and reduction.row is HISTOGRAM
        name = first.removesuffix(COUNTED) if counts else first
        match = (
            None if 0 in work.grid.shape else _ended(work, _following(name, trees, users, wanted))
        )
        if match is not None:
            if is_alone:
                match = _sliced(match, trees, users, wanted)
            name, known[first], ending = match
            endings[name] = first, ending
        elif counts:
            endings[name] = first, Concatenation()
    return endings


def _chains(
    trees: Mapping[str, Tree],
    known: Collection[str],
    users: Mapping[str, Sequence[str]],
    wanted: set[str],
) -> Iterator[list[Combine]]:
    """Yield the layers that combine the results of each reduction that is left to dask."""
    for name, tree in trees.items():
        if not isinstance(tree, Reduce) or tree.step is None or name in known:
            continue
        following = [*_following(name, trees, users, wanted)]
        match = _combined(tree.step, iter(following))
        if match is not None:
            count = 1 + [below for below, _ in following].index(match[0])
            yield [layer for _, layer in following[:count] if isinstance(layer, Combine)]


Following = Iterator[tuple[str, Tree | None]]
"""Layers, each of which is the only consumer of the one before, and their trees."""


def _following(
    name: str,
    trees: Mapping[str, Tree],
    users: Mapping[str, Sequence[str]],
    wanted: set[str],
) -> Following:
    while name not in wanted and len(users.get(name, ())) == 1:
        (name,) = users[name]
        yield name, trees.get(name)


Match = tuple[str, Known, Ending]
"""The last layer of a computation, its first step, and the ending."""


def _ended(work: Known, following: Following) -> Match | None:
    """Match the layers that follow a last step."""
    step = work.recipe.step
    if step is None or work.tree.chunks is None:
        return None
    if isinstance(step.done, ChunkJob):
        return _ended_job(work, step.done, following)
    if step.steps is not None:
        match = _combined(step, following)
        raw = step.raw() if match else step
        if match is None or not isinstance(raw.done, Reduction):
            return None
        return match[0], work.with_recipe(step=raw), replace(match[1], reduction=raw.done)
    return _ended_sum(work, step, following)


def _ended_sum(work: Known, step: LastStep, following: Following) -> Match | None:
    """Match the sum of the histograms, or of the products, of all chunks."""
    _, sums = next(following, ("", None))
    if not isinstance(sums, Reduce) or sums.step is None or not _is_sum(sums.step):
        return None
    match = _combined(sums.step, following)
    if match is None:
        return None
    name, ending = match
    if isinstance(work.tree, Histogram):
        axes = tuple(range(len(work.output)))
        step = histogram_over(work.tree.bins, len(axes))
        work = work.with_recipe(step=step).but(output=(*axes, len(axes)), new_axes={len(axes): 1})
        over = sums.axes == (0,)
    else:
        axes = tuple(work.output.index(work.labels[axis]) for axis in work.recipe.gone)
        over = {*sums.axes} == {*axes}
        if isinstance(step.done, Reduction):
            over = over and work.output == work.labels
        else:
            over = over and all(len(work.shown_chunks[axis]) == 1 for axis in work.recipe.gone)
    return (name, work, replace(ending, reduction=Reduction(SUM, axes, None))) if over else None


def _sliced(
    match: Match,
    trees: Mapping[str, Tree],
    users: Mapping[str, Sequence[str]],
    wanted: set[str],
) -> Match:
    """Push a slice of a result down to the pixels, if only the slice is needed."""
    name, work, ending = match
    following, tree = next(_following(name, trees, users, wanted), ("", None))
    if not isinstance(tree, Slice) or tree.new or work.recipe.job:  # jobs are told where they are
        return match
    shape = tuple(map(sum, work.result_chunks))
    axes = [axis for axis in range(len(shape)) if axis not in ending.gone]
    asked = dict(zip(axes, tree.cuts, strict=True))
    cuts = [
        Cut(0, 1, n)
        if axis in ending.reduction.axes or axis not in asked
        else asked[axis]._replace(kept=True)
        for axis, n in enumerate(shape)
    ]
    further = [axis for axis, label in enumerate(work.output) if label not in work.labels]
    whole = all(cuts[k] == (0, 1, shape[k], True) for k in further)
    if not whole or any(cut.step < 1 or not cut.length for cut in (*cuts, *tree.cuts)):
        return match
    sliced = cut_pixels(work, [cuts[work.output.index(label)] for label in work.labels])
    if not isinstance(sliced, Known):
        return match
    sliced = sliced.but(labels=work.labels, output=work.output, tree=replace(tree, of=work.tree))
    dropped = tuple(axis for axis, cut in asked.items() if not cut.kept)
    return following, sliced, replace(ending, dropped=dropped)


def _is_sum(step: LastStep) -> bool:
    return isinstance(step.done, Reduction) and step.done.row is SUM


def _combined(step: LastStep, following: Following) -> tuple[str, Ending] | None:
    """Match the later steps of a reduction of dask."""
    done, later, plain = step.done, step.steps, step.plain
    if not isinstance(done, Reduction) or later is None or not isinstance(plain, partial):
        return None
    for name, tree in following:
        if not isinstance(tree, Combine):
            break
        call = tree.function
        known_so = call.func in (later.last, later.between) and call.args == plain.args[1:]
        if not known_so or tree.axes != done.axes:
            break
        ending = ending_of(done, later, call)
        if ending is not None and "-aggregate-" in name:
            return name, ending
        combining = {**plain.keywords, "axis": done.axes, "keepdims": True}
        if not call.keywords.items() <= combining.items():
            break
    return None


def _ended_job(work: Known, done: ChunkJob, following: Following) -> Match | None:
    """Match the steps that remove the axes reduced by a job, or combine its states."""
    name, tree = next(following, ("", None))
    if isinstance(tree, MappedChunks) and tree.function is squeezed:
        single = all(len(work.shown_chunks[axis]) == 1 for axis in done.axes)
        alike = [x.value for x in tree.arguments[1:]] == [done.axes]
        ending = Ending(Reduction(SUM, done.axes, None), keepdims=False, dtype=None, ddof=0)
        return (name, work, ending) if single and alike else None
    if not isinstance(tree, Reduce) or tree.axes != done.axes:
        return None
    merging = partial(tree.function)
    if merging.func is not merged:
        return None
    for name, later in following:
        if not isinstance(later, Combine) or later.function.func is not merged:
            break
        if later.function.keywords != {**merging.keywords, "keepdims": later.keepdims}:
            break
        if not later.keepdims:
            merge = merging.keywords["combine"]
            reduction = Reduction(STATES, done.axes, None, merge=merge)
            return name, work, Ending(reduction, keepdims=False, dtype=None, ddof=0)
    return None


def _users(dependencies: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return the dependents of each layer."""
    found: dict[str, list[str]] = {}
    for name, others in dependencies.items():
        for other in others:
            found.setdefault(other, []).append(name)
    return found


def _make(
    plan: Plan, decided: Planned, layers: dict[str, Layer], dependencies: dict[str, set[str]]
) -> None:
    """Build the layers of a plan."""
    first, pixels, together = plan.parts[0], plan.pixels, len(plan.parts) > 1
    recipes = Recipes([part.recipe for part in plan.parts], first.grid)
    key = f"together-{tokenize(*(part.name for part in plan.parts))}" if together else first.name
    every, counts = tuple(range(len(first.chunks))), tuple(map(len, first.chunks))
    numbers = {x: k for k, x in enumerate(dict.fromkeys((*first.places, *first.output)))}
    labels = every if together else tuple(numbers[x] for x in first.places)
    output = every if together else tuple(numbers[x] for x in first.output)
    value = held(recipes, f"recipes-{key}", layers)
    dependencies[key] = {x.name for x in recipes.beside} | ({pixels} if pixels else set())
    if value is not recipes:
        dependencies[key].add(value.key)
        dependencies[value.key] = set()
    count = len(first.places)
    ended = any(first.name == of for of, *_ in decided.endings.values())
    single = all(n == 1 for x in recipes.beside for n in x.numblocks)
    if ended and single and first.places == first.output[:count] and not (together or pixels):
        # Every chunk is needed, and nothing to be fused by dask.
        operands = [TaskRef((x.name, *(0 for _ in x.numblocks))) for x in recipes.beside]
        chunks = first.chunks + first.result_chunks[count:]
        layers[key] = MaterializedLayer(reduced(key, value, chunks, *operands))
        layers[key].annotations = fused(*first.annotated) or None
        return
    arguments: list[object] = [value, None, ArrayBlockIdDep(first.chunks), labels]
    arguments += [pixels, labels if pixels else None]
    numblocks = {pixels: counts} if pixels else {}
    for beside in recipes.beside:
        arguments += [
            beside.name,
            tuple(
                labels[along_of(spans, first.chunks)] if spans else -1 - k
                for k, spans in enumerate(beside.spans)
            ),
        ]
        numblocks[beside.name] = beside.numblocks
    function = make_all if together else make_later if first.name in decided.taken else make
    new_axes = {} if together else _new_axes(first)
    new_axes = {numbers[x]: n for x, n in new_axes.items()}
    layers[key] = blockwise(
        function, key, output, *arguments, numblocks=numblocks, new_axes=new_axes
    )
    layers[key].annotations = fused(*first.annotated) or None
    for number, part in enumerate(plan.parts if together else ()):
        layers[part.name] = blockwise(
            operator.getitem,
            part.name,
            part.output,
            *(key, part.places, number, None),
            numblocks={key: counts},
            new_axes=_new_axes(part),
        )
        layers[part.name].annotations = fused(*part.annotated) or None
        dependencies[part.name] = {key}


def _new_axes(known: Known) -> dict[Label, int]:
    """Return the labels of axes without an axis of the sources, and their numbers of chunks."""
    labels = (label for label in known.output if label not in known.places)
    return {label: known.new_axes.get(label, 1) for label in labels}
