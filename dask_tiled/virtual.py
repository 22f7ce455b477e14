"""Files of detectors in VirtualiZarr, for those who import no more than its parser."""

from __future__ import annotations

from dask_tiled.bridges.virtualizarr import Parser

__all__ = ["Parser"]
