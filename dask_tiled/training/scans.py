"""Samples of scans: frames, rows or whole scans of one or many arrays, by number.

Samples of all scans are counted in one sequence: scan after scan, each in the order of its axes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.axes import ArrayAxes, shown_of
from dask_tiled.opened.inputs import is_array
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.describing import describe
from dask_tiled.training.arrays import Make, array_of, read_samples
from dask_tiled.training.patches import (
    POSITION,
    START,
    CountedAxis,
    PatchedArray,
    Patches,
    ScanAxes,
)
from dask_tiled.training.patterns import Patterns

Batch = dict[str, Any]
"""Values of samples, by field."""

FRAME = "frame"
"""Name of the field of a source without names."""
INDEX, SCAN = "index", "scan"
"""Fields of every source: number of the sample, and of its scan."""
OBJECT_BYTES = 1 << 16
"""Assumed bytes of an object that is not computed yet."""


@dataclass(frozen=True)
class SampleSet:
    """The samples of a source, by number.

    Attributes
    ----------
    arrays : mapping of str to list of arrays
        The arrays of each field, one for each scan, with samples along the first axis.
    functions : mapping of str to callable
        Fields that are computed from a batch.
    scans : list of ScanAxes
        The axes of each scan.
    names : tuple of str
        The fields of a batch, in their order.
    stored_bytes : int
        Bytes of a sample in all fields of the source, whichever are read.
    """

    arrays: Mapping[str, Sequence[Any]]
    functions: Mapping[str, Callable[[Batch], Any]]
    scans: Sequence[ScanAxes]
    names: tuple[str, ...]
    stored_bytes: int

    @classmethod
    def of(
        cls,
        source: Any,
        samples: str | Sequence[str] = "frame",
        fields: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        patches: Patches | None = None,
    ) -> Self:
        """Return the samples of what a user passes; see :func:`iter_batches`."""
        given = _named(source, options or {})
        functions = {name: value for name, value in given.items() if callable(value)}
        are_named = isinstance(source, Mapping)
        lists = {
            name: _opened(name, value, options or {}, strings=are_named)
            for name, value in given.items()
            if name not in functions
        }
        if not any(lists.values()):
            raise DatasetError("no samples", expected="an array, or a path", found=repr(source))
        if options and not _opens(source) and not any(map(_opens, given.values())):
            expected = "no options, which are those of paths"
            raise DatasetError("unknown option", expected=expected, found=", ".join(options))
        arrays, scans = _aligned(lists, samples, patches)
        clash = [name for name in given if name in _offered(scans)]
        if clash:
            raise DatasetError("this name of a field is taken", expected="another", found=clash[0])
        if fields is not None and not isinstance(fields, Iterable):
            raise DatasetError("invalid fields", expected="names", found=repr(fields))
        names = (*given,) if fields is None else (*fields,)
        known = *given, *_offered(scans)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            expected = ", ".join(map(repr, known))
            raise DatasetError("unknown field", expected=expected, found=repr((unknown or [""])[0]))
        stored = _bytes_of(arrays)
        if not any(name in functions for name in names):
            arrays = {name: arrays[name] for name in names if name in arrays}
        return cls(arrays, functions, scans, names, stored)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def starts(self) -> Index:
        """Number of the first sample of each scan, and of all samples."""
        return np.cumsum([0, *(scan.n_samples for scan in self.scans)])

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample; for objects their mean, or a guess."""
        return _bytes_of(self.arrays)

    def read(self, batches: Sequence[Index], make: Make = np.empty) -> list[Batch]:
        """Read batches of samples by number; they may be parts of common arrays.

        ``make`` allocates memory for samples of opened arrays.
        """
        values = self._values(np.concatenate(batches), make)
        stops = np.cumsum([0, *map(len, batches)]).tolist()
        return [self._batch(values, slice(*ends)) for ends in pairwise(stops)]

    def _values(self, numbers: Index, make: Make) -> dict[str, Array]:
        """Read samples by number, scan by scan."""
        starts = self.starts
        scans = np.searchsorted(starts, numbers, side="right") - 1
        values: dict[str, Array] = {INDEX: numbers.copy(), SCAN: scans}
        order = np.argsort(scans, kind="stable")
        edges = np.searchsorted(scans[order], np.arange(len(starts))).tolist()
        for scan, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                of_scan = self._of_scan(scan, numbers[order[low:high]] - starts[scan], make)
                if high - low == len(numbers):
                    return values | of_scan
                for name, column in of_scan.items():
                    if name not in values:
                        values[name] = make((len(numbers), *column.shape[1:]), column.dtype)
                    values[name][order[low:high]] = column
        return values

    def _of_scan(self, scan: int, numbers: Index, make: Make) -> dict[str, Array]:
        """Read samples of a scan by their number in it."""
        parts = {name: arrays[scan] for name, arrays in self.arrays.items()}
        values = {
            name: part.read(numbers, make)
            for name, part in parts.items()
            if isinstance(part, (PatchedArray, Patterns))
        }
        whole = [name for name in parts if name not in values]
        read = read_samples([parts[name] for name in whole], numbers, make)
        values |= dict(zip(whole, read, strict=True))
        if self.functions or not {POSITION, START}.isdisjoint(self.names):
            offered = _offered(self.scans)
            places = self.scans[scan].places(numbers)
            values |= {name: places[name] for name in offered if name in places}
        return values

    def _batch(self, values: Mapping[str, Array], place: slice) -> Batch:
        """Return the samples of a batch at a place of values."""
        batch: Batch = {name: _column(column[place]) for name, column in values.items()}
        for name in self.names:
            if name in self.functions:
                batch[name] = self._called(name, batch)
        return {name: batch[name] for name in self.names}

    def _called(self, name: str, batch: Batch) -> Any:
        known = {other: batch[other] for other in batch if other not in self.functions}
        made, count = self.functions[name](known), len(batch[INDEX])
        if not hasattr(made, "__len__") or len(made) != count:
            found = f"{type(made).__name__} of {len(made) if hasattr(made, '__len__') else 0}"
            where = f"field {name!r}"
            raise DatasetError(
                "the function returned other than a value for each sample",
                where=where,
                expected=f"{count} values",
                found=found,
            )
        return made


def _offered(scans: Sequence[ScanAxes]) -> tuple[str, ...]:
    """Return the names of further fields; scans of different dimensions have no positions."""
    if len({len(scan.counted) for scan in scans}) > 1:
        return INDEX, SCAN
    patches = scans[0].are_patches
    return (INDEX, SCAN, POSITION, START) if patches else (INDEX, SCAN, POSITION)


def _named(source: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields by name; those of a sample file, if the source is one."""
    if isinstance(source, (str, os.PathLike)):
        beton = describe(source, **options).metadata.get("beton")
        if beton is not None:
            given = {"format": "beton", **options}
            return {name: open_dataset(source, **given, field=name) for name in beton["fields"]}
    if isinstance(source, Mapping):
        return dict(source)
    return {FRAME: source}


def _is_scan(value: Any) -> bool:
    """Return whether a value is a scan: an array of dask or xarray, a path, a catalogue's row."""
    lazy = is_array(value) and not isinstance(value, np.ndarray)
    return lazy or isinstance(value, (str, os.PathLike, Patterns)) or _is_row(value)


def _opens(value: Any) -> bool:
    """Return whether a value is a path or a catalogue's row, or a sequence with any."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(_opens, value))
    return isinstance(value, (str, os.PathLike)) or _is_row(value)


def _is_row(value: Any) -> bool:
    return callable(getattr(value, "open", None))


def _opened(
    name: str, value: Any, options: Mapping[str, Any], *, strings: bool = False
) -> list[Any]:
    """Return the arrays of a field: one for each scan, or one.

    ``strings``: whether strings in a list are values rather than paths.
    """
    is_list = False
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not len(value):
            raise DatasetError("no samples", where=f"field {name!r}", found=repr(value))
        scans = [_is_scan(item) and not (strings and isinstance(item, str)) for item in value]
        arrays_too = [isinstance(item, np.ndarray) and item.ndim > 0 for item in value]
        is_list = all(a or b for a, b in zip(scans, arrays_too, strict=True))
        if any(scans) and not is_list:
            other = value[scans.index(False)]
            where, expected = f"field {name!r}", "scans and arrays only, or values only"
            found = f"{type(other).__name__} in a list of scans"
            raise DatasetError("a mixed list", where=where, expected=expected, found=found)
    arrays = []
    for item in value if is_list else [value]:
        arr = item
        if isinstance(item, Patterns):
            arrays.append(item)
            continue
        if isinstance(item, (str, os.PathLike)):
            arr = open_dataset(item, **options)
        elif not is_array(item):
            arr = item.open(**options) if _is_row(item) else _in_memory(name, item)
        arrays.append(array_of(name, arr))
    return arrays


def _in_memory(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except Exception as error:
        raise DatasetError(
            "no array in memory of this process",
            where=f"field {name!r}",
            found=f"{type(value).__name__}: {error}",
            hint="Convert it to a NumPy array first.",
        ) from error


def _aligned(
    lists: dict[str, list[Any]], samples: str | Sequence[str], patches: Patches | None
) -> tuple[dict[str, list[Any]], list[ScanAxes]]:
    """Return the arrays of each field, scan by scan, with samples along the first axis.

    The first field whose arrays have axes of files tells the shapes of the scans; if there is none,
    the first axis of all arrays counts samples.
    """
    navs = {name: _nav_axes(arrays[0]) for name, arrays in lists.items()}
    known = [name for name, nav in navs.items() if nav is not None]
    leading = max(known, key=lambda name: bool(navs[name]), default=None)
    if leading is None:
        if samples != "frame" or patches:
            expected = "an array of a file, as axes of others are unknown"
            found = f"{samples=}" if patches is None else f"patch={patches.sizes}"
            raise DatasetError("no axes of samples", expected=expected, found=found)
        lists = {name: _stacked(name, arrays) for name, arrays in lists.items()}
        leading = max(lists, key=lambda name: len(lists[name]))
    sampled = [_sampled(leading, arr, samples, patches) for arr in lists[leading]]
    scans = [scan for _, scan in sampled]
    aligned = {
        name: [arr for arr, _ in sampled]
        if name == leading
        else _beside(name, arrays, scans, samples)
        for name, arrays in lists.items()
    }
    for name, arrays in aligned.items():
        kinds = sorted({f"{arr.dtype} of shape {arr.shape[1:]}" for arr in arrays})
        if len(kinds) > 1:
            raise DatasetError(
                "samples of different scans differ in shape or dtype",
                where=f"field {name!r}",
                found=" and ".join(kinds),
            )
    return aligned, scans


def _stacked(name: str, arrays: list[Any]) -> list[Any]:
    """Return a list of arrays in memory as one array; lazy arrays are scans."""
    if len(arrays) == 1 or not all(isinstance(arr, np.ndarray) for arr in arrays):
        return arrays
    if len({arr.shape for arr in arrays}) > 1:
        found = " and ".join(sorted({str(arr.shape) for arr in arrays})[:2])
        raise DatasetError("samples differ in shape", where=f"field {name!r}", found=found)
    return [np.stack(arrays)]


def _nav_axes(arr: Any) -> tuple[Axis | None, ...] | None:
    """Return the axes before those of a frame; None for arrays without axes of files."""
    if isinstance(arr, Patterns):
        return tuple(axis.axis for axis in arr.scan.outer)
    desc = description_of(arr)
    if desc is not None:
        return desc.axes[: desc.nav_ndim]
    shown = shown_of(arr) if isinstance(arr, da.Array) else ArrayAxes((), ())
    sig = {axis.name for one in shown.of for axis in one.axes[one.nav_ndim :]}
    names = [axis and axis.name for axis in shown.axes]
    first = next((k for k, name in enumerate(names) if name in sig), len(names))
    known = any(names[:first]) and (first < len(names) or None not in names)
    return shown.axes[:first] if known else None


def _sampled(
    name: str, arr: Any, samples: str | Sequence[str], patches: Patches | None = None
) -> tuple[Any, ScanAxes]:
    """Return an array with samples along its first axis, and the axes that this one counts."""
    if isinstance(arr, Patterns):
        if samples != "frame" or patches is not None:
            problem, found = "patterns are samples as they are", f"{samples=}, {patches}"
            raise DatasetError(problem, expected="neither samples= nor patch=", found=found)
        return arr, arr.scan
    nav = _nav_axes(arr)
    if nav is None:
        return arr, ScanAxes((CountedAxis.whole(None, arr.shape[0]),))
    whole = shown_of(arr).axes
    named = {"frame": len(nav), "row": len(nav) - 1, "volume": 0}
    if isinstance(samples, str) and samples in named:
        axes = [*range(named[samples])] if named[samples] >= 0 else None
    else:
        names = [axis and axis.name for axis in whole]
        wanted: Any = [samples] if isinstance(samples, str) else samples
        are_known = _are_names(wanted) and all(name in names for name in wanted)
        axes = [names.index(one) for one in wanted] if are_known else None
    if axes is None or len({*axes}) < len(axes):
        listed = ", ".join(repr(axis.name) for axis in whole if axis is not None)
        raise DatasetError(
            "invalid samples",
            where=f"field {name!r}",
            expected=f"frame, row, volume, or names of axes: {listed}",
            found=repr(samples),
        )
    rest = [k for k in range(arr.ndim) if k not in axes]
    if [*axes, *rest] != [*range(arr.ndim)]:
        arr = arr.transpose([*axes, *rest])
    order = [*axes, *rest]
    ordered = [(whole[k], n) for k, n in zip(order, arr.shape, strict=True)]
    count, flat = len(axes), _flat(arr, len(axes))
    if patches is None:
        return flat, ScanAxes(tuple(CountedAxis.whole(*axis) for axis in ordered[:count]))
    unknown = {*patches.sizes} - {axis.name for axis, _ in ordered if axis is not None}
    if unknown:
        listed = ", ".join(repr(axis.name) for axis in whole if axis is not None)
        raise DatasetError("no axis of a patch", expected=listed, found=repr(min(unknown)))
    outer = tuple(patches.cut(*axis) or CountedAxis.whole(*axis) for axis in ordered[:count])
    cuts = tuple(patches.cut(*axis) for axis in ordered[count:])
    inner = tuple(axis for axis in cuts if axis is not None)
    scan = ScanAxes(outer, inner, cuts, arr.shape[count:])
    return PatchedArray(flat, outer, inner, cuts), scan


def _are_names(samples: Any) -> bool:
    return isinstance(samples, Sequence) and all(isinstance(name, str) for name in samples)


def _flat(arr: Any, ndim: int) -> Any:
    """Return an array with some leading axes as one."""
    return arr if ndim == 1 else arr.reshape((math.prod(arr.shape[:ndim]), *arr.shape[ndim:]))


def _beside(
    name: str, arrays: list[Any], scans: Sequence[ScanAxes], samples: str | Sequence[str]
) -> list[Any]:
    """Return the arrays of a field for the samples of scans, one for each scan.

    They have the shape of the scans, or an element for each sample; one array may have those of all
    scans.
    """
    counts = [scan.n_samples for scan in scans]
    if len(arrays) == 1 < len(scans):
        (arr,) = arrays
        whole = len(scans), *scans[0].shape
        if {scan.shape for scan in scans} == {whole[1:]} and arr.shape[: len(whole)] == whole:
            arrays = [arr[k] for k in range(len(scans))]
        elif len(arr) == sum(counts):
            stops = np.cumsum(counts).tolist()
            return [arr[stop - n : stop] for stop, n in zip(stops, counts, strict=True)]
    if len(arrays) == len(scans):
        pairs = [*zip(arrays, scans, strict=True)]
        made = [_of_scan(name, arr, scan, samples) for arr, scan in pairs]
        if [len(arr) for arr in made] == counts:
            return made
    shapes = " and ".join(sorted({str(scan.shape) for scan in scans}))
    raise DatasetError(
        "the fields have different lengths",
        where=f"field {name!r}",
        expected=f"{sum(counts)} samples of {len(scans)} scans, of shape {shapes}",
        found=" and ".join(sorted({str(arr.shape) for arr in arrays})),
    )


def _of_scan(name: str, arr: Any, scan: ScanAxes, samples: str | Sequence[str]) -> Any:
    count = len(scan.shape)
    if arr.shape[:count] == scan.shape:
        flat = _flat(arr, count)
        if not scan.are_patches:
            return flat
        cuts = scan.cuts if arr.shape[count:] == scan.sig else ()
        return PatchedArray(flat, scan.outer, scan.inner, cuts)
    return arr if _nav_axes(arr) is None else _sampled(name, arr, samples)[0]


def _bytes_of(arrays: Mapping[str, Sequence[Any]]) -> int:
    return max(1, sum(_sample_bytes(parts[0]) for parts in arrays.values()))


def _sample_bytes(arr: Any) -> int:
    """Return the bytes of a sample; for objects their mean, or a guess."""
    pixel = arr.dtype.itemsize
    if isinstance(arr, da.Array) and arr.dtype.hasobject:
        desc = description_of(arr)
        pixel = OBJECT_BYTES if desc is None else desc.layout.object_bytes
    return math.prod(arr.shape[1:]) * pixel


def _column(values: Array) -> Any:
    return values.tolist() if values.dtype.hasobject else values
