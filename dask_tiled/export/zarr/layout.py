"""Create the metadata documents of an export: zarr writes them to memory."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.grids import SHARD_BYTES, ChunkGrid, Pyramid
from dask_tiled.export.zarr.group import DATA, Coordinate, Dimensions, coordinates_of
from dask_tiled.export.zarr.levels import Level, LevelStack
from dask_tiled.export.zarr.results import LateResult, check_names
from dask_tiled.model.axes import Axis
from dask_tiled.model.mark import MARK, attributes_of, json_value
from dask_tiled.model.ome_zarr import image_of
from dask_tiled.opened.spec import Given
from dask_tiled.tiling.sizes import divided

if TYPE_CHECKING:
    import zarr

WRITER = "to_zarr"
"""Informative attribute: it does not prove who wrote the array."""
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute of arrays of format 2 with names of dimensions, as xarray writes it."""
VERSIONS = {2: "0.4", 3: "0.5"}
"""Versions of OME-Zarr by format of zarr."""
LEVEL = "level_"
"""Name prefix of the groups of further levels; each group has an array and coordinates."""


class Settings(NamedTuple):
    """Options of :func:`to_zarr` that determine how an array is stored."""

    chunks: Any = None
    shards: Any = None
    compressors: Any = "auto"
    layout: str = "group"
    names: Any = None
    attributes: Mapping[str, Any] | None = None
    pyramid: bool | int = False
    pyramid_method: str | None = "mean"
    zarr_format: Literal[2, 3] = 3
    title: str = ""
    """Name of the image in OME-Zarr."""

    @property
    def member(self) -> str:
        """Name of the array in its group; empty without a group."""
        return DATA if self.layout == "group" else ""


class _Node(NamedTuple):
    """An array of the group, with JSON attributes."""

    folder: str
    """Path of its group: the root, or a further level."""
    axes: Sequence[Axis | None]
    attributes: Mapping[str, Any]
    of_group: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Path of the array in the root group."""
        return f"{self.folder}/{DATA}".removeprefix("/")


class ExportLayout(NamedTuple):
    """Documents and arrays of an export, without pixels."""

    documents: dict[str, bytes]
    """Documents by key."""
    stack: LevelStack
    """The array, and the levels of its pyramid."""
    results: tuple[Level, ...] = ()


def layout_of(
    given: Given,
    settings: Settings,
    first: ChunkGrid,
    pyramid: Pyramid,
    results: Sequence[LateResult] = (),
    own: Sequence[Axis | None] = (),
) -> ExportLayout:
    """Create the documents of an array, of the levels of its pyramid, and of results.

    Parameters
    ----------
    own : sequence of Axis or None
        The axes of the array before ``dimension_names`` renames them.

    Raises
    ------
    DatasetError
        zarr rejects the settings, or the name of a result is invalid.
    """
    import zarr

    nodes, names = _nodes(given, settings, pyramid, results), settings.names
    options, beside = _options(settings, given.dtype, names), list[Level]()
    contents: dict[str, Any] = {}
    store: Any = zarr.storage.MemoryStore(contents)
    if not settings.member:
        levels = [Level("", _array(store, None, first, nodes[0].attributes, options))]
    else:
        levels, folders = [], [node.folder for node in nodes]
        small = {MARK: {key: nodes[0].attributes[MARK][key] for key in ("version", "written_by")}}
        for node, stored in zip(nodes, (first, *pyramid.levels), strict=True):
            group = zarr.create_group(
                store,
                path=node.folder,
                attributes={**node.of_group},
                zarr_format=settings.zarr_format,
            )
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
        consolidate(store)
    documents = {key: buffer.to_bytes() for key, buffer in contents.items()}
    return ExportLayout(documents, LevelStack(tuple(levels), pyramid.halving), tuple(beside))


def _nodes(
    given: Given, settings: Settings, pyramid: Pyramid, results: Sequence[LateResult]
) -> list[_Node]:
    """Return the nodes of an array and of the levels of its pyramid."""
    shown, desc, halving = given.shown, given.description, pyramid.halving
    mark = attributes_of(shown.axes, shown.of)[MARK] | {"written_by": WRITER}
    small = {key: mark[key] for key in ("version", "written_by")}
    signal = {} if desc is None else {"sig_dims": len(desc.sig_shape)}
    units = {"units": shown.units} if shown.units else {}
    of_data = {**units, **(settings.attributes or {}), MARK: mark | signal}
    nodes = [_Node("", shown.axes, json_value(of_data), {MARK: small})]
    for k in range(1, len(pyramid.levels) + 1):
        axes = halving.at_level(shown.axes, k)
        of_level = {MARK: attributes_of(axes, ())[MARK] | small | signal}
        nodes.append(_Node(f"{LEVEL}{k}", axes, json_value(of_level), {MARK: small}))
    if settings.member:
        paths = [node.path for node in nodes]
        version = VERSIONS[settings.zarr_format]
        told = paths, settings.names, shown.axes, given.dtype, halving, version
        image = image_of(*told, title=settings.title, has_labels=given.has_labels)
        of_levels = {"pyramid": {"levels": paths, **halving._asdict()}} if pyramid.levels else {}
        listed = {"results": [one.name for one in results]} if results else {}
        of_group = json_value({MARK: small | of_levels | listed, **image})
        nodes[0] = nodes[0]._replace(of_group=of_group)
    return nodes


def _described(
    results: Sequence[LateResult], given: Given, names: Sequence[str], own: Sequence[Axis | None]
) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes of results, renamed as ``dimension_names`` renames those of the array."""
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
    result: LateResult,
    axes: Sequence[Axis],
    nav: Collection[str],
    settings: Settings,
    mark: Mapping[str, Any],
) -> Encoder:
    """Create the array of a result."""
    dtype, shape = result.given.dtype, result.given.shape
    sizes = tuple(max(1, n) for n in shape)
    chunk = divided(sizes, sizes, len(sizes), SHARD_BYTES // max(1, dtype.itemsize))
    units = {"units": result.given.shown.units} if result.given.shown.units else {}
    sig = sum(axis is None or axis.name not in nav for axis in result.given.shown.axes)
    told = attributes_of(axes, ())[MARK] | mark[MARK] | {"sig_dims": sig or len(shape)}
    return _array(
        group.store_path,
        result.name,
        ChunkGrid(shape, chunk, None),
        json_value({**units, MARK: told}),
        _options(settings, dtype, [x.name for x in axes]),
    )


def _write_coordinates(
    group: zarr.Group, coordinates: Iterable[Coordinate], mark: Mapping[str, Any]
) -> None:
    """Write coordinates into a group, with the attributes of ``mark``."""
    from zarr.codecs import Crc32cCodec

    for name, numbers, units in coordinates:
        is_text = numbers.dtype.kind == "U"
        attributes: dict[str, Any] = {**mark, **units}
        of_format: dict[str, Any] = {"compressors": Crc32cCodec(), "dimension_names": [name]}
        if group.metadata.zarr_format == 2:
            of_format, attributes[DIMENSIONS] = {"compressors": None}, [name]
        array = group.create_array(
            name,
            shape=numbers.shape,
            dtype=str if is_text else numbers.dtype,
            attributes=attributes,
            **of_format,
        )
        array[...] = numbers.astype(object) if is_text else numbers


def consolidate(store: Any) -> None:
    """Consolidate the metadata: readers then need one request."""
    import zarr

    with warnings.catch_warnings():
        # not in the specification yet; other readers ignore it
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(store)


def _options(settings: Settings, dtype: np.dtype, names: Any) -> dict[str, Any]:
    """Return options of :func:`zarr.create_array`."""
    if dtype.kind in "iu":  # NumPy has two int64 types, zarr one
        dtype = np.dtype(dtype.str)
    options = {"dtype": dtype, "fill_value": np.zeros((), dtype)[()]}
    options["zarr_format"] = settings.zarr_format
    if settings.zarr_format == 2:
        separator = {"name": "v2", "separator": "/"}
        options |= {"compressors": _of_format_2(settings.compressors, dtype)}
        return options | {"chunk_key_encoding": separator, "attributes": {DIMENSIONS: names}}
    return options | {
        "compressors": _checked(settings.compressors, dtype),
        "dimension_names": names,
        "attributes": {},
    }


def _array(
    place: Any,
    name: str | None,
    stored: ChunkGrid,
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
            **{**options, "attributes": {**attributes, **options["attributes"]}},
        )
    except (KeyError, TypeError, ValueError) as error:  # unknown codecs, for example
        raise DatasetError("zarr rejects the settings of the array", found=repr(error)) from error
    encoder = Encoder(array)
    encoder.prepare()
    return encoder


def _of_format_2(compressors: Any, dtype: np.dtype) -> Any:
    """Return a compressor of format 2, which has no place for a checksum."""
    from numcodecs import Blosc, Zstd

    if not isinstance(compressors, str) or compressors != "auto":
        return compressors
    return Blosc("lz4", 5, Blosc.BITSHUFFLE) if dtype.kind in "biufc" else Zstd(1)


def _checked(compressors: Any, dtype: np.dtype) -> tuple[Any, ...]:
    """Return compressors for zarr, followed by a checksum."""
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    if isinstance(compressors, str) and compressors == "auto":
        # Detector counts leave most bits of a pixel unused: bit shuffle turns them into runs of
        # zeros, which LZ4 finds at the speed of memory.
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
