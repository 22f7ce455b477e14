"""FITS images."""
