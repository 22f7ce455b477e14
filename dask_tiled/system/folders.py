"""The folder for caches of a user."""

from __future__ import annotations

import os
import sys


def user_caches() -> str:
    """Return the folder in which programs keep what they can make again.

    It is below the null device if the user has no home folder: nothing can be written there.
    """
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        home = os.devnull
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches")
    if os.name == "nt":
        return os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    xdg = os.environ.get("XDG_CACHE_HOME", "")  # its specification ignores relative paths
    return xdg if os.path.isabs(xdg) else os.path.join(home, ".cache")
