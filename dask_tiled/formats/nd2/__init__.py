"""Nikon ND2: the chunk map, trees of metadata, and frames of interleaved channels."""
