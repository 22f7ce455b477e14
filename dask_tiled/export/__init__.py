"""Export: zarr copies, and references to the bytes of files."""
