"""What files hold, as frozen values: no dask, no numba, no pixels."""
