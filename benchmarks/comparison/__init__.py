"""Modules shared by ``benchmarks/compare.py`` and ``benchmarks/expressions.py``."""
