"""TVIPS: ``.tvips`` series."""
