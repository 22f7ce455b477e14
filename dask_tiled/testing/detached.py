"""Writer of text headers with pixels behind them or in separate files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_parts(
    header: Path, text: str, key: str, parts: Sequence[bytes], *, pattern: bool
) -> list[Path]:
    """Write a header and its pixel files, which the last line of the header names.

    Each part becomes a file named like the header, with a three-digit number and the suffix
    ``.raw``. With `pattern`, the last line holds a ``printf`` pattern followed by the first number,
    the last number and the step.
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
    """Format each key whose value is not None as a line, with sequences separated by blanks."""
    return "".join(
        f"{key}{between}{' '.join(map(str, v)) if isinstance(v, (tuple, list)) else v}\n"
        for key, v in pairs.items()
        if v is not None
    )
