"""Computations on frames that are still arriving."""
