"""Write a file beside a scan, in one step."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import is_url, open_file


def write_beside(path: str, content: bytes, what: str, hint: str) -> None:
    """Write or replace a file.

    Parameters
    ----------
    path : str
    content : bytes
    what, hint : str
        Name of the content and remedy, for errors.

    Raises
    ------
    DatasetError
        The path is a URL, or cannot be written to.
    """
    if is_url(path):
        raise DatasetError(f"{what} cannot be saved next to a remote file", path=path, hint=hint)
    part = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.part")
    try:
        with open_file(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        problem = f"{what} cannot be saved next to the scan"
        raise DatasetError(problem, path=path, found=error.strerror, hint=hint) from error
    finally:
        with suppress(OSError):
            os.unlink(part)
