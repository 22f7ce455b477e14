"""The catalogue of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any, overload

from dask_tiled.cataloguing.discovering import SECONDS, Discovery, FoundDataset
from dask_tiled.cataloguing.headers import PictureHeader
from dask_tiled.cataloguing.page import write_page
from dask_tiled.cataloguing.rows import (
    CatalogueRow,
    axes_text,
    doubts_text,
    label_of,
    modified_at,
    shape_text,
)
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.tables import write_csv, write_json
from dask_tiled.cataloguing.thumbnail_jobs import with_thumbnails
from dask_tiled.errors import check_seconds, format_bytes, require_extra
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.system.folders import user_caches

Path = str | os.PathLike[str]
MOST_SHOWN = 20
"""Maximum number of rows printed."""
LONGEST = 60
"""Maximum number of characters of a printed cell."""


class Catalogue(Sequence[CatalogueRow]):
    """The pictures below a folder, and the files that cannot be opened: a row each.

    A sequence that prints as a table.

    Attributes
    ----------
    others : int
        Number of files that belong to no dataset.
    problems : dict
        Why folders and links cannot be followed, by path.
    read : int
        Number of files whose headers were read.

    Examples
    --------
    >>> import dask_tiled
    >>> found = dask_tiled.catalogue(dask_tiled.samples.gold())
    >>> isinstance(found, dask_tiled.Catalogue), len(found), found.others
    (True, 1, 0)
    """

    def __init__(
        self, rows: Sequence[CatalogueRow], others: int, problems: dict[str, str], read: int
    ) -> None:
        self._rows = tuple(rows)
        self.others, self.problems, self.read = others, problems, read

    @overload
    def __getitem__(self, key: int) -> CatalogueRow: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[CatalogueRow]: ...
    def __getitem__(self, key: int | slice) -> CatalogueRow | Sequence[CatalogueRow]:
        """Return a row, or some."""
        return self._rows[key]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def summary(self) -> dict[str, int]:
        """Return the numbers of rows, datasets, problems and other files, and the bytes."""
        stored = {row.path: row.stored_bytes for row in self}
        return {
            "pictures": sum(not row.problem for row in self),
            "datasets": len(stored),
            "stored_bytes": sum(stored.values()),
            "cannot_be_opened": sum(bool(row.problem) for row in self),
            "in_doubt": sum(bool(row.doubts) for row in self),
            "incomplete": sum(bool(row.lacking) for row in self),
            "other_files": self.others,
            "not_followed": len(self.problems),
        }

    def to_pandas(self) -> Any:
        """Return a table with a column for each fact about the instrument.

        Returns
        -------
        pandas.DataFrame
            A row for each picture.

        Raises
        ------
        ImportError
            pandas is not installed.

        Examples
        --------
        >>> import dask_tiled
        >>> table = dask_tiled.catalogue(dask_tiled.samples.gold()).to_pandas()
        >>> table["dtype"][0]
        'uint16'
        """
        pandas = require_extra("parquet", "pandas")
        return pandas.DataFrame([row.as_dict() for row in self])

    def to_html(self, path: Path) -> str:
        """Write one page of HTML with thumbnails, which needs no other file.

        It is searched and sorted in a browser. Each row copies the code that opens it.

        Parameters
        ----------
        path : path-like
            File to write; an earlier page is replaced.

        Returns
        -------
        str
            The path.

        Raises
        ------
        DatasetError
            The path exists, and is no catalogue; or it cannot be written.
        """
        folder = _common_folder([row.path for row in self])
        return write_page(path, self, self.told(), folder)

    def to_csv(self, path: Path) -> str:
        """Write a CSV file, UTF-8; replace an earlier catalogue.

        Texts that begin with ``=``, ``+``, ``-`` or ``@`` follow a ``'``, as spreadsheets would
        run them as formulas.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        str
            The path.

        Raises
        ------
        DatasetError
            The path exists, and is no catalogue; or it cannot be written.
        """
        return write_csv(path, self)

    def to_json(self, path: Path) -> str:
        """Write a JSON file; replace an earlier catalogue.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        str
            The path.

        Raises
        ------
        DatasetError
            The path exists, and is no catalogue; or it cannot be written.
        """
        return write_json(path, self, self.summary() | {"problems": self.problems})

    def rows(self, most: int = MOST_SHOWN) -> list[tuple[str, ...]]:
        """Return the first rows as text, after a header row."""
        folder = _common_folder([row.path for row in self])
        shown: list[tuple[str, ...]] = [("file", "format", "shape", "dtype", "size", "about")]
        for row in self[:most]:
            place = os.path.relpath(os.path.dirname(row.path) or ".", folder) if folder else ""
            name = label_of(row) if place in {".", ""} else os.path.join(place, label_of(row))
            about = row.problem or row.lacking or doubts_text(row) or axes_text(row)
            size = format_bytes(row.stored_bytes)
            cells = name, row.format, shape_text(row), row.dtype, size, about
            shown.append(tuple(map(_cropped, cells)))
        if len(self) > most:
            shown.append(("...", f"{len(self) - most} more", "", "", "", ""))
        return shown

    def __repr__(self) -> str:
        return f"{self.told()}\n{text_table(self.rows())}" if self else self.told()

    def _repr_html_(self) -> str:
        return html_table([(self.told(),), *self.rows()])

    def told(self) -> str:
        """Return the numbers as a line."""
        told = self.summary()
        datasets = told["datasets"] - len({row.path for row in self if not row.format})
        parts = [_counted(datasets, "dataset"), _counted(told["pictures"], "picture")]
        parts += [format_bytes(told["stored_bytes"])]
        kinds = ("cannot_be_opened", "incomplete", "in_doubt", "not_followed")
        parts += [f"{told[key]} {key.replace('_', ' ')}" for key in kinds if told[key]]
        parts += [_counted(self.others, "other file")] * bool(self.others)
        return ", ".join(parts)


def catalogue(
    paths: Path | Sequence[Path],
    *,
    pattern: str | Sequence[str] | None = None,
    recursive: bool = True,
    thumbnails: bool = True,
    keep: bool | Path = False,
    seconds: float = SECONDS,
    progress: Callable[[FoundDataset], object] | None = None,
) -> Catalogue:
    """List the datasets and pictures below a folder; only headers are read, and thumbnails made.

    The files of a series, the data files of a master, the files of an OME-TIFF set, and headers
    beside their data are one dataset, which is listed once. Child processes read the headers: a
    damaged file that hangs or ends its reader is a row with a problem.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        Folders and files.
    pattern : str or sequence of str, optional
        Patterns of file names, such as ``"*_master.h5"``; by default all files are tried.
    recursive : bool
        Whether to search the folders in folders.
    thumbnails : bool
        Make a thumbnail of each picture. At most about 4 MiB are read of one; of large images,
        some pixels or a level of the pyramid.
    keep : bool or path-like
        Keep the headers and thumbnails in an SQLite file for later calls, which read only files
        that are new or have changed: at this path, or in the user's cache folder if True. If the
        file cannot be used any more, there is a warning, and all headers are read.
    seconds : float
        CPU seconds for the headers of a file; by the clock, they may take ten times as long.
    progress : callable, optional
        Function that is called with each dataset that is found.

    Returns
    -------
    Catalogue
        A sequence of :class:`CatalogueRow`, which prints as a table, and is saved by
        :meth:`Catalogue.to_html`, :meth:`Catalogue.to_csv`, :meth:`Catalogue.to_json`, or as a
        DataFrame of pandas.

    Raises
    ------
    FileNotFoundError
        A path does not exist.
    DatasetError
        An argument is invalid, or ``keep`` is another file.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> from dask_tiled.testing import write_mib
    >>> import os; os.mkdir("night")
    >>> path = write_mib("night/scan.mib", np.ones((24, 32, 64, 64), "uint16"))
    >>> np.save("night/image.npy", np.ones((512, 512), "float32"))
    >>> dask_tiled.catalogue("night")
    2 datasets, 2 pictures, 7.283 MiB
    file       format  shape        dtype    size       about
    image.npy  npy     512x512      float32  1 MiB      y 512, x 512
    scan.mib   mib     24x32x64x64  uint16   6.283 MiB  scan_y 24, scan_x 32, y 64, x 64
    """
    place = os.path.join(user_caches(), "dask-tiled", "headers.sqlite") if keep is True else keep
    kept = closing(HeaderStore(place)) if place else nullcontext()
    with kept as store:
        options: dict[str, Any] = {"pattern": pattern, "recursive": recursive, "store": store}
        search = Discovery(paths, seconds=check_seconds("seconds", seconds), **options)
        rows = list[CatalogueRow]()
        with closing(iter(search)) as datasets:
            for found in datasets:
                rows += _rows_of(found)
                if progress is not None:
                    progress(found)
        if thumbnails:
            rows = [*with_thumbnails(rows, store)]
    return Catalogue(rows, search.others, search.problems, search.read)


def _rows_of(found: FoundDataset) -> Iterator[CatalogueRow]:
    nbytes, mtime_ns = found.stamp
    told = {"stored_bytes": nbytes, "modified": modified_at(mtime_ns), "mtime_ns": mtime_ns}
    for picture in found.pictures or (PictureHeader("", {}, problem=found.problem),):
        yield CatalogueRow.of(found.path, found.format, picture, found.files, **told)


def _common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder that holds all paths; empty if there is none."""
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # no paths, or several drives
        return ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _cropped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
