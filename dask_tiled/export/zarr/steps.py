"""One array of an export: checked, planned, and stored at its places."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import dask.array as da
import numpy as np

from dask_tiled.blocks.workers import able_workers
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.zarr.group import own_attributes
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import ExportPlan
from dask_tiled.export.zarr.results import computed, encoded
from dask_tiled.export.zarr.stored_chunks import level_array
from dask_tiled.export.zarr.targets import ZarrTarget, write_blocks
from dask_tiled.export.zarr.tile_writer import write_and_compute
from dask_tiled.export.zarr.windows import with_windows
from dask_tiled.model.pyramids import METHODS
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import attributes_in
from dask_tiled.opened.spec import Given
from dask_tiled.opening.arrays import opened
from dask_tiled.storing.places import Place

Layouts = Literal["array", "group"]


class ExportSource(NamedTuple):
    """An array to export, and how it is stored."""

    arr: da.Array
    given: Given
    settings: Settings

    @classmethod
    def of(cls, data: Any, settings: Settings) -> ExportSource:
        """Open and check an array or files, and complete the settings.

        Raise a DatasetError or TilingError if the array or its attributes cannot be exported.
        """
        arr, of_xarray = opened(data), attributes_in(data)
        check_blocks(arr)
        attributes: Any = settings.attributes
        if not isinstance(attributes, Mapping | None):
            found = repr(attributes)
            raise DatasetError("invalid attributes", expected="a mapping", found=found)
        if settings.layout not in get_args(Layouts):
            expected, found = get_args(Layouts), repr(settings.layout)
            raise DatasetError("unknown layout", expected=expected, found=found)
        if settings.zarr_format not in (2, 3):
            found = repr(settings.zarr_format)
            raise DatasetError("unknown zarr_format", expected="2 or 3", found=found)
        if settings.zarr_format == 2 and settings.shards is not None:
            found = f"shards={settings.shards!r}"
            raise TilingError("format 2 of zarr has no shards", found=found)
        given, method = Given.of(arr), settings.pyramid_method
        if method is None:
            method = "nearest" if given.has_labels else "mean"
        elif not isinstance(method, str) or method not in METHODS:
            found = repr(method)
            raise DatasetError("invalid pyramid_method", expected=", ".join(METHODS), found=found)
        attributes = own_attributes(of_xarray, given) | dict(attributes or {})
        return cls(arr, given, settings._replace(attributes=attributes, pyramid_method=method))

    @contextmanager
    def on_workers(self, path: str | None, results: Sequence[da.Array] = ()) -> Iterator[None]:
        """Restrict tasks to workers that can read the array and write to a path."""
        codecs = self.settings.compressors
        listed = codecs if isinstance(codecs, Sequence) else [codecs]
        libraries = {type(codec).__module__.partition(".")[0] for codec in listed}
        read = chain(self.given.shown.of, *(shown_of(one).of for one in results))
        with able_workers(read, folder=path and os.path.dirname(path), libraries=libraries):
            yield


def store(
    plan: ExportPlan,
    arr: da.Array,
    results: Mapping[str, da.Array],
    places: Sequence[Place],
    *,
    show: bool | None,
) -> None:
    """Execute a plan, except for the keys that an earlier attempt has stored.

    Parameters
    ----------
    places : sequence of Place
        One for each step.
    """
    told = {one.name: one for one in plan.results}
    # One result after the other: values equal those of compute(), bit for bit.
    apart = [one for one in plan.results if one.apart]
    made = {one.name: computed(one, results[one.name].compute()) for one in apart}
    for step, place in zip(plan.steps, places, strict=True):
        done = place.whole()
        for some in step.passes:
            target = ZarrTarget(some.stack, place)
            if some.results:
                blocks = arr if arr.chunks == some.chunks else arr.rechunk(some.chunks)
                beside = [results[name] for name in some.results]
                found = write_and_compute(blocks, target, done, beside, show=show)
                pairs = zip(some.results, found, strict=True)
                made |= {name: computed(told[name], pixels) for name, pixels in pairs}
                continue
            level = some.source
            read = arr if level is None else level_array(places[some.step], level, some.chunks)
            write_blocks(read, some.chunks, target, done, show=show)
        # Results are stored together with the metadata that makes them visible.
        stored = (encoded(level, made[level.name]) for level in step.results)
        documents = with_windows(step.documents, step.stack, place)
        place.commit(dict(chain(documents.items(), *stored)), step.keys())


def check_blocks(arr: da.Array) -> None:
    """Check that the chunks have known sizes, and are NumPy arrays.

    Raises
    ------
    TilingError, DatasetError
    """
    if np.isnan(arr.shape).any():
        raise TilingError("chunks of unknown size", hint="Call compute_chunk_sizes() first.")
    blocks = type(getattr(arr, "_meta", np.empty(0)))
    if blocks is not np.ndarray:
        hint = (
            "Fill masked pixels first: dask.array.ma.filled."
            if issubclass(blocks, np.ma.MaskedArray)
            else None
        )
        raise DatasetError(
            "chunks of this type cannot be written",
            expected="NumPy arrays",
            found=blocks.__name__,
            hint=hint,
        )
