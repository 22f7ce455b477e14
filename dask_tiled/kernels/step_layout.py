"""How steps of programs are written down as numbers, for who writes and for who runs them."""

FIXED, TILE, ARRAY = 0, 1, 2
"""Where an operand lies: always in the same place, in the tile, or in an array of rows."""
ADDRESS, DATA, OPERANDS, GROUP, PLACES = 0, 1, 2, 3, 4
"""Columns of a step: what is called, with what beside, how many operands, for how many pixels at
once, then the places of the operands."""
MODE, BASE, ROW_BYTES, ROW_NUMBERS, STEP = 0, 1, 2, 3, 4
"""Columns of a place."""
PLACE_COLUMNS = 5
MOST_OPERANDS = 4
STEP_COLUMNS = PLACES + PLACE_COLUMNS * MOST_OPERANDS
COLUMNS, PER_FRAME, VECTOR, PIECE = 0, 1, 2, 3
"""Where the header of a program has the pixels of a row, the rows of a frame, the pixels of a
vector, and those of a frame that are taken before those of the next one; 0 is all."""
