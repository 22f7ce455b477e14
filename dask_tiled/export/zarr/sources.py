"""Detect arrays that may read the store which an export replaces."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import dask.array as da
from cloudpickle import CloudPickler


class _Stores(CloudPickler):  # type: ignore[misc] # untyped
    """Finds the zarr stores in a value, without pickling their content."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=5, buffer_callback=lambda _: False)
        self.found: list[Any] = []

    def persistent_id(self, value: Any) -> str | None:
        from zarr.abc.store import Store

        if not isinstance(value, Store):
            return None
        self.found.append(value)
        return "store"


def may_read(arrays: Sequence[da.Array], store: Any) -> bool:
    """Return whether the graph of an array contains a zarr store, or may contain it."""
    stores = _Stores()
    try:
        stores.dump([arr.dask for arr in arrays])
    except Exception:  # noqa: BLE001 - an unpicklable graph may hold a store
        return True
    return any(_is_same(one, store) for one in stores.found)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two stores are the same location."""
    from zarr.storage import MemoryStore

    if isinstance(one, MemoryStore) and isinstance(other, MemoryStore):
        held = [vars(store).get("_store_dict") for store in (one, other)]  # private attribute
        return held[0] is held[1]  # true if zarr renames it: they may be the same
    return type(one) is type(other) and bool(one == other)
