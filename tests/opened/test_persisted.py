"""The registry of arrays is shared by threads."""

import gc

import dask.array as da

from dask_tiled.opened import persisted


def test_arrays_are_added_while_others_are_removed(monkeypatch):
    """Adding an array may run code that adds another, as other threads may at any time."""
    monkeypatch.setattr(persisted, "MOST_FOLLOWED", 10)
    arr = da.zeros(1)
    monkeypatch.setattr(persisted, "_arrays", {f"{k}": [] for k in range(5000)})

    def add(*_):
        persisted._arrays[f"more-{len(persisted._arrays)}"] = []

    before = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(1)
    try:
        persisted.remember(arr, "new")
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(add)
    assert persisted._arrays["new"][0]() is arr
    assert "0" not in persisted._arrays
