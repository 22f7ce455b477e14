"""NIfTI-1 and -2, and Analyze 7.5."""
