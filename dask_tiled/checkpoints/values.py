"""Results of tasks as zarr arrays: NumPy arrays and numbers, also in lists, tuples and mappings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.indexing import Array

TYPED = "biufc"
"""Kinds of dtypes that are stored as such; other pixels are stored as bytes."""
PLAIN = int, bool, str, type(None)
"""Types of values that JSON holds."""
_NAMES, _STRUCTURE, _LEAVES = "names", "structure", "leaves"


class Unstorable(Exception):  # noqa: N818 - not an error
    """A value that zarr cannot store: a masked array, or an object of another library."""


class Leaf(NamedTuple):
    """An array of a value, and what zarr does not store of it."""

    pixels: Array
    """C-contiguous."""
    dtype: Any
    """The dtype, as in files of NumPy."""
    axes: list[int]
    """Axes in the order of their strides, which NumPy's reductions depend on."""
    is_scalar: bool


def taken_apart(value: Any) -> tuple[Any, list[Leaf]]:
    """Return the structure of a value, for JSON, and its arrays.

    Raise Unstorable for other types.
    """
    leaves = list[Leaf]()

    def part(one: Any) -> Any:
        if type(one) is np.ndarray or isinstance(one, np.generic):
            leaves.append(_leaf(np.asarray(one), is_scalar=isinstance(one, np.generic)))
            return {"array": len(leaves) - 1}
        if type(one) in PLAIN:
            return {"value": one}
        if type(one) is float:
            return {"float": one.hex()}  # JSON has no NaN
        if type(one) in (list, tuple):
            return {type(one).__name__: [*map(part, one)]}
        if type(one) is dict and all(type(name) is str for name in one):
            return {"dict": {name: part(x) for name, x in one.items()}}
        raise Unstorable(type(one).__name__)

    return part(value), leaves


def put_together(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the value of a structure and its arrays."""
    ((kind, held),) = structure.items()
    if kind == "array":
        return leaves[held]
    if kind == "dict":
        return {name: put_together(x, leaves) for name, x in held.items()}
    if kind == "value":
        return held
    if kind == "float":
        return float.fromhex(held)
    found = [put_together(x, leaves) for x in held]
    return tuple(found) if kind == "tuple" else found


def _leaf(array: Array, *, is_scalar: bool) -> Leaf:
    dtype = array.dtype
    if dtype.hasobject:
        raise Unstorable("object")
    axes = sorted(range(array.ndim), key=lambda k: -abs(array.strides[k]))
    pixels = np.ascontiguousarray(array.transpose(axes)).reshape([array.shape[k] for k in axes])
    if dtype.kind not in TYPED or not dtype.isnative:
        pixels = np.frombuffer(pixels.tobytes(), np.uint8).reshape(*pixels.shape, dtype.itemsize)
    return Leaf(pixels, np.lib.format.dtype_to_descr(dtype), axes, is_scalar)


def _array_of(pixels: Array, dtype: Any, axes: Sequence[int], *, is_scalar: bool) -> Any:
    told = np.lib.format.descr_to_dtype(_tuples(dtype))
    if pixels.dtype != told:
        pixels = np.frombuffer(pixels.tobytes(), told).reshape(pixels.shape[:-1]).copy()
    array = pixels.transpose(np.argsort(axes)) if axes else pixels
    return array[()] if is_scalar else array


def _tuples(descr: Any) -> Any:
    """Return the description of a dtype with the tuples that JSON turns into lists."""
    if isinstance(descr, str):
        return descr
    return [(_title(name), _tuples(of), *map(tuple, shape)) for name, of, *shape in descr]


def _title(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name


def encoded(values: Mapping[str, Any], skip: Callable[[str, str], None]) -> dict[str, bytes]:
    """Encode values as the keys and documents of a zarr group.

    Values of one structure share arrays, whose first axis numbers them. Attributes of the group
    hold the names of the values, and the number of keys.

    Parameters
    ----------
    skip : callable
        Called with the name and the type of a value that cannot be stored.
    """
    import zarr

    kinds = dict[str, list[tuple[str, list[Leaf]]]]()
    for name, value in values.items():
        try:
            structure, leaves = taken_apart(value)
        except Unstorable as error:
            skip(name, str(error))
            continue
        shown = [(x.pixels.shape, *x[1:]) for x in leaves]
        kinds.setdefault(json.dumps([structure, shown]), []).append((name, leaves))
    told, arrays = list[dict[str, Any]](), dict[str, Array]()
    for k, (kind, some) in enumerate(kinds.items()):
        structure, first = json.loads(kind)[0], some[0][1]
        names = [name for name, _ in some]
        kept = [(one.dtype, one.axes, one.is_scalar) for one in first]
        told.append({_NAMES: names, _STRUCTURE: structure, _LEAVES: kept})
        for n in range(len(first)):
            arrays[f"{k}-{n}"] = np.stack([found[n].pixels for _, found in some])
    contents: dict[str, Any] = {}
    store: Any = zarr.storage.MemoryStore(contents)
    if told:
        count = 1 + sum(1 + bool(pixels.size) for pixels in arrays.values())
        zarr.create_group(store, attributes={"kinds": told, "keys": count})
    for name, pixels in arrays.items():
        _write(store, name, pixels)
    return {key: buffer.to_bytes() for key, buffer in contents.items()}


def _write(store: Any, name: str, pixels: Array) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec

    array = zarr.create_array(
        store,
        name=name,
        shape=pixels.shape,
        chunks=tuple(max(1, n) for n in pixels.shape),
        dtype=np.dtype(pixels.dtype.str),  # NumPy has two int64 types, zarr one
        compressors=Crc32cCodec(),
        fill_value=np.zeros((), pixels.dtype)[()],
        config={"write_empty_chunks": True},
    )
    array[...] = pixels


def names_in(document: bytes | memoryview, count: int) -> list[str]:
    """Return the names of the values of a group; none if it has not ``count`` keys."""
    told = json.loads(bytes(document))["attributes"]
    return [x for kind in told["kinds"] for x in kind[_NAMES]] if told["keys"] == count else []


def decoded(contents: Mapping[str, bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a group.

    Raise a DatasetError if it cannot be decoded.
    """
    import zarr
    from zarr.buffer import default_buffer_prototype

    buffer = default_buffer_prototype().buffer.from_bytes
    store: Any = zarr.storage.MemoryStore({key: buffer(data) for key, data in contents.items()})
    try:
        group = zarr.open_group(store, mode="r")
        kinds: Any = group.attrs["kinds"]
        for k, kind in enumerate(kinds):
            arrays: list[Any] = [group[f"{k}-{n}"] for n in range(len(kind[_LEAVES]))]
            pixels = [np.asarray(array[...]) for array in arrays]
            for number, name in enumerate(kind[_NAMES]):
                leaves = [
                    _array_of(x[number, ...].copy(), dtype, axes, is_scalar=is_scalar)
                    for x, (dtype, axes, is_scalar) in zip(pixels, kind[_LEAVES], strict=True)
                ]
                yield name, put_together(kind[_STRUCTURE], leaves)
    except Exception as error:  # codecs raise errors of any type
        raise DatasetError("a partial result cannot be read", found=repr(error)) from error
