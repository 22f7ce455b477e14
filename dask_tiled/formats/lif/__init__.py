"""Leica LIF and LOF: memory blocks, and the XML that describes their images."""
