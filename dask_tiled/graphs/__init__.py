"""dask's graphs: layers become trees, plans become layers."""
