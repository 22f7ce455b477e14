"""Sparse frames: a TOML file and three arrays."""
