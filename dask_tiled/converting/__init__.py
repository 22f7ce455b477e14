"""Conversion to other file formats."""
