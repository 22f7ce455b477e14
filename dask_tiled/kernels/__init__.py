"""Everything that numba compiles, on plain arrays."""
