"""Zarr, format 3."""
