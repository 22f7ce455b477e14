"""FRMS6 sets of PNDetector's pnCCD: dark frames in ``_000.frms6``, frames beyond, and a ``.hdr``.

A stored row holds one row of each of two chips: the upper one, and then the lower one, which is
mounted upside down. Rows that the camera has added up are shown as often as they count for.

Layout as LiberTEM reads it; no real set was at hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dask_tiled.formats import tools
from dask_tiled.formats.frms6.corrections import read_corrections
from dask_tiled.formats.frms6.files import (
    HEADER_BYTES,
    Frames,
    choose,
    is_hdr,
    problem_of,
    read_hdr,
)


def sniff(path: str, head: bytes) -> str | None:
    """Look for a file header, or the section of the ``.hdr`` file."""
    return None if is_hdr(head) else problem_of(head)


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    series: bool = True,
    dark: bool = False,
    gain_map: str | os.PathLike[str] | None = None,
) -> tools.Description:
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
    base, hdr, chosen = choose(paths, series=series, dark=dark)
    parts = {number: Frames.at(path) for number, path in chosen.items()}
    tools.in_sequence(
        [tools.Member(part.file, k, 1, part.stored.sig_shape) for k, part in parts.items()]
    )
    settled = max(parts) if nav_shape is not None else None
    counts = [part.count(settled=k == settled) for k, part in parts.items()]
    keys = {} if hdr is None else read_hdr(hdr)
    facts: dict[str, Any] = {
        "header": parts[min(parts)].fields,
        "hdr": keys,
        "binning": keys.get("binning", 1),
        "binning_from": hdr or "no .hdr file: rows are shown as they are stored",
        "dark_frames": base + "_000.frms6",
    }
    if gain_map is not None:
        facts["gain_map"] = os.path.abspath(gain_map)
    layout = _layout(list(parts.values()), counts, facts["binning"])
    desc = tools.Description.of("frms6", layout, {"frms6": facts})
    if nav_shape is not None or hdr is None or dark:
        return desc
    return desc.with_scan(keys["stemimagesize"], hdr)


def _layout(parts: Sequence[Frames], counts: Sequence[int], binning: int) -> tools.Layout:
    """Lay out the upper and the lower chip; the rows and pixels of the lower one run backwards."""
    record = parts[0].stored
    height, width = record.sig_shape[0], record.sig_shape[1] // 2
    row, pixel = record.sig_strides
    last = record.header + record.frame_bytes - pixel
    shape = height * binning, width
    upper = tools.Part((0, 0), shape, record.header, (row, pixel))
    lower = tools.Part((height * binning, 0), shape, last, (-row, -pixel))
    files, size = [part.file for part in parts], record.nbytes
    decoders, repeats = [record.decoder], (binning, 1)
    return tools.part_layout(files, counts, [upper, lower], size, decoders, HEADER_BYTES, repeats)


FORMAT = tools.Format(
    name="frms6",
    extensions=(".frms6", ".hdr"),
    summary="PNDetector pnCCD: folded frames, binned 1, 2 or 4 times, dark frames and gain map",
    nav_shape_from="the .hdr file",
    sniff=sniff,
    describe=describe,
    corrections=read_corrections,
    peers=("LiberTEM",),
)
