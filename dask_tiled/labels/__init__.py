"""Axes of results, followed through graphs."""
