"""Draw the picture of README.md: run its first lines, and keep what they draw.

``make picture`` does so. A test runs all lines of README.md, and compares the picture.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "_static" / "demo.png"
DRAWN = "scan.png"
"""What README.md calls it."""


def lines_of_readme() -> list[str]:
    """Return the blocks of Python in README.md."""
    text = (ROOT / "README.md").read_text("utf8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def main() -> None:
    """Draw the picture anew."""
    mpl.use("Agg")
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(lines_of_readme()[0], {})  # noqa: S102 - they are ours
        shutil.copy(DRAWN, PICTURE)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
