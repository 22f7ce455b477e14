"""Facts of Dectris detectors: bad pixels, and corrections of counts.

Names: the documentation of the Eiger detectors of Dectris, and the NeXus class NXdetector.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from dask_tiled.errors import CorruptFileError, DatasetError, Guard
from dask_tiled.files.file import File
from dask_tiled.formats.hdf5.attributes import plain_value
from dask_tiled.formats.hdf5.library import load_plugins, names_in, safely, shape_of
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array

DETECTOR = "instrument/detector"
MASKS = "detectorSpecific/pixel_mask", "pixel_mask"
"""Paths of the mask, which holds bits for the defects of each pixel, or 0."""
CHANNEL = "_channel"
"""Ending of the names of groups with a mask for each channel."""
MOST_NAMES = 1000
"""Search at most this many members of the detector for channels."""
SAID = ("pixel_mask_applied", "flatfield_correction_applied", "countrate_correction_applied")
CUTOFF = "countrate_correction_count_cutoff"
TABLES = ("countrate_correction_table", "detectorModule_000/countrate_correction_table")


def detector_facts(tree: Tree, dataset: str, sig_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the pixel masks that fit the frames, and facts about count corrections.

    Parameters
    ----------
    tree : Tree
    dataset : str
        Path of the frames; the detector is in the same entry.
    sig_shape : tuple of int
        Shape of a frame.

    Returns
    -------
    dict
        ``pixel_mask`` and ``countrate_correction_table`` are paths in the file, ``pixel_masks``
        are paths by channel; the rest are values as stored. Empty for other detectors.
    """
    import h5py

    detector = f"/{dataset.strip('/').split('/')[0]}/{DETECTOR}"
    found: dict[str, Any] = {}

    def at(name: str) -> Any:
        item = _look(tree, f"{detector}/{name}")
        return item if isinstance(item, h5py.Dataset) and item.shape is not None else None

    def is_mask(name: str) -> bool:
        item = at(name)
        return item is not None and item.dtype.kind in "iu" and shape_of(item) == sig_shape

    for name in filter(is_mask, MASKS):
        found.setdefault("pixel_mask", f"{detector}/{name}")
    group = _look(tree, detector)
    members = names_in(group, MOST_NAMES) if isinstance(group, h5py.Group) else []
    channels = (name for name in members if name.endswith(CHANNEL))
    of_channels = {
        name.removesuffix(CHANNEL): f"{detector}/{name}/{MASKS[1]}"
        for name in channels
        if is_mask(f"{name}/{MASKS[1]}")
    }
    if of_channels and "pixel_mask" not in found:
        found["pixel_masks"] = of_channels
    for name in (*SAID, CUTOFF):
        items = (at(f"{folder}{name}") for folder in ("", "detectorSpecific/"))
        item = next((one for one in items if one is not None and not one.shape), None)
        if item is not None and item.dtype.kind in "biuf":
            with suppress(*BROKEN):
                found[name] = plain_value(tree.read(item), 1)
    for name in TABLES:
        if at(f"detectorSpecific/{name}") is not None:
            found["countrate_correction_table"] = f"{detector}/detectorSpecific/{name}"
    return found


def _look(tree: Tree, path: str) -> Any:
    try:
        return tree.look(tree.root, path)
    except (DatasetError, *BROKEN):  # a link out of the folder, or damage
        return None


def read_corrections(desc: Description) -> Corrections:
    """Read the pixel mask of the detector; pixels with any bit set are excluded.

    Raise a DatasetError if the file has no mask for frames of this shape, or masks that differ for
    the channels that are shown.
    """
    file, shape = desc.files[0], desc.layout.sig_shape
    facts = desc.metadata["hdf5"]
    told = facts.get("detector", {})
    by_channel = told.get("pixel_masks", {})
    labels = next((axis.labels for axis in desc.axes if axis.labels), tuple(by_channel))
    shown = [facts["channel"]] if "channel" in facts else labels
    paths = [by_channel.get(name) for name in shown]
    if "pixel_mask" in told:
        paths = [told["pixel_mask"]]
    if not paths or None in paths:
        place = MASKS[0] if None not in paths else f"{shown[paths.index(None)]}{CHANNEL}/{MASKS[1]}"
        raise DatasetError(
            "no pixel mask in the file",
            path=file.path,
            expected=f"a dataset of {shape} whole numbers at {DETECTOR}/{place}",
        )
    first, *others = (safely(file, partial(read_mask, file, x, shape)) for x in paths)
    if any((one != first).any() for one in others):
        raise DatasetError(
            "the pixel masks of the channels differ",
            path=file.path,
            where=DETECTOR,
            expected="one mask for all frames",
            found=", ".join(shown),
            hint="Pass Corrections(excluded_pixels=...) for each channel.",
        )
    return Corrections(excluded_pixels=first != 0)


def read_mask(file: File, path: str, shape: tuple[int, ...]) -> Array:
    """Read a mask, in this process."""
    with Guard(file.path, f"the pixel mask {path} cannot be read"), Tree(file) as tree:
        item = tree.get(tree.root, path)
        if shape_of(item) != shape or item.dtype.kind not in "iu":
            problem, found = "the mask has changed", item.shape
            raise CorruptFileError(problem, path=file.path, where=path, expected=shape, found=found)
        load_plugins()
        mask: Array = tree.read(item)
        return mask
