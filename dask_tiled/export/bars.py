"""Progress bars."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dask_tiled.notebooks import notebook_shell


def progress_bar(**options: Any) -> Any:
    """Make a bar of tqdm: of widgets in a notebook that has them, and else of text.

    ``disable=None`` hides text that goes elsewhere than to a terminal or into a cell.
    """
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # it misses the widgets aloud
        from tqdm.auto import tqdm
    if notebook_shell() is not None:  # cells are no terminals, and stderr is red there
        options |= {"file": sys.stdout, "disable": bool(options.get("disable"))}
    elif sys.stderr is None:  # a program without a terminal
        options["disable"] = True
    return tqdm(**options)
