"""The seam to dask: what its graphs say in trees, and graphs of what is computed on tiles."""
