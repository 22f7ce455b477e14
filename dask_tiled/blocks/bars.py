"""Progress bars."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dask_tiled.notebooks import CellText, notebook_shell


def progress_bar(*, show: bool | None, **options: Any) -> Any:
    """Return a tqdm bar: widgets in a notebook that supports them, otherwise text.

    It counts bytes unless ``options``, passed to tqdm, name another unit. With ``show=None`` it is
    hidden unless stderr is a terminal or a notebook.
    """
    options = {"unit": "B", "unit_scale": True, **options}
    options["disable"] = None if show is None else not show
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # tqdm warns of missing widgets
        from tqdm.auto import tqdm
    if notebook_shell() is not None:
        options["disable"] = bool(options.get("disable"))
        if "tqdm.notebook" not in {base.__module__ for base in tqdm.__mro__}:
            options["file"] = _Cell()
    elif sys.stderr is None:  # a program without a console
        options["disable"] = True
    return tqdm(**options)


class _Cell:
    """A text stream that shows its last write below the cell; stderr would be shown in red."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._text = CellText()

    def write(self, text: str) -> None:
        """Replace the previous bar."""
        if text.strip():
            self._text.show(text.strip())

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""
