"""Chunks and tiles, as numbers with reasons."""
