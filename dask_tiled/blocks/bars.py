"""Progress bars."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dask_tiled.notebooks import CellText, notebook_shell


def progress_bar(**options: Any) -> Any:
    """Make a bar of tqdm: of widgets in a notebook that has them, and else of text.

    ``disable=None`` hides text that goes elsewhere than to a terminal or into a cell.
    """
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # it misses the widgets aloud
        from tqdm.auto import tqdm
    if notebook_shell() is not None:
        options["disable"] = bool(options.get("disable"))
        if "tqdm.notebook" not in {base.__module__ for base in tqdm.__mro__}:
            options["file"] = _Cell()
    elif sys.stderr is None:  # a program without a terminal
        options["disable"] = True
    return tqdm(**options)


class _Cell:
    """A file that shows what is written last below the cell, where stderr would be red."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._text = CellText()

    def write(self, text: str) -> None:
        """Show a bar; the end of the line leaves it there."""
        if text.strip():
            self._text.show(text.strip())

    def flush(self) -> None:
        """Do nothing: it is shown."""
