"""Compare a zarr array with what it was exported from."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.array.tasks import Grid
from dask_tiled.array.tiled_array import read_once
from dask_tiled.errors import VerificationError
from dask_tiled.export.alignment import aligned
from dask_tiled.export.encoding import Encoder
from dask_tiled.export.group import DATA
from dask_tiled.export.running import run_on_blocks
from dask_tiled.export.stores import local_path
from dask_tiled.export.targets import Bounds, StorePlace

if TYPE_CHECKING:
    import zarr


def verify_zarr(arr: da.Array, store: Any, *, progress: bool | None = None) -> None:
    """Compare an array with what is stored of it, chunk by chunk, bit by bit.

    Parameters
    ----------
    arr : dask.array.Array
        What was exported.
    store : path-like, zarr store, group or array
        Where to.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    VerificationError
        There is a difference: of shape or dtype, a chunk that is missing or cannot be decoded, or a
        pixel. The error has its place, ``where``, and what was ``expected`` and ``found`` there. It
        is the first difference in its chunk; which chunk is compared first is not defined.
    DatasetError
        Whatever reading the array raises.
    """
    array = _opened(store)
    path = local_path(store) or str(store)
    for what, expected, found in (
        ("shape", arr.shape, array.shape),
        ("dtype", arr.dtype, array.dtype),
    ):
        if expected != found:
            raise VerificationError(
                "another array is stored", path=path, where=what, expected=expected, found=found
            )
    arr = read_once(aligned(arr, array.shards or array.chunks))
    run_on_blocks(
        _compare_block,
        arr,
        _Stored(array, path),
        Grid.of(arr.chunks),
        name=f"verify-zarr-{uuid.uuid4().hex}",  # what is stored may change
        show=progress,
        title="verify_zarr",
    )


def _opened(store: Any) -> zarr.Array[Any]:
    import zarr

    opened = store
    if not isinstance(store, (zarr.Array, zarr.Group)):
        place = store if local_path(store) is None else local_path(store)
        try:
            # Stores that cannot be made read-only, such as zip files, refuse mode "r".
            read_only = getattr(place, "read_only", isinstance(place, str))
            opened = zarr.open(place, mode="r" if read_only else "r+")
        except FileNotFoundError:
            raise VerificationError("nothing is stored", path=str(place)) from None
    if isinstance(opened, zarr.Group):
        opened = opened.get(DATA)
    if not isinstance(opened, zarr.Array):
        raise VerificationError("no array is stored", path=str(store), where=DATA)
    return opened


class _Stored:
    """A stored array, kept from dask's eyes as one value."""

    def __init__(self, array: zarr.Array[Any], path: str) -> None:
        self.array = array
        self.path = path

    def compare(self, box: Bounds, block: npt.NDArray[Any]) -> None:
        """Raise the first difference from a part of the array."""
        prefix = f"{self.array.path}/" if self.array.path else ""
        place = StorePlace(self.array.store, prefix)
        for key, region in Encoder(self.array).keys(box):
            inner = zip(region, box, strict=True)
            expected = block[tuple(slice(s.start - low, s.stop - low) for s, (low, _) in inner)]
            # zarr reads what is missing as zeros.
            if not place.has(key):
                raise VerificationError("a chunk is missing", path=self.path, where=prefix + key)
            try:
                found = np.asarray(self.array[region])
            except Exception as error:
                raise VerificationError(
                    "a chunk cannot be decoded",
                    path=self.path,
                    where=prefix + key,
                    found=str(error),
                ) from error
            self._compare(region, np.asarray(expected), found)

    def _compare(
        self, region: tuple[slice, ...], expected: npt.NDArray[Any], found: npt.NDArray[Any]
    ) -> None:
        first = _first_difference(expected, found)
        if first is None:
            return
        inner = np.unravel_index(first, found.shape)
        place = [int(k) + s.start for k, s in zip(inner, region, strict=True)]
        raise VerificationError(
            "a pixel differs",
            path=self.path,
            where=f"[{', '.join(map(str, place))}]",
            expected=expected[inner],
            found=found[inner],
        )


def _first_difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int | None:
    """Find the first pixel that differs in any bit, so that NaN is equal to itself."""
    if a.dtype.hasobject:
        differs = np.asarray(a != b).reshape(-1)
    else:
        one, other = (np.ascontiguousarray(x).reshape(-1).view("u1") for x in (a, b))
        if np.array_equal(one, other):
            return None
        differs = (one != other).reshape(a.size, -1).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _compare_block(
    block: npt.NDArray[Any], stored: _Stored, grid: Grid, block_id: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    stored.compare(grid.box(block_id), block)
    return np.ones((1,) * block.ndim, dtype=bool)
