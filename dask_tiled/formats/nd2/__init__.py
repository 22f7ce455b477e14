"""Nikon ND2: a map of chunks, trees of values, and frames whose channels take turns."""
