"""From a path to a description with chunks, without an array."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import (
    DatasetError,
    DoubtError,
    DoubtWarning,
    MissingFramesWarning,
    TruncatedFileError,
    check_whole,
    warn,
)
from dask_tiled.files.file import filling, following
from dask_tiled.files.paths import Border, axes_file, is_url, within
from dask_tiled.formats.describing import describe_begun, expanded
from dask_tiled.formats.registry import completed, formats
from dask_tiled.formats.saved_axes import SavedAxes
from dask_tiled.model.calibration import Calibrations, calibrated
from dask_tiled.model.channels import channels_of, in_scan, left_after
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.description import BY_USER, VOLUMES, Description, facts_of
from dask_tiled.model.doubts import INCOMPLETE, WHOLE, Suggestion, inferred_scan, unsettled
from dask_tiled.model.headers import Headers
from dask_tiled.model.indexing import Array, Index
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.reading.buffered import ALIGNMENT
from dask_tiled.reading.descriptors import lent_fd
from dask_tiled.remote.stores import Options
from dask_tiled.tiling.negotiation import TilingRequest, as_requests
from dask_tiled.tiling.scheme import TilingScheme, negotiate

Path = str | os.PathLike[str]


def describe(
    path: Path | Sequence[Path],
    format: str | None = None,
    *,
    nav_shape: int | tuple[int, ...] | str | None = None,
    sig_shape: tuple[int, ...] | None = None,
    dtype: npt.DTypeLike | None = None,
    sync_offset: int = 0,
    roi: npt.ArrayLike | None = None,
    corrections: Corrections | str | None = None,
    fill_value: Any = None,
    missing: str | None = None,
    axes: Calibrations | None = None,
    storage_options: Options = None,
    follow: bool = False,
    outside_folder: bool = False,
    doubts: str = "warn",
    **format_options: Any,
) -> Description:
    """Return the description of a file, or of a series of files.

    Parameters
    ----------
    path, format, nav_shape, sig_shape, dtype, sync_offset, roi, corrections : optional
        As for :func:`open_dataset`.
    fill_value, missing, axes, storage_options, follow, outside_folder, doubts : optional
        As for :func:`open_dataset`, without warnings.
    **format_options
        Options of the format; see :func:`formats`.

    Returns
    -------
    Description
        The description, which prints as text, and as a table in notebooks.

    Raises
    ------
    DatasetError
        As for :func:`open_dataset`.

    Examples
    --------
    >>> import dask_tiled
    >>> desc = dask_tiled.describe(dask_tiled.samples.gold())
    >>> desc.format, desc.shape, desc.dtype
    ('mib', (60, 64, 128, 128), dtype('uint16'))
    """
    automatic = isinstance(nav_shape, str) and nav_shape == AUTO
    nav_shape = None if automatic else nav_shape
    scan, frame = _shape("nav_shape", nav_shape, open=True), _shape("sig_shape", sig_shape)
    is_open = scan is not None and OPEN in scan
    common = {"nav_shape": None if is_open else scan, "sig_shape": frame, "dtype": dtype}
    asked = following(follow), filling(missing == "fill" or is_settled(nav_shape))
    with asked[0], asked[1], expanded(path, storage_options) as (paths, listed):
        if follow:
            check_local(paths[0])
        whole = tuple(map(completed, paths))
        named = whole if is_url(paths[0]) else paths
        with within(Border(named, outside=outside_folder)):
            ask = partial(
                describe_begun, format, whole, common, format_options, PARAMETERS, listed=listed
            )
            if scan is not None and is_open:
                counted, fill = _counted(ask, common), missing == "fill"
                scan = common["nav_shape"] = _filled(scan, *counted, sync_offset, fill=fill)
            desc = _suggested(ask()) if automatic else ask()
            first_path = desc.files[0].path
            kept, saved = axes_file(first_path), None
            if not is_url(kept) and os.path.isfile(kept):
                saved = SavedAxes.at(kept, desc)
            others = nav_shape, roi, *(x or None for x in (automatic, follow, sync_offset))
            restored = None if saved is None or any(x is not None for x in others) else saved.scan
            if restored is not None:
                nav_shape = scan = common["nav_shape"] = restored.nav_shape
                desc = ask()
            desc = _in_shape(desc, scan, sync_offset)
            known = _corrections(corrections, desc)
    if "dtype" in formats()[desc.format].options():
        dtype = None  # the format has already used it
    scaling = desc.conversion.scaling
    fill_value = desc.conversion.fill_value if fill_value is None else fill_value
    conversion = Conversion.of(desc.layout.dtype, first_path, dtype, fill_value, known, scaling)
    desc = replace(desc, conversion=conversion)
    passed = {
        "nav_shape": is_settled(nav_shape),
        WHOLE: is_settled(nav_shape) and not desc.layout.count_missing(),
        "missing": missing == "fill",
        "follow": follow,
        "sync_offset": bool(sync_offset),
        "axes": axes is not None and not isinstance(axes, Mapping),
        **{name: value is not None for name, value in format_options.items()},
    }
    some = axes if isinstance(axes, Mapping) else ()
    desc = _settled(desc, [name for name, is_passed in passed.items() if is_passed], some, missing)
    desc = desc if saved is None else saved.of(desc)
    if axes is not None:
        found = calibrated(desc.axes, axes, desc.shape, first_path)
        desc = desc.with_axes(found, BY_USER)
    if restored is not None and saved is not None:
        desc = restored.of(desc, saved.path)
    desc = _chosen(desc, roi, missing)
    if doubts not in DOUBTS:
        expected = " or ".join(map(repr, DOUBTS))
        raise DatasetError("invalid doubts", path=first_path, expected=expected, found=repr(doubts))
    if doubts == "raise":
        raise_of(desc, missing, opened=path, follow=follow)
    return desc


def _settled(
    desc: Description, options: Sequence[str], axes: Iterable[str], missing: Any
) -> Description:
    """Drop the doubts that options settle; raise if files are lost and may not be."""
    if INCOMPLETE & {one.code for one in desc.doubts} and "nav_shape" not in options:
        desc = desc.with_facts(complete=False)  # also if the doubt is settled
    left = unsettled(desc.doubts, options, axes)
    lost = next((one for one in left if one.code == "lost-files"), None)
    if missing == "raise" and lost is not None:
        raise TruncatedFileError(
            "files of the series may be missing",
            path=desc.files[0].path,
            found=lost.text,
            hint="Pass nav_shape, or the list of files.",
        )
    return replace(desc, doubts=left)


DOUBTS = "warn", "ignore", "raise"
"""What happens with doubts when files are opened."""
PARAMETERS = (*inspect.signature(describe).parameters, "tiling", "chunks", "io")
"""Parameters that apply to all formats."""


def _corrections(given: Any, desc: Description) -> Corrections | None:
    if given is None:
        return None
    path = desc.files[0].path
    if isinstance(given, str) and given == "dataset":
        form = formats()[desc.format]
        if form.corrections is None:
            raise DatasetError(
                f"files of the format {desc.format!r} come without corrections",
                path=path,
                expected="Corrections",
                found=given,
            )
        given = form.call("corrections", path, desc)
    if not isinstance(given, Corrections):
        raise DatasetError(
            "invalid corrections",
            path=path,
            expected='Corrections, or "dataset"',
            found=type(given).__name__ if np.ndim(given) else given,
            hint="Pass Corrections(excluded_pixels=...) for a mask of bad pixels.",
        )
    given.check(desc.sig_shape, path)
    return given


OPEN = -1
"""The size in nav_shape that is inferred from the number of frames."""
AUTO = "auto"
"""A nav_shape that is suggested by the frames."""


def _shape(name: str, shape: Any, *, open: bool = False) -> tuple[int, ...] | None:
    if shape is None:
        return None
    sizes = shape.tolist() if isinstance(shape, np.ndarray) else shape
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        sizes = (sizes,)
    if open and [*sizes].count(OPEN) > 1:
        problem = f"only one size in {name} may be open ({OPEN})"
        raise DatasetError(problem, found=repr(tuple(sizes)))
    left_open = sizes.index(OPEN) if open and OPEN in sizes else None
    return tuple(
        OPEN if k == left_open else check_whole(f"every size in {name}", n, least=1)
        for k, n in enumerate(sizes)
    )


def _suggested(desc: Description) -> Description:
    """Return the frames in the shape that they suggest, or that has several axes in the files.

    Raise a DatasetError if nothing suggests one, or none is certain enough.
    """
    path, count = desc.files[0].path, desc.layout.n_frames
    shapes = [Suggestion(*told) for told in facts_of(desc).get("suggested_scans", ())]
    is_open = [one for one in desc.doubts if one.code == "scan-shape"]
    in_row = desc.nav_shape == (count,) and count > 1
    if not shapes and in_row:
        from dask_tiled.opening.scan_lines import central_sums, likely_scans

        sums = central_sums(desc)
        shapes, is_certain = ([], False) if sums is None else likely_scans(sums, desc)
        if shapes and not is_certain:
            problem = "the frames leave the shape of the scan open"
            found = f"{count} frames; likely are {'; '.join(map(str, shapes))}"
            raise DatasetError(problem, path=path, found=found, hint="Pass nav_shape=.")
    if len({(one.shape, one.first) for one in shapes}) > 1:
        problem, found = "several shapes of the scan are suggested", "; ".join(map(str, shapes))
        raise DatasetError(problem, path=path, found=found, hint="Pass one of them as nav_shape=.")
    for shape, first, why in shapes[:1]:
        about = {"scan-shape", "left-over-frames"}
        doubts = tuple(one for one in desc.doubts if one.code not in about)
        shown = desc.with_frames(shape, first).with_facts(nav_shape_from=f"inferred: {why}")
        return replace(shown, doubts=(*doubts, inferred_scan(shape, why)))
    if in_row:
        problem, found = "nothing suggests the shape of the scan", f"{count} frames in a row"
        settle = f"pass nav_shape=, or {count} for a series"
        for doubt in is_open[:1]:
            found, settle = doubt.text, doubt.settle
        hint = f"{settle[:1].upper()}{settle[1:]}."
        raise DatasetError(problem, path=path, found=found, hint=hint)
    return desc


def _counted(ask: Callable[[], Description], common: dict[str, Any]) -> tuple[int, Description]:
    """Return the number of frames, and the description that counts them.

    If a header announces more frames than there are, those that exist count.
    """
    try:
        desc = ask()
    except TruncatedFileError:
        common["nav_shape"] = (1,)
        with filling(True):  # noqa: FBT003 - its only argument
            desc = ask()
        return desc.layout.n_frames, desc
    count = math.prod(desc.nav_shape)
    in_order = desc.layout.selection.numbers is None
    return min(count, desc.layout.n_frames) if in_order else count, desc


def _filled(
    scan: tuple[int, ...], count: int, desc: Description, sync_offset: Any, *, fill: bool
) -> tuple[int, ...]:
    """Return a scan shape with the open size inferred from the number of frames.

    If ``fill``, the last frames may be missing.
    """
    path = desc.files[0].path
    first = check_whole("sync_offset", sync_offset, path=path)
    frames = left_after(desc, scan, count, first)
    row = -math.prod(scan)
    rows, rest = divmod(max(frames, 0), row)
    # Of files that grow, only complete rows are shown.
    if rest and fill and not desc.files[-1].grows:
        return tuple(rows + 1 if n == OPEN else n for n in scan)
    if not rows or (rest and not desc.files[-1].grows):
        least = tuple(rows if n == OPEN else n for n in scan)
        some = f"Pass nav_shape={least} for the first {row * rows} frames, or " if rows else "Pass "
        raise DatasetError(
            "the frames do not fill the scan",
            path=path,
            expected=f"a multiple of {row} frames, for nav_shape={scan}",
            found=f"{frames} frames",
            hint=f"{some}missing='fill' to show the rest with missing frames.",
        )
    return tuple(rows if n == OPEN else n for n in scan)


def scheme_for(
    desc: Description,
    tiling: str | TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
) -> TilingScheme:
    """Negotiate chunks for a description.

    Parameters and errors are those of :func:`open_dataset`.
    """
    _check_backend(io, desc)
    requests = as_requests(() if tiling is None else tiling)
    align = ALIGNMENT if io == "direct" else 1
    return negotiate(desc, requests, chunks=chunks, align_bytes=align)


def _check_backend(io: Any, desc: Description) -> None:
    if not isinstance(io, str) or (io != "auto" and io not in BACKENDS):
        raise DatasetError("invalid io", expected=" or ".join(["auto", *BACKENDS]), found=io)
    if io != "auto" and is_url(desc.files[0].path):
        problem, path = "io cannot be chosen for URLs", desc.files[0].path
        raise DatasetError(problem, path=path, expected="io='auto'", found=io)
    if io == "direct":
        with lent_fd(desc.files[0], direct=True):
            pass  # fail here rather than in every task


def headers_of(desc: Description) -> Headers | Array:
    """Return the layout of the frame headers, or a table of facts about frames.

    Raise a DatasetError if the format or the file has no frame headers.
    """
    path = desc.files[0].path
    if VOLUMES in desc.metadata:
        problem, hint = "volumes have no frame headers", "Open each file separately."
        raise DatasetError(problem, path=path, hint=hint)
    known = formats()
    form = known.get(desc.format)
    if form is None or form.headers is None:
        with_headers = [name for name, one in known.items() if one.headers is not None]
        raise DatasetError(
            "frames of this format have no headers",
            path=path,
            expected=" or ".join(with_headers),
            found=desc.format,
        )
    found = form.call("headers", path, desc)
    if not isinstance(found, Headers) and np.dtype(getattr(found, "dtype", "O")).names is None:
        problem = f"headers of the format {desc.format!r} must return Headers or records"
        raise DatasetError(problem, path=path, found=type(found).__name__)
    return found


def check_local(path: str) -> None:
    """Check that a file can grow.

    Raise a DatasetError if the file is remote: it may be replaced, but does not grow.
    """
    if is_url(path):
        hint = "Open it again to see its present content."
        raise DatasetError("remote files do not grow", path=path, hint=hint)


def warn_of(
    *descs: Description,
    opened: Any = None,
    missing: str | None = None,
    doubts: str = "warn",
    follow: bool = False,
    **_: Any,
) -> None:
    """Warn once of missing frames and of doubts, unless the options of the user accept them.

    Several files that are opened together are told by the first in doubt, and by their number. The
    path ``opened`` is named if it is a folder, instead of a file in it.
    """
    folder = _folder(opened)
    for desc in descs if doubts == "warn" else ():
        if desc.saved_scan:
            warn(f"{folder or desc.files[0].path}: shown as saved: {desc.saved_scan}")
    absent = [(desc, _absent(desc, missing, follow=follow)) for desc in descs]
    in_doubt = [(desc, _sentences(desc)) for desc in descs if doubts == "warn"]
    for told, kind, also in (
        (absent, MissingFramesWarning, "more files lack frames"),
        (in_doubt, DoubtWarning, "more files are in doubt"),
    ):
        found = [(folder or desc.files[-1].path, text) for desc, text in told if text]
        more = f" {len(found) - 1} {also}." if found[1:] else ""
        for path, text in found[:1]:
            warn(f"{path}: {text}{more}", kind)


def raise_of(desc: Description, missing: str | None, *, opened: Any, follow: bool) -> None:
    """Raise a DoubtError of missing frames and of doubts, if there are any.

    The path ``opened`` is named if it is a folder, instead of a file in it.
    """
    told = f"{_absent(desc, missing, follow=follow)} {_sentences(desc)}".strip()
    if told:
        raise DoubtError(told, path=_folder(opened) or desc.files[-1].path)


def _folder(opened: Any) -> str:
    """Return the path that a user opened if it is a folder; else an empty text."""
    is_folder = isinstance(opened, str | os.PathLike) and os.path.isdir(opened)
    return os.fspath(opened) if is_folder else ""


def _absent(desc: Description, missing: str | None, *, follow: bool) -> str:
    """Return the number of missing frames as a sentence; empty if there are none to tell."""
    absent, count = desc.layout.count_missing(), math.prod(desc.nav_shape)
    if not absent or missing is not None or follow:
        return ""
    fill = desc.conversion.fill_value
    told = f"{absent} of {count} frames are missing, and read as {fill}"
    return f"{told}. Pass missing='fill' if this is intended."


def _sentences(desc: Description) -> str:
    parts = (part for one in desc.doubts for part in (one.text, one.settle))
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts)


def is_settled(nav_shape: Any) -> bool:
    """Return whether the user passed the number of frames."""
    is_open = nav_shape is None or isinstance(nav_shape, str)
    return not is_open and OPEN not in np.atleast_1d(nav_shape)


LARGEST = (1 << 63) - 1
"""Largest number of bytes of an array."""
MOST_NAMED = 5
"""Maximum number of missing files named in an error."""


def _in_shape(
    desc: Description, nav_shape: tuple[int, ...] | None, sync_offset: Any
) -> Description:
    """Return the frames in the user's scan shape, from the user's first frame on."""
    path = desc.files[0].path
    first = check_whole("sync_offset", sync_offset, path=path)
    shape = desc.nav_shape if nav_shape is None else nav_shape
    if math.prod(shape + desc.sig_shape) * desc.dtype.itemsize > LARGEST:
        raise DatasetError(
            "the array is too large", path=path, expected=f"{LARGEST} bytes", found=shape
        )
    # Clip the offset: all frames beyond are missing, and frame numbers must fit into 8 bytes.
    first = max(-math.prod(shape), min(first, desc.layout.n_frames))
    if shape != desc.nav_shape:
        return in_scan(desc, shape, first)
    return desc.shifted(first * max(1, len(channels_of(desc)))) if first else desc


def _chosen(desc: Description, roi: Any, missing: Any) -> Description:
    """Return the selected frames; raise if some are missing and may not be."""
    path = desc.files[0].path
    if roi is not None:
        places = _places(roi, desc.nav_shape, path)
        desc = desc.with_frames((len(places),), 0, desc.layout.selection.at(places))
    if missing not in (None, "fill", "raise"):
        raise DatasetError(
            "invalid rule for missing frames", path=path, expected="fill or raise", found=missing
        )
    absent = desc.layout.count_missing()
    if missing == "raise" and absent:
        count = math.prod(desc.nav_shape)
        files = desc.metadata[desc.format].get("missing_files", ())
        named = ", ".join(files[:MOST_NAMED]) + ", ..." * (len(files) > MOST_NAMED)
        raise TruncatedFileError(
            "frames are missing",
            path=desc.files[-1].path,
            expected=f"{count} frames",
            found=f"{count - absent} frames",
            hint=f"Missing: {named}." if files else None,
        )
    unwritten = facts_of(desc).get("unwritten_chunks", 0)
    if missing == "raise" and unwritten:
        problem, found = "chunks were never written", f"{unwritten} of them without data"
        raise TruncatedFileError(problem, path=path, expected="all chunks", found=found)
    return desc


def _places(roi: Any, nav_shape: tuple[int, ...], path: str) -> Index:
    """Convert a mask or indices to positions in the navigation shape."""
    count = math.prod(nav_shape)
    try:
        found = np.asarray(roi)
    except ValueError as error:
        raise DatasetError("roi is not an array", path=path, found=str(error)) from error
    if isinstance(roi, np.ma.MaskedArray):
        unmasked = ~np.ma.getmaskarray(roi)
        found = found & unmasked if found.dtype == bool else found[unmasked]
    if found.dtype == bool and found.shape == nav_shape:
        places = np.flatnonzero(found)
    elif (found.dtype.kind in "iu" or not found.size) and found.ndim == 1:
        wrong = (found < -count) | (found >= count)
        if wrong.any():
            raise DatasetError(
                "roi lies outside of the scan",
                path=path,
                expected=f"positions below {count}",
                found=int(found[wrong][0]),
            )
        places = found.astype(np.int64) % count
    else:
        raise DatasetError(
            "roi is neither a mask of the scan nor a list of positions in it",
            path=path,
            expected=f"bool of shape {nav_shape}, or whole numbers",
            found=f"{found.dtype} of shape {found.shape}",
        )
    if not len(places):
        raise DatasetError("roi selects no frame", path=path)
    return places
