"""The parts of ``benchmarks/compare.py``: formats, readers, limits, measuring, table and plot."""
