"""Zarr without a copy: references to the bytes of files, and stores that decode."""
