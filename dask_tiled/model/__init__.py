"""Immutable descriptions of the contents of files, independent of dask and numba."""
