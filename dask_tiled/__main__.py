"""``python -m dask_tiled``."""

from __future__ import annotations

from dask_tiled.command_line import main

if __name__ == "__main__":
    main()
