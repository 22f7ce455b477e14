"""Messages of the package in the words of the command line."""

from __future__ import annotations

import re

from dask_tiled.command_line.exporting import BATCH, EXPORT, MAPS
from dask_tiled.command_line.opening import OPENING
from dask_tiled.command_line.record import BOUNDS


def as_typed(message: str) -> str:
    """Format a message as one line, with options as on the command line: ``--overwrite``."""
    from dask_tiled.model.doubts import SETTLED_BY

    named = *OPENING, *EXPORT, *MAPS, *BATCH, *BOUNDS
    typed = {str(one.name): max(one.opts, key=len) for one in named}
    of_formats = {name for some in SETTLED_BY.values() for name in some if name.isidentifier()}
    typed |= {name: f"-O {name}=" for name in of_formats - typed.keys()}

    def option(found: re.Match[str]) -> str:
        name = typed[found[1]]
        value = re.sub(r"['() ]|,(?=\)$)", "", found[2] or "")
        if name[-1] == "=":
            return name + value
        return name if value in {"True", ""} else f"{name} {value}"

    sentences = re.sub(r"([^\s.:;?!])\s*\n\s*(?=[A-Z])", r"\1. ", message)
    line = " ".join(sentences.replace("formats()", "`dask-tiled formats`").split())
    names = "|".join(typed)
    return re.sub(rf"\b({names})=(\([\w, -]*\)|'[^']*'|[\w.-]*\w)?", option, line)
