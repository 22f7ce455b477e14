"""Compare a zarr array with the array that it was exported from."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.blocks.workers import able_workers
from dask_tiled.errors import DatasetError, VerificationError, check_whole
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.group import DATA, node_names
from dask_tiled.export.zarr.levels import Level, LevelStack
from dask_tiled.export.zarr.parts import BlockPixels, Place
from dask_tiled.export.zarr.stored_chunks import StoredChunks
from dask_tiled.files.file import File
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.layout import MAX_NDIM
from dask_tiled.model.mark import MARK
from dask_tiled.model.pyramids import METHODS, Halving
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import arrays_by_name, is_array
from dask_tiled.opening.arrays import opened
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.storing.folders import FileReader, local_path
from dask_tiled.storing.object_stores import Prefix
from dask_tiled.storing.places import PartReader

if TYPE_CHECKING:
    import zarr


def verify_zarr(store: Any, arr: Any, *, progress: bool | None = None) -> None:
    """Compare an array with its export, chunk by chunk, bit by bit.

    In a group with a pyramid, all levels are compared with the pixels they were computed from.

    Parameters
    ----------
    store : path-like, zarr store, group or array
        The exported array.
    arr : dask.array.Array, object of xarray, path-like, or mapping of names to them
        The array that was exported, or several, which are compared one by one.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    VerificationError
        There is a difference: of shape, dtype or metadata, a chunk that is missing or cannot be
        decoded, or a pixel. The error has its location, ``where``, and the ``expected`` and
        ``found`` values. It is the first difference in its chunk; the order of chunks is not
        defined.
    DatasetError
        ``arr`` is not an array, or reading it fails.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> arr = dask_tiled.open_dataset("frames.npy")
    >>> stored = dask_tiled.to_zarr(arr, "frames.zarr")
    >>> dask_tiled.verify_zarr("frames.zarr", arr)
    """
    if is_array(store):
        found = f"{type(store).__name__}, then {type(arr).__name__}"
        hint = "Pass the store first, then the array."
        raise DatasetError(
            "invalid store", expected="a store, then an array", found=found, hint=hint
        )
    several = arrays_by_name(arr)
    if several is not None:
        for name, node in _nodes_of(store, several).items():
            _verify(_member(store, node), opened(several[name]), progress=progress)
    else:
        _verify(store, opened(arr), progress=progress)


def _verify(store: Any, arr: da.Array, *, progress: bool | None) -> None:
    path = local_path(store) or str(store)
    with _reading_of(path):
        arrays, halving = _opened(store, path)
        levels = tuple(Level(f"{x.path}/".lstrip("/"), Encoder(x)) for x in arrays)
        if any(0 in level.encoder.stored for level in levels):
            raise ValueError("the array has empty chunks")
    if arr.dtype.names:
        arr = arr.astype(np.result_type(arr.dtype))  # zarr stores fields in order, without gaps
    shape = arr.shape
    for array in arrays:
        compared: tuple[tuple[str, Any, Any], ...] = (
            ("shape", shape, array.shape),
            ("dtype", arr.dtype.newbyteorder("="), array.dtype.newbyteorder("=")),
        )
        for what, expected, found in compared:
            if expected != found:
                raise VerificationError(
                    "the stored array differs",
                    path=path,
                    where=what if array is arrays[0] else f"{what} of {array.path}",
                    expected=expected,
                    found=found,
                )
        shape = halving.shape(shape)
    stack = LevelStack(levels, halving)
    by_level = dict(zip(levels, arrays, strict=True))
    with able_workers(shown_of(arr).of, beside=_documents_of(arrays[0])):
        for part in stack.passes():
            if part.stored:  # compared in the pass before
                blocks = da.from_array(by_level[part.base], part.unit, name=False)
            else:
                blocks = aligned(arr, part.unit)
            run_on_blocks(
                _Comparison(part, [by_level[level] for level in part.levels], path).compare,
                blocks,
                name=f"verify-zarr-{uuid.uuid4().hex}",  # stored data may change
                show=progress,
                title="verify_zarr",
            )


def _nodes_of(store: Any, names: Collection[str]) -> dict[str, str]:
    """Return the nodes of a group by names of arrays: those it lists, or that an export makes.

    A single array is that of a group of one, whatever its name.
    """
    path = local_path(store) or str(store)
    with _reading_of(path):
        group = _node(store, path)
    listed = _mark_of(group).get("datasets")
    known = {name: node for node, name in listed.items()} if isinstance(listed, Mapping) else {}
    if len(known) == len(names) == 1:
        return dict(zip(names, known.values(), strict=True))
    return {name: known.get(name, node) for name, node in node_names(names).items()}


def _mark_of(node: zarr.Group | zarr.Array[Any]) -> Mapping[str, Any]:
    """Return what an export notes about an array or a group."""
    mark = node.attrs.get(MARK)
    return mark if isinstance(mark, Mapping) else {}


def _member(store: Any, node: str) -> Any:
    """Return a node of a group; its path, if the group has one."""
    import zarr

    path = None if isinstance(store, zarr.Group) else local_path(store)
    if path is not None:
        return os.path.join(path, node)
    with _reading_of(str(store)):
        return _node(store, str(store))[node]


def _node(store: Any, path: str) -> Any:
    """Open a store, unless it is an array or a group."""
    import zarr

    if isinstance(store, (zarr.Array, zarr.Group)):
        return store
    folder = local_path(store)
    place = store if folder is None else zarr.storage.LocalStore(folder, read_only=True)
    try:
        # Stores that cannot be made read-only, such as zip files, refuse mode "r".
        read_only = getattr(place, "read_only", isinstance(place, str))
        return zarr.open(place, mode="r" if read_only else "r+")
    except FileNotFoundError:
        raise VerificationError("the store is empty or does not exist", path=path) from None


def _documents_of(array: zarr.Array[Any]) -> Iterator[File]:
    """Yield the metadata of an array in a folder, as a file that workers have to see."""
    from zarr.storage import LocalStore

    if isinstance(array.store, LocalStore):
        for name in ("zarr.json", ".zarray"):
            path = os.path.join(array.store.root, array.path, name)
            if os.path.isfile(path):
                yield File.at(path)


@contextmanager
def _reading_of(path: str) -> Iterator[None]:
    """Convert any error of zarr to a VerificationError."""
    try:
        yield
    except (DatasetError, OSError):
        raise
    except Exception as error:
        problem, found = "the stored data cannot be opened", repr(error)
        raise VerificationError(problem, path=path, found=found) from error


def _opened(store: Any, path: str) -> tuple[list[zarr.Array[Any]], Halving]:
    """Open an array and the levels of its pyramid; return how these were computed, too."""
    import zarr
    from zarr.storage import LocalStore

    opened = _node(store, path)
    names, halving = [""], Halving()
    if "datasets" in _mark_of(opened):
        problem, hint = (
            "the store is a group of several arrays",
            "Pass all of them by name, or --all.",
        )
        raise VerificationError(problem, path=path, expected="an array", hint=hint)
    if isinstance(opened, zarr.Group):
        names, halving = _levels_of(opened, path)
    arrays: list[Any] = []
    for name in names:
        array: Any = opened.get(name) if isinstance(opened, zarr.Group) else opened
        none = VerificationError("the store has no such array", path=path, where=name)
        if not isinstance(array, zarr.Array):
            raise none
        if isinstance(array.store, LocalStore):  # workers have other working directories
            root = os.path.abspath(array.store.root)
            local = LocalStore(root, read_only=True)
            try:
                array = zarr.open_array(local, path=array.path, mode="r")
            except FileNotFoundError:  # listed in the group, but deleted
                raise none from None
        arrays.append(array)
    return arrays, halving


def _levels_of(group: zarr.Group, path: str) -> tuple[list[str], Halving]:
    """Return the paths of the levels in the metadata of a group, and how they were computed."""
    mark = _mark_of(group)
    if "pyramid" not in mark:
        return [DATA], Halving()
    try:
        told: Any = mark["pyramid"]
        axes = tuple(check_whole("axes", axis, least=0, most=MAX_NDIM) for axis in told["axes"])
        method = METHODS[METHODS.index(told["method"])]
        check_whole("number of halved axes", len(axes), least=1, most=3)
        return [*map(str, told["levels"])], Halving(axes, method)
    except (KeyError, TypeError, ValueError) as error:
        problem = "invalid pyramid metadata of the group"
        raise VerificationError(problem, path=path, found=str(error)) from error


class _Comparison:
    """Compares blocks with stored levels. A plain value: dask does not traverse it."""

    def __init__(self, stack: LevelStack, arrays: Sequence[zarr.Array[Any]], path: str) -> None:
        self.stack = stack
        self.arrays = arrays
        self.path = path

    def compare(self, box: Box, held: Array | Source) -> None:
        """Raise for the first difference between a box of the array and its stored chunks."""
        pairs = zip(self.stack.levels, self.arrays, strict=True)
        stored = {level: _chunks_of(level, array) for level, array in pairs}
        with Workspace() as workspace:
            for level, key, region, parts in self.stack.parts(BlockPixels(held, box, workspace)):
                for place, expected in parts:
                    found = self._read(stored[level], key, place)[tuple(map(slice, expected.shape))]
                    bounds = zip(region, place, level.encoder.chunk, strict=True)
                    corner = [some.start + k * n for some, k, n in bounds]
                    inside = "" if level is self.stack.base else f"{level.name} "
                    compare_pixels(expected, found, corner, self.path, inside)

    def _read(self, stored: StoredChunks, key: str, place: Place) -> Array:
        problem, where = "a chunk cannot be decoded", stored.prefix + key
        try:
            found = stored.read(key, place)
        except Exception as error:
            said = str(error)
            raise VerificationError(problem, path=self.path, where=where, found=said) from error
        if found is None:  # zarr would return zeros
            raise VerificationError("a chunk is missing", path=self.path, where=where)
        return found


def _chunks_of(level: Level, array: zarr.Array[Any]) -> StoredChunks:
    """Return a reader of the chunks of a zarr array."""
    from zarr.storage import LocalStore

    store, told = array.store, dict[str, Any](array.metadata.to_dict())
    reader: PartReader = Prefix(store, "")
    if type(store) is LocalStore:
        reader = FileReader(str(store.root))
    shards = {} if array.shards is None else told["codecs"][0]["configuration"]
    return StoredChunks(reader, level.prefix, level.encoder, shards)


def compare_pixels(
    expected: Array, found: Array, corner: Sequence[int], path: str, inside: str = ""
) -> None:
    """Raise for the first difference between two arrays; ``corner`` is their first position."""
    first = _first_difference(expected, found.astype(expected.dtype, copy=False))
    if first is not None:
        inner = np.unravel_index(first, expected.shape)
        pixel = [start + int(i) for start, i in zip(corner, inner, strict=True)]
        raise VerificationError(
            "a pixel differs",
            path=path,
            where=f"{inside}[{', '.join(map(str, pixel))}]",
            expected=expected[inner],
            found=found[inner],
        )


def _first_difference(a: Array, b: Array) -> int | None:
    """Return the index of the first pixel that differs in any bit: equal NaN are equal."""
    if a.dtype.hasobject:
        differs = np.asarray(a != b).reshape(-1)
    else:
        one, other = (np.ascontiguousarray(x).reshape(-1).view("u1") for x in (a, b))
        words = one.size // 8 * 8  # words are compared faster than bytes
        same = (one[:words].view("u8") == other[:words].view("u8")).all()
        if same and (one[words:] == other[words:]).all():
            return None
        differs = (one != other).reshape(a.size, -1).any(axis=1)
    return int(differs.argmax()) if differs.any() else None
