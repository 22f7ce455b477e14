"""``dask-tiled formats``: formats and their options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dask_tiled.command_line.opening import OPENING, complete_format
from dask_tiled.command_line.printing import columns, json_option, section, show, show_json

if TYPE_CHECKING:
    from dask_tiled.formats.registry import Format


@click.command()
@click.argument("name", required=False, shell_complete=complete_format)
@json_option
def formats(name: str | None, *, as_json: bool) -> None:
    """List the formats; or describe one of them, with its options."""
    from dask_tiled.formats.registry import formats as known_formats
    from dask_tiled.formats.registry import named

    known = known_formats()
    some = [named(name)] if name else [known[k] for k in sorted(known)]
    if as_json:
        show_json(
            {
                one.name: {
                    "extensions": one.extensions,
                    "reads": one.summary,
                    "nav_shape_from": one.nav_shape_from,
                    "options": one.options(),
                    "peers": one.peers,
                }
                for one in some
            }
        )
        return
    if name is None:
        rows = ((one.name, ", ".join(one.extensions), one.summary) for one in some)
        show(columns({"Format": None, "Files": 22, "What is read": None}, rows))
        return
    (one,) = some
    about = [
        ("files", ", ".join(one.extensions) or "any"),
        ("reads", one.summary),
        ("shape of the scan", one.nav_shape_from),
        ("also read by", ", ".join(one.peers) or "no other library known"),
    ]
    options = list(_meanings(one))
    show(section(one.name, about), *[section("Options: -O NAME=VALUE", options)] * bool(options))


def _meanings(one: Format) -> Iterator[tuple[str, str]]:
    """Yield the options of a format, with their descriptions from its docstring."""
    text = (inspect.getdoc(one.describe) or "").replace("``", "")
    told = re.findall(r"^([\w, ]+) : (.+\n(?:    .+\n?)*)", text, re.MULTILINE)
    known = {name: about for names, about in told for name in names.split(", ")}
    common = {option.name for option in OPENING} - {"dataset"}
    for name, default in one.options().items():
        if name in common:
            continue
        kind, _, meaning = known.get(name, "").partition("\n")
        meant = " ".join(meaning.split()) or "see the documentation of the format"
        yield name, f"{meant} ({kind or 'any'}{'' if default is None else f', {default!r}'})"
