"""JEOL's files: trees of named entries, images, spectra and lists of them."""
