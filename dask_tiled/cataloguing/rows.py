"""A row of a catalogue: a picture of a dataset, or a damaged file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dask_tiled.cataloguing.headers import PictureHeader
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import open_dataset


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A picture of a dataset, or a file that cannot be opened.

    Attributes
    ----------
    path : str
        The path to open, absolute.
    picture : str
        Name of the picture; empty if the file has only one.
    options : dict
        Options of :func:`open_dataset` that the picture needs.
    format : str
        Name of the format; empty if the file cannot be opened.
    shape : tuple of int
        Navigation shape, then signal shape.
    nav_ndim : int
        Number of navigation axes.
    dtype : str
        Type of the pixels.
    nbytes : int
        Bytes of the array.
    axes : tuple of dict
        Name, size, scale, offset and units of each axis.
    instrument : dict
        Facts about the instrument: values and units, by the names of :class:`Instrument`.
    doubts : tuple of dict
        Code, text and settling option of each :class:`Doubt`.
    missing : int
        Number of missing frames.
    lacking : str
        How many frames are there; empty if nothing is known to be lacking.
    problem : str
        Why it cannot be opened; empty if it can.
    files : tuple of str
        All files of the dataset.
    stored_bytes : int
        Bytes of the files.
    modified : str
        Latest change of the files, in ISO 8601, UTC.
    mtime_ns : int
        The same in nanoseconds since 1970.
    thumbnail : bytes
        A PNG image; empty without one.

    Examples
    --------
    >>> import dask_tiled
    >>> (row,) = dask_tiled.catalogue(dask_tiled.samples.gold())
    >>> isinstance(row, dask_tiled.CatalogueRow), row.format, row.shape
    (True, 'mib', (60, 64, 128, 128))
    >>> row.open()
    dask.array<mib, shape=(60, 64, 128, 128), dtype=uint16, chunksize=(...), ...>
    """

    path: str
    picture: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    shape: tuple[int, ...] = ()
    nav_ndim: int = 0
    dtype: str = ""
    nbytes: int = 0
    axes: tuple[dict[str, Any], ...] = ()
    instrument: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    doubts: tuple[dict[str, str], ...] = ()
    missing: int = 0
    lacking: str = ""
    problem: str = ""
    files: tuple[str, ...] = ()
    stored_bytes: int = 0
    modified: str = ""
    mtime_ns: int = field(default=0, repr=False)
    thumbnail: bytes = field(default=b"", repr=False)

    @classmethod
    def of(
        cls, path: str, form: str, picture: PictureHeader, files: tuple[str, ...], **more: Any
    ) -> CatalogueRow:
        """Return the row of a picture."""
        told = picture._asdict()
        return cls(path, told.pop("name"), format=form, files=files, **told, **more)

    def open(self, **options: Any) -> TiledArray:
        """Open the picture.

        Parameters
        ----------
        **options
            More options of :func:`open_dataset`.

        Returns
        -------
        TiledArray
            The array.

        Raises
        ------
        DatasetError
            As for :func:`open_dataset`.
        """
        arr: Any = open_dataset(self.path, **{**self.options, **options})
        return arr

    @property
    def date(self) -> str:
        """Date of the acquisition, in ISO 8601; empty if the file has none."""
        return str(self.instrument["date"][0]) if "date" in self.instrument else ""

    @property
    def code(self) -> str:
        """The call that opens the picture."""
        told = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"dask_tiled.open_dataset({self.path!r}{told})"

    def as_dict(self) -> dict[str, Any]:
        """Return the values by the names of columns; facts have their unit in the name."""
        facts = {
            f"{name} ({unit})" if unit else name: value
            for name, (value, unit) in self.instrument.items()
        }
        return {
            "path": self.path,
            "picture": self.picture,
            "options": self.options,
            "format": self.format,
            "shape": self.shape,
            "dtype": self.dtype,
            "nbytes": self.nbytes,
            "axes": self.axes,
            "files": len(self.files),
            "stored_bytes": self.stored_bytes,
            "modified": self.modified,
            "missing_frames": self.missing,
            "lacking": self.lacking,
            "doubts": self.doubts,
            "problem": self.problem,
            **facts,
        }


def modified_at(mtime_ns: int) -> str:
    """Format a time of the last change."""
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9, UTC).isoformat()
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return ""


def label_of(row: CatalogueRow) -> str:
    """Return the name of a file, with the name of the picture."""
    name = os.path.basename(row.path)
    return f"{name} [{row.picture}]" if row.picture else name


def shape_text(row: CatalogueRow) -> str:
    """Return the shape as text, such as 24x32x64x64."""
    return "x".join(map(str, row.shape))


def axes_text(row: CatalogueRow) -> str:
    """Return the axes with their sizes and steps."""
    axes = []
    for one in row.axes:
        spacing = f" ({one['spacing']})" if one["spacing"] else ""
        axes.append(f"{one['name']} {one['size']}{spacing}")
    return ", ".join(axes)


def doubts_text(row: CatalogueRow) -> str:
    """Return the doubts, with the options that settle them."""
    return "; ".join(f"{one['text']}: {one['settle']}" for one in row.doubts)
