"""Computation on the tiles of a chunk: folds, expressions, reductions, functions of users."""
