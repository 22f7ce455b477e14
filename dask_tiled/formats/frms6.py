"""FRMS6 sets of PNDetector's pnCCD: dark frames in ``_000.frms6``, frames beyond, and a ``.hdr``.

A stored row holds one row of each of two chips: the upper one, and then the lower one, which is
mounted upside down. Rows that the camera has added up are shown as often as they count for.

Layout as LiberTEM reads it; no real set was at hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dask_tiled.description import Description
from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.formats import Format
from dask_tiled.formats.frms6_corrections import read_corrections
from dask_tiled.formats.frms6_files import (
    FIXED,
    Frames,
    base_of,
    find_set,
    is_hdr,
    parse_head,
    problem_of,
    read_hdr,
)
from dask_tiled.layout import Layout
from dask_tiled.pieces import Piece
from dask_tiled.series import Member, in_sequence


def sniff(path: str, head: bytes) -> str | None:
    """Look for a file header, or the section of the ``.hdr`` file."""
    if is_hdr(head):
        return None
    fields = parse_head(head)
    return "shorter than a file header" if fields is None else problem_of(fields)


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    series: bool = True,
    dark: bool = False,
    gain_map: str | os.PathLike[str] | None = None,
) -> Description:
    """Describe an FRMS6 set.

    Parameters
    ----------
    paths : sequence of str
        The ``.hdr`` file, or any ``.frms6`` file of a set, with the dark frames or not, stands for
        the frames of the whole set. If several are opened, they are those with the frames.
    nav_shape : tuple of int, optional
        Shape of the scan, by default the one in the ``.hdr`` file, taken as (y, x).
    series : bool
        Look for the other files of the set; by default unless a list is opened.
    dark : bool
        Show the dark frames instead.
    gain_map : path-like, optional
        A ``.mat`` file with a "GainMap", or a ``.csv`` file, for ``corrections="dataset"``. It has
        a number for each pixel of a frame as it is shown.

    Raises
    ------
    TruncatedFileError
        A file of the set is missing, or holds too few frames.
    """
    base, hdr, chosen = _choose(paths, series=series, dark=dark)
    parts = [Frames.at(path) for path in chosen.values()]
    in_sequence(
        [
            Member(part.file, number, 1, part.stored.sig_shape)
            for number, part in zip(chosen, parts, strict=True)
        ]
    )
    last = len(parts) - 1
    settled = nav_shape is not None
    counts = [part.count(settled=settled and i == last) for i, part in enumerate(parts)]
    keys = {} if hdr is None else read_hdr(hdr)
    facts: dict[str, Any] = {
        "header": parts[0].fields,
        "hdr": keys,
        "binning": keys.get("binning", 1),
        "binning_from": hdr or "no .hdr file: rows are shown as they are stored",
        "dark_frames": base + "_000.frms6",
    }
    if gain_map is not None:
        facts["gain_map"] = os.path.abspath(gain_map)
    layout = _layout(parts, counts, facts["binning"])
    desc = Description.of("frms6", layout, {"frms6": facts})
    if nav_shape is None and hdr is not None and not dark:
        facts["nav_shape_from"] = hdr
        desc = desc.with_scan(keys["stemimagesize"], hdr)
    return desc


def _choose(
    paths: Sequence[str], *, series: bool, dark: bool
) -> tuple[str, str | None, dict[int, str]]:
    """Choose the files to show: base name of the set, ``.hdr`` file, and ``.frms6`` by number."""
    names = [base_of(path) for path in paths]
    base = names[0][0]
    stray = [path for path, name in zip(paths, names, strict=True) if name[0] != base]
    if stray:
        raise DatasetError("not of one set", path=stray[0], expected=f"files called {base}...")
    hdr, found = find_set(base)
    listed = {number for _, number in names if number}
    if dark:
        chosen = [0]
    elif listed and not series:
        chosen = sorted(listed)
    else:
        chosen = sorted({1, *found} - {0})
    missing = [number for number in chosen if number not in found]
    if missing:
        raise TruncatedFileError(
            "a file of the set is missing",
            path=f"{base}_{missing[0]:03}.frms6",
            found=f"those with the numbers {sorted(found)}",
        )
    return base, hdr, {number: found[number] for number in chosen}


def _layout(parts: Sequence[Frames], counts: Sequence[int], binning: int) -> Layout:
    """Lay out the upper and the lower chip; the rows and pixels of the lower one run backwards."""
    record = parts[0].stored
    height, width = record.sig_shape[0], record.sig_shape[1] // 2
    row, pixel = record.sig_strides
    top = FIXED["header_bytes"] + record.header
    bottom = top + record.frame_bytes - pixel
    shown = height * binning
    pieces = []
    first = 0
    for i, count in enumerate(counts):
        shape = count, shown, width
        pieces += [
            Piece(i, (first, 0, 0), shape, top, (record.nbytes, row, pixel)),
            Piece(i, (first, shown, 0), shape, bottom, (record.nbytes, -row, -pixel)),
        ]
        first += count
    files = [part.file for part in parts]
    sig_shape = 2 * shown, width
    return Layout(files, (first,), sig_shape, pieces, [record.decoder], repeats=(binning, 1))


FORMAT = Format(
    name="frms6",
    extensions=(".frms6", ".hdr"),
    summary="PNDetector pnCCD: folded frames, binned 1, 2 or 4 times, dark frames and gain map",
    nav_shape_from="the .hdr file",
    sniff=sniff,
    describe=describe,
    corrections=read_corrections,
    peers=("LiberTEM",),
)
