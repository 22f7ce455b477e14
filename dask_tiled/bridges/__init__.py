"""Conversions to and from other packages."""
