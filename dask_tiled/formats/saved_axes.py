"""Axes described by the user, saved in a file next to the scan: ``scan.mib.axes.json``."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dask_tiled.errors import CorruptFileError, DatasetError, OutsideFolderError, StaleFileError
from dask_tiled.files.file import read_head
from dask_tiled.files.paths import OF_AXES, Border, axes_file, border, within
from dask_tiled.files.sidecars import write_beside
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import described, replaced
from dask_tiled.model.description import SAVED_SCAN, Description, facts_of
from dask_tiled.model.indexing import Cut

VERSION = 1
MOST_BYTES = 1 << 20
CHOICES = "dataset", "field", "hdu"
"""Metadata keys that identify an image of a file."""
REMEDY = "Correct the file, or remove it."


class SavedScan(NamedTuple):
    """The shape of a scan, and the part of it that is shown."""

    nav_shape: tuple[int, ...]
    ends: tuple[tuple[int, int], ...]
    """Start and stop along each axis of the array."""

    @classmethod
    def shown_by(cls, desc: Description) -> SavedScan:
        """Return the scan of a description: a saved one, or else all of it."""
        told = facts_of(desc).get(SAVED_SCAN)
        if isinstance(told, Mapping):
            return cls(told["nav_shape"], told["ends"])
        return cls(desc.nav_shape, tuple((0, size) for size in desc.shape))

    def of(self, desc: Description, path: str) -> Description:
        """Return the part of a description, which says where the crop is from.

        Raise a CorruptFileError if the description has no such part.
        """
        sizes = [size for _, size in self.ends]
        if len(sizes) != len(desc.shape) or any(map(operator.gt, sizes, desc.shape)):
            problem, expected = "the saved crop exceeds the scan", f"within {desc.shape}"
            raise CorruptFileError(
                problem, path=path, expected=expected, found=self.ends, hint=REMEDY
            )
        pairs = zip(desc.axes, self.ends, desc.shape, strict=True)
        parts = [f"{a.name} {ends[0]} to {ends[1] - 1}" for a, ends, n in pairs if ends != (0, n)]
        told = " x ".join(map(str, desc.nav_shape)) + " positions"
        told += f", of which {', '.join(parts)}" if parts else ""
        told += f", by {os.path.basename(path)}; nav_shape= opens all"
        cuts = [Cut(start, 1, stop - start) for start, stop in self.ends]
        return desc.cut(cuts).with_facts(**{SAVED_SCAN: {"told": told, **self._asdict()}})


class SavedAxes(NamedTuple):
    """Axes from a file next to a scan, by their names in the scan's own files."""

    path: str
    axes: Mapping[str, Axis]
    scan: SavedScan | None = None

    @classmethod
    def at(cls, path: str, desc: Description) -> SavedAxes:
        """Read the saved axes of a description.

        Raise a CorruptFileError if the file is damaged, or holds no axes, and an OutsideFolderError
        if the file is a link out of its folder.
        """
        known = border()
        if known is not None and desc.files[0].path + OF_AXES != path:  # next to a zarr folder
            known = Border([os.path.dirname(path)], outside=known.outside)
        with within(known):
            picture, (axes, scans) = _picture(desc, path), _read(path)
            return cls(path, axes.get(picture, {}), scans.get(picture))

    def of(self, desc: Description) -> Description:
        """Return the description with the saved axes.

        Raise a CorruptFileError if two axes would have the same name, or the number of labels is
        wrong.
        """
        with _reading_of(self.path):
            axes = replaced(desc.axes, self.axes, desc.shape, self.path)
        return desc.with_axes(axes, os.path.basename(self.path))


def save_axes(desc: Description, scan: SavedScan | None = None) -> str:
    """Write the axes that differ from those of the file to a file next to it; return its path.

    With a scan, also its shape and crop.

    Raise a DatasetError if no axis differs from the file's, the file is remote, or its folder is
    read-only.
    """
    path = axes_file(desc.files[0].path)
    axes = desc.overridden()
    if not axes and scan is None:
        hint = "Calibrate axes with with_axes() first."
        raise DatasetError("there are no changed axes to save", path=desc.files[0].path, hint=hint)
    pictures, scans = _read(path) if os.path.isfile(path) else ({}, {})
    picture = _picture(desc, path)
    pictures[picture] = {**pictures.get(picture, {}), **axes}
    if scan is not None:
        scans[picture] = scan
    told = {
        key: {name: axis.as_json() for name, axis in some.items()} for key, some in pictures.items()
    }
    document: dict[str, Any] = {"dask_tiled_axes": VERSION, "pictures": told}
    if scans:
        document["scans"] = {key: one._asdict() for key, one in scans.items()}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    content = (text + "\n").encode("utf8", "backslashreplace")
    hint = "Pass axes= whenever you open the scan, or copy it to a writable folder."
    write_beside(path, content, "the axes", hint)
    return path


def _picture(desc: Description, path: str) -> str:
    """Return the key of the described image in the saved axes."""
    first, facts = desc.files[0].path, facts_of(desc)
    if first + OF_AXES != path:
        place = os.path.relpath(os.path.dirname(first), path.removesuffix(OF_AXES))
        return place.removeprefix(".")
    picture = next((str(facts[key]) for key in CHOICES if key in facts), "")
    return f"{picture} at level {facts['level']}" if facts.get("level") else picture


def _read(path: str) -> tuple[dict[str, dict[str, Axis]], dict[str, SavedScan]]:
    """Return the saved axes of all images, and the saved scans."""
    with _reading_of(path):
        text = read_head(path, MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise DatasetError("too long", expected=f"at most {MOST_BYTES} bytes", found="more")
        document = json.loads(text)
        if document["dask_tiled_axes"] != VERSION:
            raise DatasetError(
                "another version", expected=VERSION, found=document["dask_tiled_axes"]
            )
        found = {
            picture: {name: _axis(name, told, path) for name, told in axes.items()}
            for picture, axes in document["pictures"].items()
        }
        return found, {key: _scan(told) for key, told in document.get("scans", {}).items()}


def _scan(told: Any) -> SavedScan:
    """Return a saved scan; raise a ValueError if it is none."""
    shape = tuple(map(operator.index, told["nav_shape"]))
    ends = tuple((operator.index(start), operator.index(stop)) for start, stop in told["ends"])
    if min(shape, default=1) < 1 or any(not 0 <= start < stop for start, stop in ends):
        raise ValueError(f"the scan is {told}")
    return SavedScan(shape, ends)


def _axis(name: str, told: Any, path: str) -> Axis:
    """Return an axis as it was saved, or as a user writes it: ``"0.5 nm"``."""
    if not isinstance(told, dict):
        return described(Axis(name), told, path)
    lists = {key: tuple(told.get(key, ())) for key in ("labels", "colours", "coordinates")}
    axis = Axis(**{"name": name, **told, **lists})
    return described(axis, axis, path)  # checks the unit


@contextmanager
def _reading_of(path: str) -> Iterator[None]:
    """Convert errors to a CorruptFileError that names the saved axes and the remedy."""
    problem, told = "the saved axes cannot be read", {"path": path, "hint": REMEDY}
    try:
        yield
    except (OutsideFolderError, StaleFileError):
        raise
    except DatasetError as error:
        told |= {"expected": error.expected, "found": error.found}
        raise CorruptFileError(f"{problem}: {error.problem}", **told) from error
    except KeyError as error:
        raise CorruptFileError(problem, expected=f"an entry {error}", **told) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(problem, found=str(error), **told) from error
