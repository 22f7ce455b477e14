"""Pipes of the standard output and error whose reader has ended."""

from __future__ import annotations

import errno
import os
from typing import Any

from dask_tiled.system.names import WINDOWS, offered

STANDARD = 1, 2
"""Descriptors of the standard output and the standard error."""
_lacks_reader: Any = offered(WINDOWS, "lacks_reader")


def is_broken_pipe(error: Exception) -> bool:
    """Return whether an error means that the reader of the output has ended.

    Windows reports an invalid argument, as for other errors.
    """
    code = error.errno if isinstance(error, OSError) else None
    unclear = code == errno.EINVAL and _lacks_reader is not None
    return code == errno.EPIPE or (unclear and any(map(_lacks_reader, STANDARD)))


def discard_output() -> None:
    """Discard all further output, also what Python flushes at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in STANDARD:
        os.dup2(nothing, descriptor)
