"""Public functions as methods of arrays: what is typed behind a dot is what the function does."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class Verb:
    """A public function, whose first argument is an array, as a method of arrays.

    It is looked up when it is asked for, since the functions are made of arrays. So the method has
    its signature and its documentation.
    """

    def __set_name__(self, _: type, name: str) -> None:
        self.name = name

    def __get__(self, arr: object | None, _: type | None = None) -> Callable[..., Any]:
        import dask_tiled

        function: Callable[..., Any] = getattr(dask_tiled, self.name)
        return function if arr is None else MethodType(function, arr)
