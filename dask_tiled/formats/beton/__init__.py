"""FFCV sample files, ``.beton``."""
