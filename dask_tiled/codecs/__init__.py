"""Decoders as pipelines of codecs: documents in the words of zarr 3, run and checked here."""
