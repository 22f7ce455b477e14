"""`show`: a figure of an array, or of several."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import dask.array as da
from dask.base import persist

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.inputs import as_array, is_array, is_xarray
from dask_tiled.opened.tiled_array import TiledArray, description_of
from dask_tiled.opening.arrays import opened
from dask_tiled.showing.computing import leading, panels_of, with_candidates
from dask_tiled.showing.looks import chosen, looks_of
from dask_tiled.showing.marks import marked
from dask_tiled.showing.panel_plots import VECTORS, Appearance, check_range, notes_of
from dask_tiled.showing.panels import Panel
from dask_tiled.showing.plotting import (
    SAVED_DOTS_PER_INCH,
    Sheet,
    axes_of,
    check_columns,
    check_target,
    draw,
    draw_on,
)
from dask_tiled.showing.styles import check_width, letters_of, style_of
from dask_tiled.showing.subject import UNTITLED, Subject
from dask_tiled.showing.taken import check_on_axes, check_switches, check_taken, check_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]
MOST_TOGETHER = 1 << 26
"""Maximum number of bytes of a result that is computed together with others."""


def show(
    arr: Any,
    target: Path | IO[bytes] | None = None,
    *,
    frames: int | None = None,
    ax: Any = None,
    columns: int | None = None,
    cmap: Any = None,
    vmin: Any = None,
    vmax: Any = None,
    norm: Any = None,
    percentiles: Any = None,
    title: str | None = None,
    scalebar: bool = True,
    colorbar: bool = True,
    ticks: bool | None = None,
    labels: str | Sequence[str] | None = None,
    vectors: str = "both",
    overlay: Any = None,
    style: str | None = None,
    width: float | None = None,
) -> Figure:
    """Draw an array, on its axes with units, or several arrays side by side.

    The picture depends on the axes:

    - a scan: its mean frame, and the sums inside and outside of its bright disk, as virtual
      detectors; without a disk, the sums of its frames;
    - frames in a row that may be a scan: also the scan in each shape that is likely, see below;
    - a stack: its mean frame and the sum of each; a spectrum image: its mean spectrum and the sum
      of each;
    - channels and masks: an image for each, with its name, and a colour image of channels; they are
      never averaged;
    - vectors, such as centres of mass: hues for directions, brightness for lengths, and components;
    - a volume: three planes through its centre, head up if the file stores the orientation;
    - images, colours and spectra as they are; complex numbers as hues for phases, brightness for
      amplitudes, and as both by themselves;
    - an export to zarr with results: the stored results. Nothing is computed.

    Of several arrays, each has one picture: the first of those above, the colour image of channels,
    or an image for each mask. Small results are computed together, so that files are read once.

    Where files leave the shape of a scan open, shapes are likely that frame times, dark frames or
    the likeness of neighbouring lines suggest, or a square; ``nav_shape="auto"`` of
    :func:`open_dataset` takes one that is certain enough.

    A large file is sampled at equal intervals, and the picture names the number of
    frames. Contrast excludes half a percent of the pixels at both ends.

    Parameters
    ----------
    arr : array, path-like, or list or mapping of them
        An opened array, or one computed from it, or of dask, NumPy or xarray; or files, as for
        :func:`open_dataset`. Numbers, booleans or colours. Several arrays are a list, a mapping by
        title, or an xarray Dataset; a list of paths is a series of files.
    target : path-like or file, optional
        Where to save the picture; the suffix selects the file type, PNG for a file object.
    frames : int, optional
        Largest number of frames to read; by default all frames of a file of up to 512 MiB, and of
        larger files about 16,384 frames or 512 MiB (64 MiB for URLs).
    ax : matplotlib.axes.Axes or array of them, optional
        Where to draw: axes for each picture, or for the only one. The first picture of a single
        array is drawn on single axes.
    columns : int, optional
        Pictures side by side.
    cmap : str or matplotlib.colors.Colormap, optional
        Colour map; for vectors and complex numbers, a cyclic one for directions.
    vmin, vmax : float, optional
        Values of the first and the last colour, or of the brightest vector; limits of lines.
    norm : str or matplotlib.colors.Normalize, optional
        From values to colours: "linear", "log", "asinh" or "symlog".
    percentiles : (float, float), optional
        Limits as percentiles of the values, by default (0.5, 99.5).
    title : str, optional
        By default the name of the file; for a publication, none.
    scalebar : bool
        Draw a scale bar on images whose axes have units.
    colorbar : bool
        Draw colour bars beside images.
    ticks : bool, optional
        Draw axes with ticks and names; by default, unless a scale bar replaces them in a
        publication.
    labels : str or sequence of str, optional
        Letters of the pictures: "abc", "ABC", "123", also in brackets such as "(abc)", or a text
        for each; "" for none. By default "abc" for several arrays, and for publications.
    vectors : {"both", "colours", "arrows"}
        Draw vectors as colours, with a wheel as their legend; as arrows on their lengths; or both.
    overlay : array, tiles.Disk or list of them, optional
        What to mark on the first picture: the outline of a mask of its shape, a disk, or positions
        of shape (n, 2), as (y, x) in the units of its axes.
    style : {None, "publication"}
        A publication has no file name, notes and enhanced contrast. Text is 7 to 8 points and stays
        text, scale bars replace the ticks of axes, and PDF and SVG files hold each picture as one
        image, in its own pixels.
    width : float, optional
        Width of the figure in mm; by default 90 mm for a publication of one column, 180 mm of more.

    Returns
    -------
    matplotlib.figure.Figure
        Its ``axes`` are those of the pictures, in order; with ``ax``, it is their figure. ``notes``
        tells what was sampled or left out, for captions. It is shown in a notebook, and in a
        window at the prompt of Python or IPython; in a script ``matplotlib.pyplot.show()`` shows
        it. The last 20 windows are kept open. A picture saved to ``target`` is not shown.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    DatasetError
        The array cannot be drawn; an option is invalid; or as for :func:`open_dataset`.

    Notes
    -----
    ``cmap``, ``vmin``, ``vmax``, ``norm``, ``percentiles`` and ``overlay`` may also be mappings
    from the title or position of a picture: ``cmap={"Phase": "twilight"}``.

    Examples
    --------
    >>> import dask_tiled, numpy as np
    >>> from dask_tiled.testing import write_mib
    >>> path = write_mib("scan.mib", np.ones((24, 32, 64, 64), "uint16"))
    >>> figure = dask_tiled.show(path, "scan.png")
    >>> arr = dask_tiled.open_dataset(path)
    >>> maps = {"Sum": arr.sum(axis=(2, 3)), "Maximum": arr.max(axis=(2, 3))}
    >>> figure = dask_tiled.show(maps, "maps.pdf", style="publication", width=120)
    """
    check_target(target)
    import matplotlib as mpl

    limit = None if frames is None else check_whole("frames", frames, least=1)
    if vectors not in VECTORS:
        expected = " or ".join(map(repr, VECTORS))
        raise DatasetError("invalid vectors", expected=expected, found=repr(vectors))
    check_title(title)
    check_switches(scalebar=scalebar, colorbar=colorbar)
    check_switches(ticks=ticks, open=True)
    axes, columns, width = axes_of(ax), check_columns(columns), check_width(width)
    if axes is not None:
        check_on_axes(axes, title=title, columns=columns, width=width)
    look = {"cmap": cmap, "vmin": vmin, "vmax": vmax, "norm": norm, "percentiles": percentiles}
    plain = Appearance(
        style_of(style, on_axes=axes is not None),
        scalebar=scalebar,
        colorbar=colorbar,
        ticks=ticks,
        vectors=vectors,
    )
    for name, value in look.items():  # before anything is computed, if panels do not matter
        if not isinstance(value, Mapping):
            looks_of([""], **{name: value})
    is_alone = axes is not None and len(axes) == 1
    is_complete = axes is None and style is None and frames is None
    content = Content.of(arr, limit, is_alone=is_alone, is_complete=is_complete)
    names = [panel.title for panel in content.panels]
    check_range(content.panels)
    check_taken(content.panels, vectors, look)
    panels = _with_overlays(content, overlay, names)
    if labels is None:
        wanted = content.is_several or plain.style.is_publication
        labels = "abc" if wanted and len(panels) > 1 else ""
    looks = looks_of(names, **look)
    appearances = [plain._replace(look=one) for one in looks]
    notes = [*content.notes]
    for panel, how in zip(panels, appearances, strict=True):
        notes += notes_of(panel, how)
    sheet = Sheet(
        panels,
        appearances,
        letters_of(labels, len(panels)),
        title if title is not None else "" if plain.style.is_publication else content.title,
        content.subtitle,
        notes,
    )
    if axes is not None:
        if title is not None and is_alone:
            sheet = sheet._replace(panels=[panels[0]._replace(title=title)])
        figure = draw_on(axes, sheet)
    else:
        figure = draw(sheet, columns=columns, width=width, is_shown=target is None)
    if target is not None:
        dots = {} if plain.style.is_publication else {"dpi": SAVED_DOTS_PER_INCH}
        with mpl.rc_context(dict(plain.style.saved_with)):  # also a figure of the user
            figure.savefig(target, **dots)
    return figure


class Content(NamedTuple):
    """Panels of an array, or of several."""

    panels: list[Panel]
    wholes: list[Mapping[str, Axis]]
    """Axes of the array of each panel, by name."""
    title: str
    subtitle: str
    notes: list[str]
    is_several: bool = False

    @classmethod
    def of(
        cls, data: Any, limit: int | None, *, is_alone: bool = False, is_complete: bool = False
    ) -> Self:
        """Compute the panels of several arrays, or of one: the first, or with shapes of scans."""
        items = _items(data)
        if items is None:
            arr = as_array(data) if is_array(data) else opened(data, missing="fill")
            shown = panels_of(arr, limit)
            shown = with_candidates(shown, arr) if is_complete else shown
            panels = leading(shown)[:1] if is_alone else shown.panels
            subject = shown.subject
            wholes: list[Mapping[str, Axis]] = [_whole(arr)] * len(panels)
            return cls(panels, wholes, subject.title, subject.subtitle, shown.notes)
        arrays = [as_array(x) if is_array(x) else opened(x, missing="fill") for _, x in items]
        content = cls([], [], "", "", [], is_several=True)
        told: dict[str, list[str]] = {}
        titles = set()
        for (name, _), arr in zip(items, _computed(arrays), strict=True):
            shown = panels_of(arr, limit)
            panels = leading(shown)
            content.panels.extend(_titled(panel, name, alone=len(panels) == 1) for panel in panels)
            content.wholes.extend([_whole(arr)] * len(panels))
            titles.add(shown.subject.title)
            for note in shown.notes:
                told.setdefault(note, []).append(name or panels[0].title)
        for note, names in told.items():
            of = "" if len(names) == len(items) else f"{', '.join(filter(None, names))}: "
            content.notes.append(f"{of}{note}")
        title = titles.pop() if len(titles) == 1 else UNTITLED
        return content._replace(title="" if title == UNTITLED else title)


def _items(data: Any) -> list[tuple[str, Any]] | None:
    """Return several arrays with their titles; None for an array or files."""
    is_dataset = is_xarray(data)
    if is_dataset:
        variables = getattr(data, "data_vars", ())
        if len(variables) < 2:
            return None
        data = {name: data[name] for name in variables}
    if isinstance(data, Mapping):
        wrong = [name for name in data if not isinstance(name, str)]
        if wrong and not is_dataset:  # numbers would be positions in options
            raise DatasetError("invalid title", expected="text", found=repr(wrong[0]))
        items = [(str(name), x) for name, x in data.items()]
    elif isinstance(data, list | tuple) and (not data or any(map(is_array, data))):
        items = [(_name(x), x) for x in data]
    else:
        return None
    if not items:
        raise DatasetError("there is nothing to draw", found=f"an empty {type(data).__name__}")
    return items


def _name(data: Any) -> str:
    """Return the name of an xarray object; empty for other arrays."""
    if not is_xarray(data):
        return ""
    return str(getattr(data, "name", None) or "")


def _computed(arrays: Sequence[da.Array]) -> list[da.Array]:
    """Compute small results in one pass; others are returned as they are."""
    small = {
        k: arr
        for k, arr in enumerate(arrays)
        if description_of(arr) is None and arr.nbytes <= MOST_TOGETHER
    }
    done = dict(zip(small, persist(*small.values()), strict=True))
    for k, arr in done.items():
        if not isinstance(arr, TiledArray):  # else its axes are kept
            known = shown_of(arrays[k])
            done[k] = labelled(arr, known.axes, known.units)
    return [done.get(k, arr) for k, arr in enumerate(arrays)]


def _titled(panel: Panel, name: str, *, alone: bool) -> Panel:
    if not name:
        return panel
    return panel._replace(title=name if alone or not panel.title else f"{name}: {panel.title}")


def _whole(arr: da.Array) -> dict[str, Axis]:
    return {axis.name: axis for axis in Subject.of(arr).axes}


def _with_overlays(content: Content, overlay: Any, names: Sequence[str]) -> list[Panel]:
    """Return the panels with marks: on the first one, or as a mapping says."""
    if overlay is None:
        return content.panels
    given = overlay if isinstance(overlay, Mapping) else {0: overlay}
    panels = []
    for k, (panel, whole) in enumerate(zip(content.panels, content.wholes, strict=True)):
        one = chosen("overlay", given, names, k)
        panels.append(panel if one is None else marked(panel, one, whole))
    return panels
