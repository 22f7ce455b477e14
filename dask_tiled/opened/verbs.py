"""Public functions as methods of arrays, with the same signatures and documentation."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class Verb:
    """A public function, whose first argument is an array, as a method of arrays.

    The function is looked up on access, because its module imports this one. The method has its
    signature and documentation.
    """

    def __set_name__(self, _: type, name: str) -> None:
        self.name = name

    def __get__(self, arr: object | None, _: type | None = None) -> Callable[..., Any]:
        import dask_tiled

        function: Callable[..., Any] = getattr(dask_tiled, self.name)
        return function if arr is None else MethodType(function, arr)
