"""Opened arrays: dask arrays that know their files."""
