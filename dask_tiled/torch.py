"""Data sets of PyTorch; needs ``pip install "dask-tiled[torch]"``."""

from __future__ import annotations

from dask_tiled.training.loading import Frames, IterableBatches

__all__ = ["Frames", "IterableBatches"]
