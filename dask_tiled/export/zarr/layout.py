"""The layout of what is stored: zarr makes all of it but the pixels, in memory."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.array.given import Given
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.grids import SHARD_BYTES, Pyramid, Stored
from dask_tiled.export.zarr.group import DATA, Coordinate, Dimensions, coordinates_of
from dask_tiled.export.zarr.levels import Level, Stack
from dask_tiled.export.zarr.results import Result, check_names
from dask_tiled.model.axes import Axis
from dask_tiled.model.mark import MARK, attributes_of, plain
from dask_tiled.model.ome_zarr import at_level, image_of
from dask_tiled.tiling.sizes import cut

if TYPE_CHECKING:
    import zarr

WRITER = "to_zarr"
"""Exports say that they wrote an array, for people; it proves nothing."""
LEVEL = "level_"
"""Prefix of the groups of further levels, each with an array and coordinates."""


class Settings(NamedTuple):
    """How an array is stored, as :func:`to_zarr` is told."""

    chunks: Any = None
    shards: Any = None
    compressors: Any = "auto"
    layout: str = "group"
    names: Any = None
    attributes: Mapping[str, Any] | None = None
    pyramid: bool | int = False

    @property
    def member(self) -> str:
        """The name of the array in what is stored; empty where it is all of that."""
        return DATA if self.layout == "group" else ""


class _Node(NamedTuple):
    """An array of the group, and what is said of it, in terms of JSON."""

    folder: str
    """The group around it: that of all, or that of a further level."""
    axes: Sequence[Axis | None]
    attributes: Mapping[str, Any]
    of_group: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Its place in the group of all."""
        return f"{self.folder}/{DATA}".removeprefix("/")


class Layout(NamedTuple):
    """All that is stored of an array and of results but their pixels."""

    documents: dict[str, bytes]
    """By their keys."""
    stack: Stack
    """The array, and the levels of its pyramid."""
    results: tuple[Level, ...] = ()


def layout_of(
    given: Given,
    settings: Settings,
    first: Stored,
    pyramid: Pyramid,
    results: Sequence[Result] = (),
    own: Sequence[Axis | None] = (),
) -> Layout:
    """Make all that is stored of an array, of the levels of its pyramid, and of results.

    Parameters
    ----------
    own : sequence of Axis or None
        The axes before a caller has described them: results have these.

    Raises
    ------
    DatasetError
        zarr refuses it, or a result cannot have its name.
    """
    import zarr

    nodes, names = _nodes(given, settings, pyramid, results), settings.names
    options, beside = _options(settings.compressors, given.dtype, names), list[Level]()
    contents: dict[str, Any] = {}
    store: Any = zarr.storage.MemoryStore(contents)
    if not settings.member:
        levels = [Level("", _array(store, None, first, nodes[0].attributes, options))]
    else:
        levels, folders = [], [node.folder for node in nodes]
        small = {MARK: {key: nodes[0].attributes[MARK][key] for key in ("version", "written_by")}}
        for node, stored in zip(nodes, (first, *pyramid.levels), strict=True):
            group = zarr.create_group(store, path=node.folder, attributes={**node.of_group})
            pixels = _array(group.store_path, DATA, stored, node.attributes, options)
            levels.append(Level(f"{node.path}/", pixels))
            coordinates = coordinates_of(names, node.axes, stored.shape, folders)
            _write_coordinates(group, coordinates, small)
        described = list(_described(results, given, names, own))
        check_names(results, [*names, *(x.name for axes in described for x in axes), *folders])
        group = zarr.open_group(store)
        nav = {axis.name for axis in own[: given.nav_ndim] if axis is not None}
        for one, axes in zip(results, described, strict=True):
            array = _result(group, one, axes, nav, settings, small)
            beside.append(Level(f"{one.name}/", array))
            dims = [axis.name for axis in axes]
            coordinates = coordinates_of(dims, axes, one.given.shape, [*group])
            _write_coordinates(group, coordinates, small)
        _consolidate(store)
    documents = {key: buffer.to_bytes() for key, buffer in contents.items()}
    return Layout(documents, Stack(tuple(levels), pyramid.binned), tuple(beside))


def _nodes(
    given: Given, settings: Settings, pyramid: Pyramid, results: Sequence[Result]
) -> list[_Node]:
    """Say what is known of an array, and of the levels of its pyramid."""
    shown, desc, binned = given.shown, given.description, pyramid.binned
    mark = attributes_of(shown.axes, shown.of)[MARK] | {"written_by": WRITER}
    small = {key: mark[key] for key in ("version", "written_by")}
    signal = {} if desc is None else {"sig_dims": len(desc.sig_shape)}
    units = {"units": shown.units} if shown.units else {}
    of_data = {**units, **(settings.attributes or {}), MARK: mark | signal}
    nodes = [_Node("", shown.axes, plain(of_data), {MARK: small})]
    for k in range(1, len(pyramid.levels) + 1):
        axes = at_level(shown.axes, binned, k)
        of_level = {MARK: attributes_of(axes, ())[MARK] | small | signal}
        nodes.append(_Node(f"{LEVEL}{k}", axes, plain(of_level), {MARK: small}))
    if settings.member:
        image = image_of([node.path for node in nodes], settings.names, shown.axes, binned)
        halved = {"binned": binned} if pyramid.levels else {}
        listed = {"results": [one.name for one in results]} if results else {}
        nodes[0] = nodes[0]._replace(of_group=plain({MARK: small | halved | listed, **image}))
    return nodes


def _described(
    results: Sequence[Result], given: Given, names: Sequence[str], own: Sequence[Axis | None]
) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes of results, those of the array as a caller has described them."""
    named = [
        replace(axis or Axis(name), name=name)
        for name, axis in zip(names, given.shown.axes, strict=True)
    ]
    told, dimensions = dict(zip(own, named, strict=True)), Dimensions()
    dimensions.of(DATA, named, given.shape)
    for one in results:
        axes = [axis and told.get(axis, axis) for axis in one.given.shown.axes]
        yield dimensions.of(one.name, axes, one.given.shape)


def _result(
    group: zarr.Group,
    result: Result,
    axes: Sequence[Axis],
    nav: Collection[str],
    settings: Settings,
    mark: Mapping[str, Any],
) -> Encoder:
    """Create the array of a result."""
    dtype, shape = result.given.dtype, result.given.shape
    sizes = tuple(max(1, n) for n in shape)
    chunk = cut(sizes, sizes, len(sizes), SHARD_BYTES // max(1, dtype.itemsize))
    units = {"units": result.given.shown.units} if result.given.shown.units else {}
    sig = sum(axis is None or axis.name not in nav for axis in result.given.shown.axes)
    told = attributes_of(axes, ())[MARK] | mark[MARK] | {"sig_dims": sig or len(shape)}
    return _array(
        group.store_path,
        result.name,
        Stored(shape, chunk, None),
        plain({**units, MARK: told}),
        _options(settings.compressors, dtype, [x.name for x in axes]),
    )


def _write_coordinates(
    group: zarr.Group, coordinates: Iterable[Coordinate], mark: Mapping[str, Any]
) -> None:
    """Write coordinates into a group, each with more attributes."""
    from zarr.codecs import Crc32cCodec

    for name, numbers, units in coordinates:
        is_text = numbers.dtype.kind == "U"
        array = group.create_array(
            name,
            shape=numbers.shape,
            dtype=str if is_text else numbers.dtype,
            compressors=Crc32cCodec(),
            dimension_names=[name],
            attributes={**mark, **units},
        )
        array[...] = numbers.astype(object) if is_text else numbers


def _consolidate(store: Any) -> None:
    """Write all metadata in the document of the group, too, for those who ask for many at once."""
    import zarr

    with warnings.catch_warnings():
        # It is no part of the specification yet. Readers that do not know it do not look at it.
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(store)


def _options(compressors: Any, dtype: np.dtype, names: Any) -> dict[str, Any]:
    """Return how zarr is to create an array."""
    if dtype.kind in "iu":  # NumPy has two types of 8 bytes, of which zarr knows one
        dtype = np.dtype(dtype.str)
    return {
        "dtype": dtype,
        "compressors": _checked(compressors, dtype),
        "dimension_names": names,
        "fill_value": np.zeros((), dtype)[()],
    }


def _array(
    place: Any,
    name: str | None,
    stored: Stored,
    attributes: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Encoder:
    """Create a zarr array."""
    import zarr

    try:
        array = zarr.create_array(
            place,
            name=name,
            shape=stored.shape,
            chunks=stored.chunk,
            shards=stored.shard,
            attributes={**attributes},
            zarr_format=3,
            **options,
        )
    except (KeyError, TypeError, ValueError) as error:  # of codecs that it does not know, say
        raise DatasetError("zarr refuses the settings", found=repr(error)) from error
    return Encoder(array)


def _checked(compressors: Any, dtype: np.dtype) -> tuple[Any, ...]:
    """Return compressors as zarr takes them, with a checksum behind them."""
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    if isinstance(compressors, str) and compressors == "auto":
        # Counts of a detector leave most bits of a pixel unused: bits of the same place, brought
        # together, are runs of zeros, which LZ4 finds as fast as it can read.
        compressors = ZstdCodec(level=1)
        if dtype.kind in "biufc":
            size = dtype.itemsize
            compressors = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=size)
    if compressors is None:
        compressors = ()
    one = isinstance(compressors, str | Mapping) or not isinstance(compressors, Iterable)
    given = (compressors,) if one else tuple(compressors)
    last = given[-1] if given else None
    name = last.get("name") if isinstance(last, Mapping) else None
    return given if isinstance(last, Crc32cCodec) or name == "crc32c" else (*given, Crc32cCodec())
