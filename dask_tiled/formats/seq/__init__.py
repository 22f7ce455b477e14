"""StreamPix sequences, ``.seq``."""
