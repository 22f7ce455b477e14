"""Blocks of arrays: align, read ahead, iterate, run tasks, show progress."""
