"""Disks for tests: the share of each pixel that lies in one."""

import numpy as np


def covered(size, centres, radius, parts=4):
    """Return the share of each pixel that lies in a disk, for centres (n, 2)."""
    at = (np.arange(size * parts) + 0.5) / parts - 0.5
    y, x = (at - centres[:, k, None] for k in (0, 1))
    inside = y[:, :, None] ** 2 + x[:, None] ** 2 <= radius**2
    return inside.reshape(len(centres), size, parts, size, parts).mean((2, 4))
