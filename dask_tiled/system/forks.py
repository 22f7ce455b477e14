"""Functions that reset the state of a process in its forks."""

from __future__ import annotations

from collections.abc import Callable

from dask_tiled.system.names import offered

_register = offered("os", "register_at_fork")


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in each forked child of this process."""
    if _register is not None:
        _register(after_in_child=function)
