"""Compile functions of this package even if ``NUMBA_DISABLE_JIT`` switches numba's compiler off.

The variable serves to debug and to measure functions as Python runs them. Kernels only exist as
machine code: intrinsics load and store their words. Functions of users follow the variable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba

CONFIG: Any = numba.config


class _CompilerOn:
    """Context in which numba compiles; threads may enter it at once.

    No lock is held inside: a thread that compiles may import modules that another one imports.
    """

    def __init__(self) -> None:
        self._lock, self._entered, self._switch = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._switch, CONFIG.DISABLE_JIT = CONFIG.DISABLE_JIT, 0
            self._entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                CONFIG.DISABLE_JIT = self._switch


compiler_on = _CompilerOn()


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return ``numba.njit(**options)``, which always returns a function to be compiled."""

    def decorated(function: Any) -> Any:
        with compiler_on:
            return numba.njit(**options)(function)

    return decorated
