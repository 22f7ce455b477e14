"""Bruker's composite files: their container, and maps of X-ray spectra."""
