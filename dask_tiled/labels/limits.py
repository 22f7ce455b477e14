"""How much is kept of the labels of arrays."""

from __future__ import annotations

KEPT_LABELS = 10_000
"""Maximum number of persisted arrays whose metadata are kept: some 3 KiB each, 30 MiB in all."""
