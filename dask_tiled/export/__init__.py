"""Out again: zarr, and references to bytes."""
