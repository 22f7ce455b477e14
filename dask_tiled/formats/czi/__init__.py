"""Zeiss CZI: a directory of tiles, their bytes, and what the XML says of the picture."""
