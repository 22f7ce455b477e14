"""Where dask optimises a graph: what is computed of opened arrays becomes tasks of the engine.

dask's own layers say what they compute, whatever the user typed. Those that compute pixels of
opened arrays one by one, and the first steps of reductions of these, are put together to recipes;
a chunk of a recipe is one task, which reads tile by tile. All other layers stay as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.aggregation import LATER, Ending, Listing, ending_of
from dask_tiled.array.dask_graph.joins import split_joins
from dask_tiled.array.dask_graph.layers import held, layers_in_order
from dask_tiled.array.dask_graph.names import (
    ArrayBlockIdDep,
    Layer,
    MaterializedLayer,
    blockwise,
    flatten,
)
from dask_tiled.array.dask_graph.reading import arrays_of_numpy, reads_any, trees_of
from dask_tiled.array.dask_graph.results import Final, finals_of, put_together, takes_time
from dask_tiled.array.dask_graph.wrapped import unwrapped
from dask_tiled.array.known import COUNTED, Known, known_trees
from dask_tiled.array.recipes import Recipe, Together, make, make_all, make_later
from dask_tiled.array.tree import Combine, Tree, users_of
from dask_tiled.engine.reductions import Reduction
from dask_tiled.errors import warn_once
from dask_tiled.foreign import NoSuchNameError
from dask_tiled.tiling.bases import Grid

MOST_CHUNKS = 10_000
"""So many chunks, and no more, are reduced by tasks of their own where nobody sees them."""
LEAST_BYTES = 4 << 20
"""Chunks of fewer bytes are reduced together, too: a task takes as long as reading so many."""


def optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimise a graph of arrays: what dask calls where ``array_optimize`` is set to it.

    A graph that is not understood is left to dask, with a warning.
    """
    if isinstance(dsk, HighLevelGraph):
        try:
            found = unwrapped(dsk)
            if reads_any(found):
                return da.optimize(rewritten(found, list(flatten([keys]))), keys, **kwargs)
        except NoSuchNameError:  # said when the first array was opened
            pass
        except Exception as error:  # noqa: BLE001 - of any kind, where dask has changed
            dask_is = f"dask {version('dask')}"
            warn_once(
                f"a graph of {dask_is} is computed chunk by chunk, not as tiles: {error!r}",
                RuntimeWarning,
            )
    return da.optimize(dsk, keys, **kwargs)


def rewritten(graph: HighLevelGraph, keys: Sequence[Any]) -> HighLevelGraph:
    """Put what the engine can compute into tasks of it; other layers stay as they are."""
    graph = split_joins(graph)
    trees = trees_of(graph)
    known = known_trees(trees, arrays_of_numpy(graph))
    wanted = {key[0] if isinstance(key, tuple) else key for key in keys} & {*graph.layers}
    graph, taken = put_together(graph, known, wanted)
    known |= taken
    if all(x.is_read for x in known.values()):
        return graph
    endings = _endings(trees, known, wanted)
    ended = {of for of, ending in endings.values() if isinstance(ending, Ending)}
    known = {x: one for x, one in known.items() if x in ended or not one.needs_ending}
    made, layers, dependencies = _needed(graph, known, endings, wanted)
    found = ((name, known[name]) for name in layers if name in known)
    reads = {name: x for name, x in found if x.is_read and x.is_as_read}
    finals = finals_of(graph, wanted)
    made = made if reads else _merged(made, endings, finals)
    # Workers may still have chunks of another graph: what dask does not know has other names.
    own = {of: f"{of}-{tokenize(made[of].known.grid)}" for of in ended & made.keys()}
    made = {own.get(x, x): making for x, making in made.items()}
    dependencies = {
        own.get(x, x): {own.get(y, y) for y in others} for x, others in dependencies.items()
    }
    for names in _groups(made, reads, dependencies):
        pixels = next((name for name in names if name in reads), None)
        some = [name for name in names if name in made]
        if some:
            _make(some, pixels, made, taken, layers, dependencies)
    for name, (of, ending) in endings.items():
        if name not in dependencies:
            continue
        shown, key = name, own.get(of, of)
        one = made[key].known
        final = finals.get(name) if one.chunks != known[of].chunks else None
        if final is not None:
            shown = f"{name}-{tokenize(one.grid)}"
            dependencies[shown] = dependencies.pop(name)
            dependencies[final.layer] = {shown}
        layers |= _ended(shown, key, ending, one, final)
        layers[shown].annotations = graph.layers[name].annotations
    return HighLevelGraph(layers, dependencies)


def _needed(
    graph: HighLevelGraph,
    known: Mapping[str, Known],
    endings: Mapping[str, tuple[str, Ending | Listing]],
    wanted: Collection[str],
) -> tuple[dict[str, Making], dict[str, Layer], dict[str, set[str]]]:
    """Find what is made anew, which layers stay, and what all of them depend on."""
    waiting = list(wanted)
    made: dict[str, Making] = {}
    layers: dict[str, Layer] = {}
    dependencies: dict[str, set[str]] = {}
    while waiting:
        name = waiting.pop()
        if name in dependencies:
            continue
        if name in endings:
            dependencies[name] = {endings[name][0]}
        elif name in known and not known[name].is_read:
            one = known[name]
            recipe = Recipe(one.tree, one.view, one.source.layout.nav_ndim, one.step)
            made[name] = Making(one, graph.layers.get(name), recipe)
            dependencies[name] = {x.name for x in recipe.beside}
        else:
            layers[name] = graph.layers[name]
            dependencies[name] = {*graph.dependencies[name]}
        waiting += dependencies[name]
    return made, layers, dependencies


def _endings(
    trees: Mapping[str, Tree], known: dict[str, Known], wanted: set[str]
) -> dict[str, tuple[str, Ending | Listing]]:
    """Find reductions that are known from the first step to the last one, and nowhere looked into.

    The first steps of these leave their results as the engine has them.
    """
    users = users_of(trees.values())
    found: dict[str, tuple[str, Ending | Listing]] = {}
    for first, one in known.items():
        done = one.step and one.step.done
        if isinstance(done, Reduction) and done.row.combine is None:
            found[first.removesuffix(COUNTED)] = first, Listing()
        step: Any = one.step
        plain = step and step.plain
        begins = getattr(plain, "func", None)
        if not isinstance(done, Reduction) or begins not in LATER or 0 in one.grid.shape:
            continue
        name = first
        while name not in wanted and len(users.get(name, ())) == 1:
            (later,) = users[name]
            if not isinstance(later, Combine):
                break
            name, call = later.name, later.function
            known_so = call.func in LATER[begins] and call.args == plain.args[1:]
            if not known_so or later.axes != done.axes:
                break
            ending = ending_of(done, begins, call)
            if ending is not None and "-aggregate-" in name:
                raw = step.raw()
                found[name] = first, ending._replace(reduction=raw.done)
                known[first] = one._replace(step=raw)
                break
            combining = {**plain.keywords, "axis": done.axes, "keepdims": True}
            if not call.keywords.items() <= combining.items():
                break
    return found


def _ended(
    name: str, of: str, ending: Ending | Listing, known: Known, final: Final | None
) -> dict[str, Layer]:
    """Make the layers that end a reduction; the last step too, if chunks are not as it has them."""
    chunks = known.shown_chunks
    tasks = list(ending.tasks(name, of, Grid.of(chunks), tuple(map(len, chunks))))
    layers: dict[str, Layer] = {name: MaterializedLayer({task.key: task for task in tasks})}
    if final is not None:
        layers[final.layer] = final.of([task.key for task in tasks], name)
    return layers


class Making(NamedTuple):
    """A layer that is made anew."""

    known: Known
    layer: Any
    recipe: Recipe


def _merged(
    made: dict[str, Making],
    endings: Mapping[str, tuple[str, Ending | Listing]],
    finals: Mapping[str, Final],
) -> dict[str, Making]:
    """Read many chunks in one task, where nothing is left of all of them, or nobody sees them."""
    ended = {of: name for name, (of, ending) in endings.items() if isinstance(ending, Ending)}
    if not made or made.keys() - ended.keys():
        return made
    axes = {*range(min(len(x.known.chunks) for x in made.values()))}
    for name, (known, _, recipe) in made.items():
        if any(n > 1 for x in recipe.beside for n in x.numblocks):
            return made
        if ended[name] not in finals:
            done: Any = known.step and known.step.done
            left = {*range(len(known.labels))} - {*done.axes}
            axes -= {part.axis for place in left for part in known.view.shown[place]}
    merged = {}
    for name, making in made.items():
        chunks, most = list(making.known.chunks), _most_chunks(making.known)
        for axis in sorted(axes, reverse=True):
            by = -(-math.prod(map(len, chunks)) // most)
            some = chunks[axis]
            chunks[axis] = tuple(sum(some[k : k + by]) for k in range(0, len(some), by))
        known = making.known._replace(chunks=tuple(chunks), grid=Grid.of(chunks))
        merged[name] = making._replace(known=known)
    return merged


def _most_chunks(known: Known) -> int:
    """Give how many tasks reductions are worth that read a source."""
    if takes_time(known.source):
        return MOST_CHUNKS
    nbytes = math.prod(known.grid.shape) * known.source.dtype.itemsize
    return min(MOST_CHUNKS, max(1, nbytes // LEAST_BYTES))


def _groups(
    made: Mapping[str, Making], reads: Mapping[str, Known], dependencies: Mapping[str, set[str]]
) -> list[list[str]]:
    """Group layers that read the same chunks, and of which none waits for another."""
    stages: dict[str, int] = {}
    groups: dict[Any, list[str]] = {}
    for name in layers_in_order(dependencies):
        below = max((stages[x] for x in dependencies[name]), default=0)
        stages[name] = below + (name in made or name in reads)
        if name in reads:
            company: Any = {reads[name].source.token}
        elif name in made:
            company = made[name].recipe.sources
        else:
            continue
        one = reads[name] if name in reads else made[name].known
        key = tuple(sorted(company)) if len(company) == 1 else name, one.chunks, stages[name]
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _make(
    names: Sequence[str],
    pixels: str | None,
    made: Mapping[str, Making],
    taken: Collection[str],
    layers: dict[str, Layer],
    dependencies: dict[str, set[str]],
) -> None:
    """Make the layers of a group, which read the same chunks once; ``pixels`` has read them.

    What is ``taken`` is made where it is taken, if it is alone.
    """
    one = made[names[0]].known
    recipes = Together([made[name].recipe for name in names], one.grid)
    together = len(names) > 1
    key = f"together-{tokenize(*names)}" if together else names[0]
    every = tuple(range(len(one.chunks)))
    numbers = {x: k for k, x in enumerate(dict.fromkeys((*one.places, *one.output)))}
    labels = every if together else tuple(numbers[x] for x in one.places)
    output = every if together else tuple(numbers[x] for x in one.output)
    value = held(recipes, f"recipes-{key}", layers)
    dependencies[key] = {x.name for x in recipes.beside} | ({pixels} if pixels else set())
    if value is not recipes:
        dependencies[key].add(value.key)
        dependencies[value.key] = set()
    arguments: list[Any] = [value, None, ArrayBlockIdDep(one.chunks), labels]
    arguments += [pixels, labels if pixels else None]
    numblocks = {pixels: tuple(map(len, one.chunks))} if pixels else {}
    for beside in recipes.beside:
        arguments += [
            beside.name,
            tuple(
                labels[max((x.axis for x in spans), key=lambda k: len(one.chunks[k]))]
                if spans
                else -1 - k
                for k, spans in enumerate(beside.spans)
            ),
        ]
        numblocks[beside.name] = beside.numblocks
    function = make_all if together else make_later if names[0] in taken else make
    new_axes = {} if together else _new_axes(made[names[0]])
    new_axes = {numbers[x]: n for x, n in new_axes.items()}
    layers[key] = blockwise(
        function, key, output, *arguments, numblocks=numblocks, new_axes=new_axes
    )
    layers[key].annotations = one.annotations or None
    for number, name in enumerate(names if together else ()):
        known = made[name].known
        layers[name] = blockwise(
            operator.getitem,
            name,
            known.output,
            *(key, known.places, number, None),
            numblocks={key: tuple(map(len, known.chunks))},
            new_axes=_new_axes(made[name]),
        )
        layers[name].annotations = known.annotations or None
        dependencies[name] = {key}


def _new_axes(making: Making) -> dict[Any, int]:
    """Give the labels of axes that no axis of the sources has."""
    known, layer, _ = making
    more = getattr(layer, "new_axes", {})
    return {label: more.get(label, 1) for label in known.output if label not in known.places}
