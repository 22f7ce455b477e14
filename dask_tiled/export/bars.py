"""Progress bars."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def progress_bar(**options: Any) -> Any:
    """Make a bar of tqdm: of widgets in a notebook that has them, and else of text."""
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # it misses the widgets aloud
        from tqdm.auto import tqdm
    if sys.stderr is None:  # a program without a terminal
        options["disable"] = True
    return tqdm(**options)
