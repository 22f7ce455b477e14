"""The parser for VirtualiZarr, importable without the rest."""

from __future__ import annotations

from dask_tiled.bridges.virtualizarr import Parser

__all__ = ["Parser"]
