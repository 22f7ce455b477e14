"""Blocks of arrays: aligned, read ahead, gone through in order, with a bar."""
