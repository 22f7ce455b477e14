"""TIFF: pages of one picture, stacks of ImageJ and others."""
