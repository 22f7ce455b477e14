"""Everything that numba compiles, on plain arrays."""

try:
    import numba  # noqa: F401 - every module needs it
except ImportError as error:
    import platform

    raise ImportError(
        f"dask-tiled needs numba, which cannot be imported ({error}). It has no wheels for some "
        f"systems; this one is {platform.machine()} with Python {platform.python_version()}. "
        "conda-forge has numba for more: conda install numba"
    ) from error
