"""Export to zarr, and compare exports with their source."""
