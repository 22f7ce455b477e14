"""Virtual detectors, radial profiles, centres of mass and differential phase contrast."""

from dask_tiled.tiles.dpc import ScanRotation, phase_from_com, scan_rotation
from dask_tiled.tiles.masks import apply_masks, center_of_mass
from dask_tiled.tiles.profiles import radial_profile
from dask_tiled.tiles.shapes import disk, ring

# fmt: off
__all__ = [
    "ScanRotation", "apply_masks", "center_of_mass", "disk", "phase_from_com", "radial_profile",
    "ring", "scan_rotation",
]
# fmt: on
