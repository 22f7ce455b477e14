"""Export to zarr, and what compares it with its source."""
