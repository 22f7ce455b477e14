"""Out again: zarr, and blocks in order."""
