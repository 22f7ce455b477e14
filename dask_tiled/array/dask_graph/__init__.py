"""Interface to dask: graphs are read as trees, and rewritten to tasks on tiles."""
