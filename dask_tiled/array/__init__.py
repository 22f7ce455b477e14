"""The dask array: slices, operators, reductions, functions on tiles, and all graphs."""
