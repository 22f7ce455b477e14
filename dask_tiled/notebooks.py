"""Whether code runs in the cells of a notebook, and texts that change below them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def notebook_shell() -> Any | None:
    """Return the shell of IPython that runs cells in a kernel of Jupyter; None anywhere else."""
    ipython: Any = sys.modules.get("IPython")  # importing it takes long, and a kernel has done so
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


class CellText:
    """A text below the cell that runs when it is first shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show the text in the place of the one before, also when another cell runs now."""
        shown = {"text/plain": text}
        if self._handle is None:
            display: Any = import_module("IPython.display").display
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
