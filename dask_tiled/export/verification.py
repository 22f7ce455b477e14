"""Compare a zarr array with what it was exported from."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.array.tasks import Grid
from dask_tiled.array.tiled_array import read_once
from dask_tiled.errors import DatasetError, VerificationError
from dask_tiled.export.alignment import aligned
from dask_tiled.export.encoding import Encoder
from dask_tiled.export.group import DATA
from dask_tiled.export.parts import Array, Pixels
from dask_tiled.export.running import run_on_blocks
from dask_tiled.export.stored_chunks import StoredChunks
from dask_tiled.export.stores import local_path
from dask_tiled.export.targets import Bounds
from dask_tiled.reading.reader import Source, Workspace

if TYPE_CHECKING:
    import zarr


def verify_zarr(store: Any, arr: Any, *, progress: bool | None = None) -> None:
    """Compare an array with what is stored of it, chunk by chunk, bit by bit.

    Parameters
    ----------
    store : path-like, zarr store, group or array
        Where the array was exported to.
    arr : dask.array.Array
        What was exported.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    VerificationError
        There is a difference: of shape or dtype, a chunk that is missing or cannot be decoded, or a
        pixel. The error has its place, ``where``, and what was ``expected`` and ``found`` there. It
        is the first difference in its chunk; which chunk is compared first is not defined.
    DatasetError
        ``arr`` is no dask array, or whatever reading it raises.
    """
    if not isinstance(arr, da.Array):
        swapped = isinstance(store, da.Array)
        raise DatasetError(
            "no dask array",
            expected="a store, then a dask array",
            found=f"{type(store).__name__}, then {type(arr).__name__}",
            hint="Pass the store first, then the array." if swapped else None,
        )
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
        name=f"verify-zarr-{uuid.uuid4().hex}",  # what is stored may change
        show=progress,
        title="verify_zarr",
    )


def _opened(store: Any) -> zarr.Array[Any]:
    import zarr
    from zarr.storage import LocalStore

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
    if isinstance(opened.store, LocalStore):  # workers of a cluster have folders of their own
        root = os.path.abspath(opened.store.root)
        return zarr.open_array(LocalStore(root, read_only=True), path=opened.path, mode="r")
    return opened


class _Stored:
    """A stored array, kept from dask's eyes as one value."""

    def __init__(self, array: zarr.Array[Any], path: str) -> None:
        self.array = array
        self.path = path

    def compare(self, box: Bounds, held: Array | Source) -> None:
        """Raise the first difference from a part of the array: its pixels, or their source."""
        encoder = Encoder(self.array)
        with Workspace() as workspace:
            pixels = Pixels(held, box, workspace)
            chunks = StoredChunks(self.array, encoder)
            for key, region in encoder.keys(box):
                name = chunks.prefix + key
                for place, expected in pixels.parts(region, encoder.chunk):
                    corner = [
                        some.start + k * n
                        for some, k, n in zip(region, place, encoder.chunk, strict=True)
                    ]
                    try:
                        found = chunks.read(key, place, corner, expected.shape)
                    except Exception as error:
                        raise VerificationError(
                            "a chunk cannot be decoded",
                            path=self.path,
                            where=name,
                            found=str(error),
                        ) from error
                    # zarr reads what is missing as zeros.
                    if found is None:
                        raise VerificationError("a chunk is missing", path=self.path, where=name)
                    self._compare(corner, expected, found)

    def _compare(self, corner: Sequence[int], expected: Array, found: Array) -> None:
        first = _first_difference(expected, found)
        if first is None:
            return
        inner = np.unravel_index(first, found.shape)
        place = [int(k) + start for k, start in zip(inner, corner, strict=True)]
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
        words = one.size // 8 * 8  # compared in less time than bytes are
        same = (one[:words].view("u8") == other[:words].view("u8")).all()
        if same and (one[words:] == other[words:]).all():
            return None
        differs = (one != other).reshape(a.size, -1).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _compare_block(
    held: Array | Source, stored: _Stored, grid: Grid, block_id: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    stored.compare(grid.box(block_id), held)
    return np.ones((1,) * len(block_id), dtype=bool)
