"""HDF5: contiguous and chunked datasets, read without the HDF5 library where possible."""
