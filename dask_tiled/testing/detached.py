"""Pixels behind a text header, or in files beside it that its last line names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_parts(
    header: Path, text: str, key: str, parts: Sequence[bytes], *, pattern: bool
) -> list[Path]:
    """Write a header, and each part to a file of its own; the last line, from `key` on, names them.

    They are called like the header, with a number of three digits, and ``.raw``. With `pattern` the
    line has a number for ``printf``, and the first, the last and the step.
    """
    members = [header.with_name(f"{header.stem}{k:03}.raw") for k in range(len(parts))]
    for member, content in zip(members, parts, strict=True):
        member.write_bytes(content)
    names = "\n".join(["LIST", *(member.name for member in members)])
    if pattern:
        names = f"{header.stem}%03d.raw 0 {len(parts) - 1} 1"
    header.write_text(f"{text}{key}{names if len(parts) > 1 else members[0].name}\n", "utf8")
    return [*members, header]


def lines_of(pairs: dict[str, object], between: str) -> str:
    """Write a line for each key whose value is not None, sequences with blanks between items."""
    return "".join(
        f"{key}{between}{' '.join(map(str, v)) if isinstance(v, (tuple, list)) else v}\n"
        for key, v in pairs.items()
        if v is not None
    )
