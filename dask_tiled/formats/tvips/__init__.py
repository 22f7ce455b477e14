"""TVIPS image series."""
