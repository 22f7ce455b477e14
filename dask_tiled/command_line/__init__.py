"""Command line: ``dask-tiled``, and ``python -m dask_tiled``.

Importing the modules imports only click: help and completion are immediate.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, and exit the process with its exit code."""
    if not all(map(find_spec, ("click", "rich"))):
        hint = 'pip install "dask-tiled[cli]"'
        sys.stderr.write(f"dask-tiled: the command line needs click and rich. Run: {hint}\n")
        sys.exit(2)
    from dask_tiled.command_line.app import app

    app(prog_name="dask-tiled")
