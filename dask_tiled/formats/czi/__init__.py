"""Zeiss CZI: the directory of tiles, their bytes, and the metadata in XML."""
