"""Decoders as pipelines of zarr 3 codecs: validated and run."""
