"""Gatan K2 IS: eight files of sectors."""
