"""Lazy dask arrays over the files that detectors and microscopes write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_tiled.public import *  # noqa: F403

# ``formats`` is a public function. Importing the package now prevents it from replacing the
# function later.
import_module("dask_tiled.formats")
del globals()["formats"]


def __getattr__(name: str) -> Any:
    """Import the public names when the first of them is used: importing dask takes a second."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dask-tiled")
    if name == "torch":  # not imported with the other names, which need no PyTorch
        return import_module("dask_tiled.torch")
    if name == "__all__" or not name.startswith("__"):
        public = import_module("dask_tiled.public")
        names = {key: getattr(public, key) for key in public.__all__}
        globals().update(names, __all__=public.__all__)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    """List the public names."""
    return [*__getattr__("__all__"), "__version__"]
