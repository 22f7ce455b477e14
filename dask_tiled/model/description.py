"""The description of a file as a value: shape, axes, units, metadata and layout."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from dask_tiled.errors import TruncatedFileError, format_bytes, printable
from dask_tiled.files.file import File, is_filling
from dask_tiled.model.axes import Axis, nav_axes, sig_axes, usual_units
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.doubts import INCOMPLETE, Doubt, Suggestion, left_over, suggested, surplus
from dask_tiled.model.indexing import Cut, Index
from dask_tiled.model.instrument import Instrument
from dask_tiled.model.layout import Layout
from dask_tiled.model.listing import Listing
from dask_tiled.model.tables import html_table, text_table

LONGEST_VALUE, MOST_LINES = 1000, 2000
"""Limits of the metadata shown in a notebook: characters of each value, and lines."""
VOLUMES = "volumes"
"""Metadata key: number of files whose frames differ from those of the array."""
CALIBRATED, RENAMED = "calibrated", "renamed"
"""Metadata keys of a format: the source of each axis that the file itself does not describe, and
the names of renamed axes in the file."""
BY_USER = "the user"
SAVED_SCAN = "saved_scan"
"""Metadata key: which part of a scan is shown, as it was saved, and a text that says so."""


@dataclass(frozen=True, slots=True, repr=False)
class Description:
    """Description of a file or a series of files, without open handles; it can be pickled.

    Attributes
    ----------
    format : str
        Name of the format.
    layout : Layout
        Location of every byte.
    axes : tuple of Axis
        Navigation axes, then signal axes.
    nav_ndim : int
        Number of navigation axes.
    metadata : mapping
        Header fields and inferred values, as plain nested dicts.
    conversion : Conversion, optional
        Conversion of the stored pixels; by default none.
    base_shape : tuple of int
        Shape of the blocks in which the file is stored: chunks of an HDF5 file, tiles of a TIFF
        file. It has the axes of the files, ``layout.grid`` and ``layout.sig_shape``, regardless of
        the selection. Empty if the file has no blocks.
    instrument : Instrument
        Beam energy, detector, date and so on, with the same names and units for all formats: a
        mapping of names to :class:`~dask_tiled.Fact`.
    doubts : tuple of Doubt
        Choices that the file does not settle: what was assumed, and the option that settles it.

    Examples
    --------
    >>> import dask_tiled
    >>> desc = dask_tiled.describe(dask_tiled.samples.brain())
    >>> desc.dims, desc.axes[2].units, len(desc.missing)
    (('z', 'y', 'x'), 'mm', 0)
    """

    format: str
    layout: Layout
    axes: tuple[Axis, ...]
    nav_ndim: int
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    base_shape: tuple[int, ...] = ()
    conversion: Conversion = field(default=None)  # type: ignore[assignment]
    instrument: Instrument = field(default_factory=Instrument, hash=False)
    doubts: tuple[Doubt, ...] = ()

    def __post_init__(self) -> None:
        conversion: Conversion | None = self.conversion
        if conversion is None:
            conversion = Conversion.of(self.layout.dtype, self.layout.files[0].path)
            object.__setattr__(self, "conversion", conversion)

    @classmethod
    def of(
        cls,
        format: str,
        layout: Layout,
        metadata: Mapping[str, Any],
        axes: tuple[Axis, ...] = (),
        *,
        base_shape: tuple[int, ...] = (),
        scaling: tuple[float, float] | None = None,
    ) -> Description:
        """Describe a layout; axes get default names unless given, and usual spellings of units."""
        nav = len(layout.nav_shape)
        axes = tuple(map(usual_units, axes)) or nav_axes(nav) + sig_axes(len(layout.sig_shape))
        conversion = Conversion.of(layout.dtype, layout.files[0].path, scaling=scaling)
        return cls(format, layout, axes, nav, metadata, base_shape, conversion)

    @property
    def shape(self) -> tuple[int, ...]:
        """Navigation shape, then signal shape."""
        return self.layout.shape

    @property
    def nav_shape(self) -> tuple[int, ...]:
        """Shape of the scan, in (y, x) order."""
        return self.shape[: self.nav_ndim]

    @property
    def sig_shape(self) -> tuple[int, ...]:
        """Shape of a frame, in (y, x) order."""
        return self.shape[self.nav_ndim :]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def dtype(self) -> np.dtype:
        """Type of the pixels, in native byte order."""
        return self.conversion.dtype

    @property
    def missing(self) -> Index:
        """Positions of missing frames, counted in C order of ``nav_shape``."""
        return self.layout.missing()

    @property
    def nbytes(self) -> int:
        """Size of the decoded array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def files(self) -> tuple[File, ...]:
        """The files, in the order of their frames."""
        return self.layout.files

    @property
    def calibrations(self) -> Mapping[str, str]:
        """Source of the axes that the file itself does not describe, by axis name."""
        return self._told(CALIBRATED)

    def _told(self, key: str) -> Mapping[str, str]:
        found = facts_of(self).get(key)
        return found if isinstance(found, Mapping) else {}

    @property
    def saved_scan(self) -> str:
        """Which part of the scan is shown, as text; empty unless it was saved."""
        return str(self._told(SAVED_SCAN).get("told", ""))

    def overridden(self, by: str | None = None) -> dict[str, Axis]:
        """Return the axes that differ from the file's, by their names in the file.

        Only those whose source begins with ``by``, if it is given.
        """
        former = self._told(RENAMED)
        pairs = ((axis, self.calibrations.get(axis.name)) for axis in self.axes)
        return {
            former.get(x.name, x.name): x for x, told in pairs if told and told.startswith(by or "")
        }

    def with_axes(self, axes: tuple[Axis, ...], by: str) -> Description:
        """Return the description with other axes; record ``by`` as the source of each change."""
        if axes == self.axes:
            return self
        former, told = self._told(RENAMED), self.calibrations
        calibrated, renamed = dict[str, str](), dict[str, str]()
        for old, new in zip(self.axes, axes, strict=True):
            name = former.get(old.name, old.name)
            if new != old or old.name in told:
                calibrated[new.name] = told[old.name] if new == old else by
            if new.name != name:
                renamed[new.name] = name
        facts = {CALIBRATED: calibrated} | ({RENAMED: renamed} if renamed or former else {})
        return replace(self.with_facts(**facts), axes=axes)

    def with_frames(
        self, nav_shape: tuple[int, ...], first: int = 0, numbers: Index | None = None
    ) -> Description:
        """Return all or some of the frames in another navigation shape.

        Axes keep their names and scales if only the first one has another length, or if they have
        the names of a scan.

        Parameters
        ----------
        nav_shape : tuple of int
        first : int
            Number of the first frame in the result; the others follow it.
        numbers : int64 array, optional
            Number of the frame at each position, if frames are not consecutive. The names and
            scales of the axes are lost.

        Raises
        ------
        DatasetError
            The description is that of a slice along the navigation axes.
        """
        desc, axes, sig = self, self.axes[: self.nav_ndim], self.axes[self.nav_ndim :]
        usual = tuple(axis.name for axis in nav_axes(len(nav_shape)))
        is_scan = self.dims[: self.nav_ndim] == usual
        moved = nav_shape[1:] != self.nav_shape[1:] and not is_scan
        if len(nav_shape) != self.nav_ndim or moved or numbers is not None:
            facts = {key: told for key in (CALIBRATED, RENAMED) if (told := self._told(key))}
            names, axes = {axis.name for axis in sig}, nav_axes(len(nav_shape))
            kept = {k: {x: told[x] for x in told if x in names} for k, told in facts.items()}
            desc = self.with_facts(**kept) if kept else self
        layout = self.layout.show(nav_shape, first, numbers)
        return replace(desc, layout=layout, axes=axes + sig, nav_ndim=len(nav_shape))

    @property
    def units(self) -> str:
        """Unit of the pixels; empty if the file has none or corrections are applied."""
        units = facts_of(self).get("units", "")
        return units if isinstance(units, str) and self.conversion.corrections is None else ""

    def shifted(self, by: int) -> Description:
        """Skip ``by`` frames at the start; if negative, begin with ``-by`` missing frames.

        Frames that are not in file order keep their positions.
        """
        selection = self.layout.selection
        if selection.numbers is None:
            return self.with_frames(self.nav_shape, selection.first + by)
        there = ~selection.are_absent(selection.numbers)
        numbers = np.where(there, selection.numbers + by, -1)
        shown = self.with_frames(self.nav_shape, numbers=numbers)
        return replace(shown, axes=self.axes, metadata=self.metadata)

    @property
    def complete(self) -> bool:
        """Whether the files lack nothing, as far as they tell: no frame, no file of a series.

        Exports record it, and restore it when they are opened.
        """
        return not self.lacking()

    def lacking(self) -> str:
        """Return how many frames are there, as text; empty if nothing is known to be lacking."""
        count, missing = math.prod(self.nav_shape), self.layout.count_missing()
        if missing:
            return f"{count - missing} of {count} frames"
        facts = facts_of(self)
        if lost := facts.get("missing_files"):
            return f"{count} frames, without the pixels of {', '.join(lost)}"
        in_doubt = INCOMPLETE & {one.code for one in self.doubts}
        is_told = facts.get("complete", True) is False
        return f"{count} frames, and perhaps not all" if in_doubt or is_told else ""

    def with_doubts(self, *doubts: Doubt) -> Description:
        """Return the description with more doubts."""
        return replace(self, doubts=(*self.doubts, *doubts)) if doubts else self

    def with_suggestions(self, shapes: Sequence[Suggestion]) -> Description:
        """Return the description with shapes of the scan in the doubts about it."""
        about = {"scan-shape", "left-over-frames"}
        doubts = tuple(
            suggested(one, self.layout.n_frames, shapes) if one.code in about else one
            for one in self.doubts
        )
        return replace(self, doubts=doubts)

    def with_facts(self, **facts: Any) -> Description:
        """Return the description with more metadata of the format."""
        own = {**facts_of(self), **facts}
        return replace(self, metadata={**self.metadata, self.format: own})

    def with_announced(self, frames: int, told_by: str) -> Description:
        """Compare the frames along the first axis with the number that a header announces.

        Fewer are missing at the end; more leave a doubt, and all of them are shown.
        """
        desc, (there, *inner) = self.with_facts(announced_frames=frames), self.nav_shape
        if frames > there:
            axes = desc.axes
            return replace(desc.with_frames((frames, *inner)), axes=axes)
        return desc.with_doubts(*surplus(frames, there, told_by))

    def with_scan(
        self, nav_shape: tuple[int, ...], told_by: str, axes: tuple[Axis, ...] = ()
    ) -> Description:
        """Return the frames in the scan shape that a header gives.

        Parameters
        ----------
        nav_shape : tuple of int
        told_by : str
            Name of the header for errors and for the metadata entry ``"nav_shape_from"``.
        axes : tuple of Axis, optional
            Axes of the scan, if the file has more than their lengths.

        Raises
        ------
        TruncatedFileError
            There are fewer frames, the file cannot grow, and ``missing`` is not "fill".
        """
        fewer = math.prod(nav_shape) > max(self.layout.n_frames, math.prod(self.nav_shape))
        if fewer and not self.files[-1].grows and not is_filling():
            raise TruncatedFileError(
                "frames announced by the header are missing",
                path=self.files[-1].path,
                expected=f"{math.prod(nav_shape)} frames, as in {told_by}",
                found=f"{self.layout.n_frames} frames",
                hint=f"Pass missing='fill', or nav_shape={nav_shape}, to read them as missing.",
            )
        left = left_over(nav_shape, self.layout.n_frames, told_by)
        desc = self.with_facts(nav_shape_from=told_by).with_frames(nav_shape).with_doubts(*left)
        return replace(desc, axes=axes + desc.axes[desc.nav_ndim :]) if axes else desc

    def cut(self, cuts: Sequence[Cut]) -> Description:
        """Return the description of a part, given the cut of each axis."""
        shown = [(axis, cut) for axis, cut in zip(self.axes, cuts, strict=True) if cut.kept]
        axes = tuple(axis.cut(cut.start, cut.step, cut.length) for axis, cut in shown)
        nav_ndim = sum(cut.kept for cut in cuts[: self.nav_ndim])
        return replace(self, layout=self.layout.cut(cuts), axes=axes, nav_ndim=nav_ndim)

    def rows(self) -> list[tuple[str, str]]:
        """List the main properties as names and values."""
        files = printable(self.files[0].path)
        if len(self.files) > 1:
            files += f" and {len(self.files) - 1} more"
        nav = ", ".join(map(_axis_text, self.axes[: self.nav_ndim], self.nav_shape))
        sig = ", ".join(map(_axis_text, self.axes[self.nav_ndim :], self.sig_shape))
        rows = [
            ("format", self.format),
            ("files", files),
            ("navigation", nav or "none"),
            ("signal", sig or "none"),
            *([("scan", printable(self.saved_scan))] if self.saved_scan else ()),
            *self._calibration_rows(),
            ("dtype", f"{self.dtype}, {self.units}" if self.units else str(self.dtype)),
            ("size", format_bytes(self.nbytes)),
        ]
        if listing := str(Listing.of(facts_of(self))):
            rows.append(("picture", listing))
        if self.conversion.corrections is not None:
            rows.append(("corrected", str(self.conversion.corrections)))
        missing = self.layout.count_missing()
        if missing:
            frames = f"{missing} of {math.prod(self.nav_shape)} frames"
            rows.append(("missing", f"{frames}, shown as {self.conversion.fill_value}"))
        if lost := facts_of(self).get("missing_files"):
            rows.append(("missing files", printable(", ".join(lost))))
        if shapes := facts_of(self).get("suggested_scans"):
            listed = "; ".join(str(Suggestion(*one)) for one in shapes)
            rows.append(("suggested scans", printable(f"{self.layout.n_frames} frames: {listed}")))
        rows += [("doubt", printable(str(doubt))) for doubt in self.doubts]
        ignored = self.layout.selection.ignored()
        if ignored:
            rows.append(("not shown", f"{ignored} of {self.layout.n_frames} frames"))
        return rows

    def _calibration_rows(self) -> Iterator[tuple[str, str]]:
        names = dict[str, list[str]]()
        for axis in self.axes:
            if by := self.calibrations.get(axis.name):
                names.setdefault(by, []).append(axis.name)
        if names:
            listed = (f"{', '.join(some)} by {by}" for by, some in names.items())
            yield "calibrated", printable("; ".join(listed))

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        lines = [*islice(_tree(self.metadata), MOST_LINES + 1)]
        lines[MOST_LINES:] = ["..."] * (len(lines) > MOST_LINES)
        tree = html.escape("\n".join(map(printable, lines))) or "none"
        parts = {"instrument": self.instrument._repr_html_(), "metadata": f"<pre>{tree}</pre>"}
        more = (f"<details><summary>{k}</summary>{v}</details>" for k, v in parts.items())
        return html_table(self.rows()) + "".join(more)


def facts_of(desc: Description | None) -> Mapping[str, Any]:
    """Return the metadata of the format; empty without a description."""
    facts: Mapping[str, Any] = {} if desc is None else desc.metadata.get(desc.format, {})
    return facts


def _axis_text(axis: Axis, size: int) -> str:
    return f"{axis.name} {size}{printable(axis.listed)}{axis.spacing}"


def _tree(metadata: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Write nested dicts as lines; long values are truncated."""
    for key, value in metadata.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _tree(value, indent + "  ")
        else:
            text = f"{indent}{key}: {value}"
            more = "..." if len(text) > LONGEST_VALUE else ""
            yield from f"{text[:LONGEST_VALUE]}{more}".expandtabs().splitlines()
