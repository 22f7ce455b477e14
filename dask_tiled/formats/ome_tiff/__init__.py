"""OME-TIFF: sets of TIFF files that one XML describes."""
