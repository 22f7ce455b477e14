"""Virtual detectors, radial profiles, centres of mass and differential phase contrast."""

from dask_tiled.measuring.disks import Disk, find_disk
from dask_tiled.tiles.descans import Descan, descan
from dask_tiled.tiles.dpc import Dpc, dpc, phase_from_com, scan_rotation
from dask_tiled.tiles.masks import apply_masks, center_of_mass
from dask_tiled.tiles.profiles import radial_profile
from dask_tiled.tiles.shapes import disk, ring
from dask_tiled.tiles.standard import standard
from dask_tiled.tiles.vectors import ScanRotation

# fmt: off
__all__ = [
    "Descan", "Disk", "Dpc", "ScanRotation", "apply_masks", "center_of_mass", "descan", "disk",
    "dpc", "find_disk", "phase_from_com", "radial_profile", "ring", "scan_rotation", "standard",
]
# fmt: on
