"""TIFF: pages of one image, stacks of ImageJ and others."""
