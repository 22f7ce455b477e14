"""Whether code runs in the cells of a notebook."""

from __future__ import annotations

import sys
from typing import Any


def notebook_shell() -> Any | None:
    """Return the shell of IPython that runs cells in a kernel of Jupyter; None anywhere else."""
    ipython: Any = sys.modules.get("IPython")  # importing it takes long, and a kernel has done so
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None
