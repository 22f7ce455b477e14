"""FRMS6: sets of pnCCD files."""
