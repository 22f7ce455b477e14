"""Notebook detection, and output that is updated in place."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def notebook_shell() -> Any | None:
    """Return IPython's shell in a Jupyter kernel, or None."""
    ipython: Any = sys.modules.get("IPython")  # imported by a kernel; importing is slow
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


class CellText:
    """A text below the cell that was running when it was first shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Replace the text, also while another cell runs."""
        shown = {"text/plain": text}
        if self._handle is None:
            display: Any = import_module("IPython.display").display
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
