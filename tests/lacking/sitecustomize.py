"""Hide names from the package in every process that starts with this folder in PYTHONPATH.

The environment lists them, as ``os.pread libc.madvise``; other packages keep them.
"""

import importlib
import os
import pkgutil
import sys
import types

VARIABLE = "DASK_TILED_LACKING"
SKIPPED = {"names", "windows"}
"""The module that looks names up, and the one that can be imported on Windows only."""


def hide(listed):
    """Import the package that looks names up, without the listed ones."""
    names = {}
    for one in listed:
        module, _, name = one.partition(".")
        names.setdefault(module, set()).add(name)
    without_functions(names.pop("libc", set()))
    whole = {module: importlib.import_module(module) for module in names}
    for module, some in names.items():
        part = sys.modules[module] = types.ModuleType(module)
        vars(part).update({k: v for k, v in vars(whole[module]).items() if k not in some})
    try:
        package = importlib.import_module("dask_tiled.system")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in SKIPPED:
                importlib.import_module(f"dask_tiled.system.{module.name}")
    finally:
        sys.modules.update(whole)


def without_functions(names):
    """Hide functions of the C library."""
    from dask_tiled.system import names as lookup

    libc = lookup.libc
    lookup.libc = lambda name, **options: None if name in names else libc(name, **options)


if listed := os.environ.get(VARIABLE):
    hide(listed.split())
