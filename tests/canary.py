"""Hide dask's names from the package one by one, and print whether results stay right.

Each line is JSON: the name, warnings, wrong results, and whether open_dataset returns a TiledArray.
Each name is hidden in a fork of one process, which has compiled all kernels.
"""

import gc
import json
import logging
import os
import sys
import tempfile
import traceback
import types
import warnings
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import xarray as xr

PIXELS = np.random.default_rng(0).integers(0, 90, (6, 4, 6, 8)).astype("u2")
FLOATS = np.where(PIXELS == 3, np.nan, PIXELS / 7).astype("f4")
MASK = np.arange(48.0).reshape(6, 8)
BELOW = "engine", "errors", "formats.", "kernels", "model", "reading", "remote"
UNDER = tuple(f"dask_tiled.{x}" for x in BELOW)
"""Modules that do not import dask_tiled.graphs: they stay imported, with their compiled kernels."""

EXPRESSIONS = {
    "all pixels": lambda a, _: a,
    "frame": lambda a, _: a[1, 2],
    "sum": lambda a, _: a.sum((0, 1)),
    "sum of floats": lambda _, b: b[:, :, 1:3].sum(axis=(2, 3)),
    "prod": lambda a, _: (a % 3 + 1).prod(axis=0),
    "mean": lambda a, _: a.mean((2, 3)),
    "var": lambda a, _: a.var((0, 1)),
    "std": lambda a, _: a.std(),
    "nansum": lambda _, b: np.nansum(b, axis=(0, 1)),
    "nanprod": lambda _, b: np.nanprod(b[:, :1, :2, :2] / 6, axis=(0, 1)),
    "nanmean": lambda _, b: np.nanmean(b, axis=(0, 1)),
    "nanstd": lambda _, b: np.nanstd(b, axis=(0, 1)),
    "nanmin": lambda _, b: np.nanmin(b, axis=(0, 1)),
    "nanmax": lambda _, b: np.nanmax(b, axis=(2, 3)),
    "min": lambda a, _: a.min((2, 3)),
    "max": lambda a, _: a.max((0, 1)),
    "argmin": lambda a, _: a.argmin(axis=0),
    "argmax": lambda a, _: a.argmax(axis=1),
    "any": lambda a, _: (a > 88).any(axis=(2, 3)),
    "all": lambda a, _: (a > 1).all(axis=(2, 3)),
    "step by step": lambda a, _: np.sqrt((a.astype("f4") + 3) * MASK.astype("f4")).mean((0, 1)),
    "slice": lambda a, _: (a + 1)[1:5:2, None, 1, ::-1],
    "transpose": lambda a, _: (a * 2).T.sum(axis=0),
    "reshape": lambda a, _: (a * 2).reshape(24, 48).sum(axis=1),
    "matmul": lambda a, _: a @ np.ones((8, 2)),
    "tensordot": lambda a, _: _module(a).tensordot(a, MASK, axes=((2, 3), (0, 1))),
    "einsum": lambda a, _: _module(a).einsum("abcd,cd->ab", a, MASK),
    "concatenate": lambda a, _: _module(a).concatenate([a, a[:2] + 1]).sum(axis=(2, 3)),
    "stack": lambda a, _: _module(a).stack([a, a + 1], axis=1).max(axis=(3, 4)),
    "histogram": lambda a, _: _module(a).histogram(a, bins=9, range=(0, 90))[0],
    "points": lambda a, _: a.vindex[[0, 3], [1, 2]] if _is_dask(a) else a[[0, 3], [1, 2]],
    "binned": lambda a, _: _binned(a, {0: 2, 2: 3}),
    "wrapped": lambda a, _: _wrapped(a).sum(axis=(0, 1)),
}


def _is_dask(x):
    return isinstance(x, da.Array)


def _module(x):
    return da if _is_dask(x) else np


def _binned(x, axes):
    if _is_dask(x):
        return da.coarsen(np.sum, x, axes)
    return x.reshape(3, 2, 4, 2, 3, 8).sum((1, 4))


def _wrapped(x):
    return xr.open_dataset(_wrapped.path, engine="dask_tiled", chunks={}).data if _is_dask(x) else x


def look(path, other, name=None, module=None):
    """Compute all expressions with a name of a module hidden from the package."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with hidden(module, name):  # the public names import modules without names of dask, too
            from dask_tiled.opened.building import missing
            from dask_tiled.opened.tiled_array import TiledArray
            from dask_tiled.opening.arrays import open_dataset

            missing()
        opened = open_dataset(path, chunks=(3, 4, 6, 8))
        floats = open_dataset(other, chunks=(2, 2, 6, 8))
        wrong = {}
        for title, function in EXPRESSIONS.items():
            expected = function(PIXELS, FLOATS)
            try:
                found = dask.compute(function(opened, floats))[0]
                np.testing.assert_allclose(found, expected, rtol=1e-5)
                if found.dtype != expected.dtype and title not in ("mean", "nanmean"):
                    wrong[title] = f"{found.dtype} != {expected.dtype}"
            except Exception as error:  # noqa: BLE001 - every failure is reported
                wrong[title] = repr(error)
    told = [str(x.message) for x in warned if issubclass(x.category, RuntimeWarning)]
    is_opened = isinstance(opened, TiledArray)
    return {"name": name, "module": module, "warned": told, "wrong": wrong, "opened": is_opened}


@contextmanager
def hidden(module, name):
    """Hide a name of a dask module from imports within the block; dask itself keeps it."""
    if module is None:
        yield
        return
    whole = sys.modules[module]
    part = types.ModuleType(module)
    vars(part).update({key: value for key, value in vars(whole).items() if key != name})
    sys.modules[module] = part
    try:
        yield
    finally:
        sys.modules[module] = whole


def print_line(result):
    """Print a result as a line of JSON at once."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def forked(function):
    """Print the result of a function called in a fork of this process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        print_line(function())
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(0)


def main():
    """Hide each dask name that the package lists."""
    logging.getLogger("dask_tiled").setLevel(logging.ERROR)  # kernels may have to be compiled
    dask.config.set(scheduler="synchronous")
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder, "pixels.npy"), Path(folder, "floats.npy")
        np.save(path, PIXELS)
        np.save(other, FLOATS)
        _wrapped.path = path
        print_line(look(path, other))
        from dask_tiled.graphs.names import NAMES

        names = {module: [*some] for module, some in NAMES.items()}
        for module in [x for x in sys.modules if x.startswith("dask_tiled")]:
            if not module.startswith(UNDER):
                del sys.modules[module]
        dask.config.set(array_optimize=None)
        gc.collect()
        gc.freeze()  # keeps memory pages shared with forks
        for module, some in names.items():
            for name in some:
                forked(lambda name=name, module=module: look(path, other, name, module))


if __name__ == "__main__":
    main()
