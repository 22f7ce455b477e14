"""Trees of computations, and the plans of tasks; dask is unknown here."""
