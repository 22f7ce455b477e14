"""Ready-made jobs on tiles: virtual detectors, profiles, centres of mass and what follows."""

from dask_tiled.tiles.masks import apply_masks, center_of_mass
from dask_tiled.tiles.profiles import radial_profile
from dask_tiled.tiles.shapes import disk, ring

__all__ = ["apply_masks", "center_of_mass", "disk", "radial_profile", "ring"]
