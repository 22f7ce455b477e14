"""HDF5: any numeric dataset of a file, with metadata from the conventions of the file.

Layout facts: the HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Number
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.chunks import needs_imagecodecs
from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    Guard,
    MissingFileError,
    check_whole,
    require,
)
from dask_tiled.files.file import HDF5, File, is_filling, read_head
from dask_tiled.files.paths import border
from dask_tiled.formats.hdf5.attributes import attribute, label, plain_attributes
from dask_tiled.formats.hdf5.choice import Choice, Survey, choose
from dask_tiled.formats.hdf5.convention import Calibration
from dask_tiled.formats.hdf5.conventions import CONVENTIONS, INSTRUMENT
from dask_tiled.formats.hdf5.datasets import MOST_NAMED, Picture, number_type
from dask_tiled.formats.hdf5.detector import detector_facts, read_corrections
from dask_tiled.formats.hdf5.facts import Facts
from dask_tiled.formats.hdf5.grids import Box
from dask_tiled.formats.hdf5.library import filters_of, safely
from dask_tiled.formats.hdf5.pieces import Pieces
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.registry import HEAD_BYTES, Format
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.channels import CHANNELS
from dask_tiled.model.decoders import BlockDecoder, Conversion, Decoder
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import unfinished
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Layout
from dask_tiled.model.listing import most_listed
from dask_tiled.model.pieces import PieceTable, spans
from dask_tiled.model.together import kept_each

MOST_AT_ONCE = 64
"""Describe at most this many datasets in one job."""
# fmt: off
EXTENSIONS = (
    ".h5", ".hdf5", ".hdf", ".hspy", ".nxs", ".nx5", ".emd", ".de5", ".mat", ".h5oina", ".ims",
    ".dm5",
)
# fmt: on
DATASETS: tuple[type, ...] = (Number, str, NoneType)
"""Types of the option ``dataset``."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for the magic bytes: at the start, or at a power of two after a user block."""
    at, is_whole = 0, len(head) < HEAD_BYTES
    while found := head[at : at + 8] if is_whole or at < HEAD_BYTES else read_head(path, 8, at):
        if found == HDF5:
            return None
        at = 2 * at or 512
    return f"does not begin with {HDF5!r}"


def describe(
    paths: Sequence[str],
    *,
    dataset: int | str | None = None,
    sig_dims: int | None = None,
    level: int = 0,
    frames: str | slice = "sum",
    rebin_energy: int = 1,
) -> Description:
    """Describe a dataset of an HDF5 file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    dataset : int or str, optional
        Path of the dataset in the file, or of a group, for its default dataset; the title of an
        image of Velox or H5OINA; or a number in the list of datasets in the metadata. By default
        the one that the file's convention designates; else the largest dataset with two axes or
        more.
    sig_dims : int, optional
        How many of the last axes are signal axes; by default from the file, or 2.
    level : int
        Level of the pyramid of an Imaris file, 0 for full resolution.
    frames : "sum" or slice
        Frames of a spectrum image of Velox: added up, or some of them along an axis of their own.
    rebin_energy : int
        Neighbouring channels of a spectrum image of Velox that are added up.
    """
    file = File.only(paths, "hdf5")
    check_whole("level", level, least=0, path=file.path)
    if not isinstance(dataset, DATASETS):
        expected = "a path, a title or a number"
        raise DatasetError(
            "invalid dataset", path=file.path, expected=expected, found=repr(dataset)
        )
    if sig_dims is not None:
        check_whole("sig_dims", sig_dims, least=1, path=file.path)
    asked, known = Asked(sig_dims, level, frames, rebin_energy, most_listed()), border()
    told = repr((asked, known is not None and known.outside, is_filling()))
    desc = kept_each(partial(_looked, asked), file, dataset, told, MOST_AT_ONCE)
    if isinstance(desc, DatasetError):
        raise desc
    if any(needs_imagecodecs(decoder) for decoder in desc.layout.decoders):
        require("imagecodecs", "hdf5", file.path)
    return desc


class Asked(NamedTuple):
    """Options of a description."""

    sig_dims: int | None
    level: int
    frames: str | slice
    rebin_energy: int
    most: int | None
    """Maximum number of datasets listed in the metadata."""


def _looked(
    asked: Asked, file: File, datasets: Sequence[int | str | None]
) -> Sequence[Description | DatasetError]:
    """Describe datasets in a child process; return an error for each that cannot be described."""
    # If facts are damaged, pixels may be readable.
    looks = [partial(look, file, datasets, asked, facts) for facts in (True, False)]
    try:
        return safely(file, *looks)
    except CorruptFileError:
        if len(datasets) == 1:
            raise
    return [_alone(asked, file, one) for one in datasets]  # one of them crashes the library


def _alone(asked: Asked, file: File, dataset: int | str | None) -> Description | DatasetError:
    try:
        return _looked(asked, file, [dataset])[0]
    except DatasetError as error:
        return error


def look(
    file: File,
    datasets: Sequence[int | str | None],
    asked: Asked,
    with_facts: bool,  # noqa: FBT001 - as the parameters of `describe` are
) -> Sequence[Description | DatasetError]:
    """Describe datasets, in this process."""
    problem = "the HDF5 library cannot read the file"
    found: list[Description | DatasetError] = []
    with Guard(file.path, problem), Tree(file) as tree:
        survey = Survey.of(tree)
        doubts = [*tree.doubts]
        for dataset in datasets:
            tree.doubts[:] = doubts
            try:
                with Guard(file.path, problem):
                    found.append(_look_at(tree, survey, dataset, asked, with_facts=with_facts))
            except DatasetError as error:
                found.append(error)
    return found


def _look_at(
    tree: Tree, survey: Survey, dataset: int | str | None, asked: Asked, *, with_facts: bool
) -> Description:
    choice = choose(tree, survey, dataset, asked.level)
    picture = _asked(tree.file.path, choice.picture, asked.frames, asked.rebin_energy)
    listed = _without_parts(choice.listed, picture)[: asked.most]
    choice = choice._replace(picture=picture, listed=listed)
    return _describe(tree, choice, asked.sig_dims, with_facts=with_facts)


def _without_parts(listed: Sequence[Picture], chosen: Picture) -> list[Picture]:
    """Leave out the parts of series, except a chosen one."""
    series = {one.path for one in listed if one.is_series}
    return [
        one
        for one in listed
        if one.path == chosen.path or posixpath.dirname(one.path) not in series
    ]


def _asked(path: str, picture: Picture, frames: str | slice, bins: int) -> Picture:
    """Return the part of an array of events that is asked for; refuse to cut others."""
    if picture.events is not None:
        events = picture.events.asked(path, frames, bins)
        return picture._replace(shape=events.shape, events=events)
    for name, value, usual in (("frames", frames, "sum"), ("rebin_energy", bins, 1)):
        if value != usual:
            problem, expected = f"{name} is for spectrum images of Velox", repr(usual)
            raise DatasetError(
                problem, path=path, where=picture.path, expected=expected, found=repr(value)
            )
    return picture


def _describe(tree: Tree, choice: Choice, sig_dims: int | None, *, with_facts: bool) -> Description:
    picture = choice.picture
    first, ndim = picture.members[0], len(picture.shape)
    told_by, (axes, told) = _calibration(tree, picture)
    split = max(0, ndim - (sig_dims or told or 2))
    parts = picture.path.split("/")
    around = ["/".join(parts[:k]) or "/" for k in range(1, len(parts) + 1)]
    attributes, said = {}, Facts(tree)
    if with_facts:
        attributes = {name: plain_attributes(tree.get(tree.root, name)) for name in around}
        said.read(picture)
    orientation = f"the axes of the file in the order {picture.order}" if picture.order else ""
    metadata = {
        "dataset": picture.path,
        "dataset_from": choice.told_by,
        **picture.facts(),
        "filters": tuple(number for number, _ in filters_of(first)),
        "orientation": orientation or "axes as they are stored",
        "axes_from": told_by or "nothing in the file",
        "units": label(attribute(first, "units")) if with_facts else "",
        "datasets": {one.path: one.facts() for one in choice.listed},
        "attributes": {name: found for name, found in attributes.items() if found},
        "facts": said.found,
        "facts_complete": said.complete,
    }
    nav, sig = picture.shape[:split], picture.shape[split:]
    detector = detector_facts(tree, picture.path, sig) if with_facts and not picture.order else {}
    if detector:
        metadata["detector"] = detector
    if split > 1 and axes[split - 1].labels:
        metadata[CHANNELS] = axes[split - 1].labels
    if picture.events is not None:
        layout = picture.events.layout(tree)
        desc = Description.of("hdf5", layout.show(nav), {"hdf5": metadata}, _named(axes, split))
    else:
        pieces, layout = _laid_out(tree, picture, split)
        if missing := (*picture.missing, *pieces.missing):
            metadata["missing_files"] = missing
        if pieces.unwritten:
            metadata["unwritten_chunks"] = pieces.unwritten
        named, base = _named(axes, split), pieces.base_shape()
        desc = Description.of("hdf5", layout.show(nav), {"hdf5": metadata}, named, base_shape=base)
        fill = pieces.fill_value
        conversion = Conversion.of(layout.dtype, tree.file.path, fill_value=fill)
        desc = replace(desc, conversion=conversion)
    desc = desc.with_doubts(*choice.doubts, *tree.doubts)
    if tree.root.file.swmr_mode and not tree.file.grows:
        desc = desc.with_doubts(unfinished("another program has the file open for writing"))
    counts = (one.announced(tree, picture) for one in CONVENTIONS)
    announced = next(filter(None, counts), None)
    if announced is None:
        desc = desc.with_doubts(*picture.doubts)
    else:
        desc = desc.with_announced(*announced)
    scans = (one.scan(tree, picture, desc.nav_shape[0]) for one in CONVENTIONS if len(nav) == 1)
    for scan in filter(None, scans):
        desc = desc.with_facts(facts={**said.found, **scan.facts}).with_doubts(*scan.doubts)
        desc = desc.with_scan(scan.shape, scan.told_by, scan.axes)
        whole = [Cut(0, 1, length) for length in desc.shape[:-1]]
        return desc.cut([*whole, Cut(0, 1, 1, kept=False)]) if scan.flat else desc
    return desc


def _laid_out(tree: Tree, picture: Picture, split: int) -> tuple[Pieces, Layout]:
    """Return the pieces and the layout of an array with ``split`` navigation axes."""
    first, order = picture.members[0], picture.order
    grid, sig = picture.shape[:split] or (1,), picture.shape[split:]
    stored = grid + sig
    if order:
        if len(order) == len(sig):  # add an axis of one frame
            order = (0, *(axis + 1 for axis in order))
        lead = len(order) - first.ndim
        stored = (*((1,) * lead + picture.grid)[-lead:], *first.shape) if lead else first.shape
        grid = tuple(stored[axis] for axis in order)[: -len(sig)]
    pieces = Pieces(tree, stored, picture.dtype, order, sig_ndim=len(sig))
    for member, origin in picture.placed(tree):
        stored_as = number_type(member) if picture.is_series else None
        pieces.add(member, (0,) * (len(stored) - len(origin)) + origin, stored_as)
    if pieces.missing and not pieces.has_pixels:
        what, names = "all files that hold the dataset are missing", pieces.missing[:MOST_NAMED]
        path, where = tree.file.path, picture.path
        raise MissingFileError(what, path=path, where=where, expected=", ".join(names))
    lost = _merged(grid, (*pieces.lost, *picture.lost(tree)))
    options: dict[str, Any] = {"lost": lost, "partial": pieces.covers_lost}
    table = pieces.table()
    files = _used(pieces.files, table, pieces.decoders, (1,) * len(sig))
    return pieces, Layout(files, grid, sig, table, pieces.decoders, **options)


def _used(
    files: Sequence[File],
    table: PieceTable,
    decoders: Sequence[Decoder | BlockDecoder],
    repeats: tuple[int, ...],
) -> list[File]:
    """Cut growing files after their last piece: what is allocated ahead is removed at the end."""
    if not any(file.grows for file in files):
        return [*files]
    _, last = spans(table, decoders, repeats)
    last, numbers = np.broadcast_arrays(last, table.rows().file)
    ends = (int(last[numbers == k].max(initial=1)) for k in range(len(files)))
    pairs = zip(files, ends, strict=True)
    return [replace(x, size=min(x.size, end)) if x.grows else x for x, end in pairs]


def _merged(grid: tuple[int, ...], boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """Return the frames in boxes of the array as ascending ranges."""
    if not boxes:
        return []
    lost = np.zeros(grid, bool)
    for start, shape in boxes:
        lost[tuple(slice(a, a + n) for a, n in zip(start, shape[: len(grid)], strict=False))] = True
    edges = np.flatnonzero(np.diff(lost.reshape(-1).astype(np.int8), prepend=0, append=0))
    return [(first, stop) for first, stop in edges.reshape(-1, 2).tolist()]


def _calibration(tree: Tree, picture: Picture) -> tuple[str, Calibration]:
    """Return the axes from the conventions, with their names.

    Navigation axes and signal axes are each those of the first convention that describes any.
    """
    names, axes, sig_dims = list[str](), (Axis(""),) * len(picture.shape), None
    for convention in CONVENTIONS:
        found = convention.calibration(tree, picture)
        if found is None or (sig_dims and found.sig_dims not in {None, sig_dims}):
            continue
        sig_dims = sig_dims or found.sig_dims
        split = max(0, len(axes) - (sig_dims or 2))
        halves = ((one[:split], one[split:]) for one in (axes, found.axes))
        nav, sig = (new if {*old} == {Axis("")} else old for old, new in zip(*halves, strict=True))
        if not names or (*nav, *sig) != axes:
            names.append(convention.name)
        axes = *nav, *sig
        if {Axis("")} not in ({*nav}, {*sig}):
            break
    return ", ".join(names), Calibration(axes, sig_dims)


def _named(axes: Sequence[Axis], nav_ndim: int) -> tuple[Axis, ...]:
    """Return axes with default names in place of empty or repeated ones."""
    usual = nav_axes(nav_ndim) + sig_axes(len(axes) - nav_ndim)
    names = [axis.name for axis in axes]
    found = list(axes)
    for k, axis in enumerate(axes):
        if not axis.name or names.count(axis.name) > 1:
            name = usual[k].name
            found[k] = replace(axis, name=f"axis_{k}" if name in names else name)
    return tuple(found)


FORMAT = Format(
    name="hdf5",
    extensions=EXTENSIONS,
    summary="any dataset of numbers, with any filter, in chunks or not, and in several files",
    nav_shape_from="the shape of the dataset, all but its last axes",
    sniff=sniff,
    describe=describe,
    instrument=INSTRUMENT,
    corrections=read_corrections,
    peers=("LiberTEM", "RosettaSciIO", "h5py"),
    aliases=(
        "nexus",
        "hyperspy",
        "eiger",
        "velox",
        "arina",
        "ncem_emd",
        "h5oina",
        "imaris",
        "dm5",
        "delmic",
    ),
)
