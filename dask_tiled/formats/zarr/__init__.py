"""Zarr, formats 2 and 3, in folders, behind URLs and in zip files."""
