"""EMD of NCEM, py4DSTEM and Prismatic: groups with an ``emd_group_type``.

Layout facts: the EMD file format of the NCEM and of emdfile 1.0, which py4DSTEM writes; files of
Prismatic.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from dask_tiled.formats.hdf5.attributes import attribute, label, text_of
from dask_tiled.formats.hdf5.convention import (
    Calibration,
    Convention,
    Meant,
    positions_of,
    read_axis,
)
from dask_tiled.formats.hdf5.datasets import Found, Picture, by_size
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import Tree

ARRAYS = {"1", "array"}
"""Values of ``emd_group_type`` for groups with an array, of NCEM and emdfile."""
MOST_GROUPS = 64
"""Read at most this many top-level groups for facts."""
PREFIXED = re.compile(
    r"(?<![^\W_])(?<!_)(da|[yzafpnuµμmcdhkMGTPEZY])_"
    r"(m|s|g|A|V|eV|Hz|rad|sr|K|Pa|bar|W|J|C|F|T|N|mol|L|Ohm|Ω)(?![^\W\d])"
)
"""A unit as NCEM writes it: ``n_m`` for nm. Other underscores are part of the unit."""


class Emd(Convention):
    """EMD, except Velox."""

    name = "EMD"
    instrument = (
        ("microscope", "**/*microscope/name"),
        ("beam_energy", "**/*microscope/voltage", "@"),
        ("beam_energy", "**/*microscope/accelerating_voltage", "@"),
        ("beam_energy", "**/*microscope/beam_energy", "@eV"),
        ("beam_energy", "**/simulation_parameters/E", "keV"),
        ("convergence_angle", "**/convergence_semiangle_mrad", "mrad"),
        ("convergence_angle", "**/simulation_parameters/sa", "mrad"),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List the array of each group: ``data``, or else the largest that is not an axis."""
        arrays = []
        for path, group in found.groups:
            if text_of(attribute(group, "emd_group_type")) in ARRAYS:
                found.raise_lost(tree.file.path, f"{path}/data")
                found.raise_ragged(tree.file.path, f"{path}/data")
                names = {one: posixpath.basename(one.path) for one in found.inside(path)}
                inner = [one for one, name in names.items() if not re.fullmatch(r"dim\d+", name)]
                named = [one for one in inner if names[one] == "data"]
                arrays += (named or by_size(inner))[:1]
        return Meant("emd_group_type", by_size(arrays), by_size=len(arrays))

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read ``dim1``, ``dim2``, ...; emdfile starts at ``dim0``."""
        group = picture.group(tree)
        if "emd_group_type" not in group.attrs:
            return None
        first = 0 if tree.is_link(group, "dim0") else 1
        axes = []
        for k, size in enumerate(picture.shape, first):
            values = positions_of(tree, group, f"dim{k}", f"dim{k}")
            name = f"dim{k}" if tree.is_link(group, f"dim{k}") else ""
            name = name if values is None else label(attribute(values, "name"))
            told = "" if values is None else label(attribute(values, "units"))
            units = label(PREFIXED.sub(r"\1\2", told.strip("[]")))
            axes.append(read_axis(tree, values, name, size, units))
        return Calibration(tuple(axes))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the other top-level groups, and the metadata of the array's own group."""
        if attribute(picture.group(tree), "emd_group_type") is None:
            return {}
        own = picture.folder.split("/")[1]
        others = [name for name in names_in(tree.root, MOST_GROUPS) if name != own]
        inner = f"{own}/metadata", f"{own}/metadatabundle"
        return {f"/{name}": () for name in (*others, *inner)}
