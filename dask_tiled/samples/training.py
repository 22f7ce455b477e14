"""Images of circles, squares and triangles with labels, as an FFCV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAMPLES, SIDE = 600, 32


def draw_shapes() -> dict[str, NDArray[np.generic]]:
    """Return images, labels and centres; position, size and colours are random."""
    rng = np.random.default_rng(8)
    label = rng.integers(0, 3, SAMPLES)
    centre = rng.integers(9, SIDE - 9, (SAMPLES, 2))
    size = rng.integers(5, 9, SAMPLES)[:, None, None]
    dark, light = rng.integers(0, 100, (SAMPLES, 3)), rng.integers(140, 256, (SAMPLES, 3))
    y, x = (np.indices((SIDE, SIDE)) - centre[:, :, None, None]).swapaxes(0, 1)
    circle = x * x + y * y <= size * size
    square = np.maximum(abs(x), abs(y)) <= size - 1
    triangle = (abs(y) <= size) & (2 * abs(x) <= y + size)
    inside = np.choose(label[:, None, None], [circle, square, triangle])
    image = np.where(inside[..., None], light[:, None, None], dark[:, None, None])
    image = image + rng.integers(-12, 13, image.shape)
    return {
        "image": image.clip(0, 255).astype(np.uint8),
        "label": label.astype(np.int64),
        "centre": centre.astype(np.float32),
    }


def write_shapes(folder: Path) -> None:
    """Write ``shapes.beton``."""
    from dask_tiled.training.beton import to_beton

    types = {"image": "image", "label": "int", "centre": ("f4", (2,))}
    path = folder / "shapes.beton"
    to_beton(path, draw_shapes(), types, page_size=1 << 21, progress=False)
