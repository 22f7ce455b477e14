"""The parts of ``benchmarks/compare.py`` and ``benchmarks/expressions.py``."""
