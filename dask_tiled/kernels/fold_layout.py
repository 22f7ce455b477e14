"""Layout of the call of a fold as integers, shared by its writer and the kernels that call it."""

FOLD, PIXEL_BYTES, RESULTS, WEIGHTS, ROWS = 0, 1, 2, 6, 10
"""Columns: address of the fold, and bytes of a pixel; the results and the weights; and the address
of the row of the results for each frame, if several folds are called."""
COLUMNS = 11
