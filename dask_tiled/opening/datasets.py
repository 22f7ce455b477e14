"""All datasets of a file, by name: listed at once, opened one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dask.array as da

from dask_tiled.errors import nearest
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.describing import Path
from dask_tiled.opening.listing import Contents, list_contents

MOST_NAMED = 20
"""Name at most this many datasets in an error."""


class Datasets(Mapping[str, da.Array]):
    """The datasets of a file by name, each opened when it is accessed.

    Prints as a table of names, shapes, dtypes and axes, for which headers are read, but no array is
    opened.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def path(self) -> Any:
        """The path or paths of the file, absolute."""
        return self._contents.path

    def __getitem__(self, name: str) -> da.Array:
        if name not in self:
            names = [*self]
            listed = ", ".join(map(repr, names[:MOST_NAMED])) + ", ..." * (len(names) > MOST_NAMED)
            hint = nearest(name, names) if isinstance(name, str) else None
            raise KeyError(f"no dataset {name!r}; expected one of {listed}. {hint or ''}".rstrip())
        contents = self._contents
        with contents.together.described():
            opened: da.Array = open_dataset(contents.path, **contents.arguments(name))
        return opened

    def __contains__(self, name: object) -> bool:
        return name in self._contents.keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents.keys)

    def __len__(self) -> int:
        return len(self._contents.keys)

    def __repr__(self) -> str:
        count = f"{len(self)} datasets" if len(self) > 1 else "1 dataset"
        return f"{count} of {self._contents.label}\n{text_table(self._contents.rows())}"

    def _repr_html_(self) -> str:
        return html_table(self._contents.rows())


def open_datasets(
    path: Path | Sequence[Path], format: str | None = None, **options: Any
) -> Datasets:
    """Open all datasets of a file, as a mapping of names to lazy arrays.

    The names are listed when the file is opened: those of its pictures, scenes, series, HDUs,
    fields of wells or arrays. An array is opened, and its headers are read, when it is asked for.

    Parameters
    ----------
    path : path-like or sequence of path-like
        As for :func:`open_dataset`.
    format : str, optional
        Name of the format; by default it is detected.
    **options
        Options of :func:`open_dataset` except ``dataset``, for each dataset.

    Returns
    -------
    Datasets
        A mapping of names to :class:`TiledArray`, in the order of the file; it prints as a
        table. Datasets of the same name have their numbers as suffix, and "/" is replaced by "_",
        except in fields of a plate of OME-Zarr, such as "A/1/0", which are listed instead of wells.
        The only dataset of a file is ``data``. HDF5 datasets with one axis are left out, unless
        they have a title; so are the smaller levels of pyramids.

    Raises
    ------
    DatasetError
        The file cannot be read, or ``dataset`` is given. If a dataset cannot be opened, accessing
        it raises the error; others are not affected.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> from dask_tiled.testing import write_dm
    >>> images = {"map": np.ones((4, 6), "float32")}
    >>> path = write_dm("two.dm4", np.ones((8, 8), "uint16"), name="survey", more=images)
    >>> datasets = dask_tiled.open_datasets(path)
    >>> datasets
    2 datasets of two.dm4
    name    shape   dtype    axes
    survey  (8, 8)  uint16   y, x
    map     (4, 6)  float32  y, x
    >>> float(datasets["map"].sum())
    24.0
    """
    return Datasets(list_contents(path, format, options))
