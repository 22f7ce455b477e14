"""Lazy dask arrays over the files that detectors and microscopes write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_tiled.public import *  # noqa: F403

# The public name is that of the function. Imported now, the package never takes its place later.
import_module("dask_tiled.formats")
del globals()["formats"]


def __getattr__(name: str) -> Any:
    """Bring what is public when the first of it is asked for: dask takes a second to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dask-tiled")
    if name == "__all__" or not name.startswith("__"):
        public = import_module("dask_tiled.public")
        names = {key: getattr(public, key) for key in public.__all__}
        globals().update(names, __all__=public.__all__)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    """List what is public, and nothing else."""
    return [*__getattr__("__all__"), "__version__"]
