"""Layout of the steps of a program as integers, shared by its writer and its driver."""

FIXED, TILE, ARRAY = 0, 1, 2
"""Location of an operand: a fixed address, the tile, or an array with a row per frame."""
ADDRESS, DATA, OPERANDS, GROUP, PLACES = 0, 1, 2, 3, 4
"""Columns of a step: address of the function, its extra data, number of operands, pixels in a
group; then the locations of the operands."""
MODE, BASE, ROW_BYTES, ROW_NUMBERS, STEP = 0, 1, 2, 3, 4
"""Columns of an operand's location."""
OWN, FETCHES, FRAMES = -1, -2, -3
"""Extra data of a primitive, of one that prefetches its first operand, and of one that takes
several frames."""
PLACE_COLUMNS = 5
MOST_OPERANDS = 4
STEP_COLUMNS = PLACES + PLACE_COLUMNS * MOST_OPERANDS
COLUMNS, PER_FRAME, VECTOR, PIECE, PIXEL_BYTES = 0, 1, 2, 3, 4
"""Positions in the header of a program: pixels of a row, rows of a frame, pixels of a vector,
pixels of a frame processed before the next frame (0 is all), and bytes of a pixel."""
