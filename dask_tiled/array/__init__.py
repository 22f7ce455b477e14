"""Dask arrays of opened files: slices, operators, reductions, functions on tiles, graphs."""
