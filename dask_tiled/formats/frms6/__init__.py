"""FRMS6 sets of the pnCCD of PNDetector."""
