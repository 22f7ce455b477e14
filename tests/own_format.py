"""A format of the tests, registered as users register theirs: frames of 2 x 2 bytes."""

from contextlib import contextmanager

import numpy as np

import dask_tiled
from dask_tiled.formats import tools
from dask_tiled.formats.registry import _registered

BYTES = b"MINE" * 4
"""A file, of which the first frame is its header."""


@contextmanager
def own_format(before=lambda _: None):
    """Register the format in this context, and yield it; ``before`` is called with each path.

    Its functions are local ones: other processes get them by value.
    """

    def describe(paths):
        file = tools.File.only(paths, "mine")
        before(file.path)
        layout = tools.lay_out([file], tools.Record((2, 2), tools.plain(np.dtype("u1"))), 4)
        return tools.Description.of("mine", layout, {})

    def sniff(_, head):
        return None if head.startswith(b"MINE") else "does not begin with MINE"

    mine = dask_tiled.Format("mine", (".mine",), "2 x 2", "one axis", sniff, describe)
    dask_tiled.register_format(mine)
    try:
        yield mine
    finally:
        del _registered["mine"]
