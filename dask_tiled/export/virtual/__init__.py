"""Virtual zarr: references to the bytes of files, and stores that decode on request."""
