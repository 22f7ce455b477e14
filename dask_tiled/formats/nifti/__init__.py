"""NIfTI-1, NIfTI-2 and Analyze."""
