"""Leica LIF and LOF: blocks of bytes, and XML that describes the images in them."""
