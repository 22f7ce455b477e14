"""Out again: zarr, references to bytes, and blocks in order."""
