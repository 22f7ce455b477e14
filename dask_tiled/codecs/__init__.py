"""Decoders as pipelines of zarr 3 codecs: run and checked here."""
