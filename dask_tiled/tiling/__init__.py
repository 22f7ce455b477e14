"""Which chunks and which tiles, as numbers with reasons."""
