"""Run the examples of pages, and save the pictures that they draw.

Sphinx runs the examples of ``docs/*.rst``: each image below ``_generated/pages`` is the figure
drawn last before it, and squares cut from its axes are thumbnails. ``make picture`` runs the first
example of README.md; a test runs all of them, and compares the picture.
"""

from __future__ import annotations

import doctest
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import matplotlib as mpl

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "_static" / "demo.png"
DRAWN = "scan.png"
"""Name of the picture in README.md."""

PAGES = Path("_generated") / "pages"
SHOWN = re.compile(rf"{PAGES}/([\w-]+\.(?:png|html))$", re.MULTILINE)
FIGURE = re.compile(r"^ *<(?:Shown)?Figure.*$", re.MULTILINE)
"""Printed representation of a figure, which the page replaces by the picture."""
FOLDERS = re.compile(r"(?<=>)/[^<>]*/(?=[^<>/]+<)")
"""Folders before file names, which depend on the machine."""
DOTS_PER_INCH = 192
THUMBNAIL = 360
"""Side of a thumbnail in pixels."""


def lines_of_readme() -> list[str]:
    """Return the blocks of Python in README.md."""
    text = (ROOT / "README.md").read_text("utf8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def main() -> None:
    """Draw the picture of README.md."""
    with drawing():
        exec(lines_of_readme()[0], {})  # noqa: S102 - trusted
        shutil.copy(DRAWN, PICTURE)


@contextmanager
def drawing() -> Iterator[None]:
    """Run code in an empty folder, without windows and messages about compilation."""
    mpl.use("Agg")
    logging.getLogger("dask_tiled").setLevel("ERROR")
    before = Path.cwd()
    with TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def draw_pages(app: Sphinx) -> None:
    """Draw the pictures of all changed pages."""
    for page in sorted(Path(app.srcdir).glob("*.rst")):
        text = page.read_text("utf8")
        wanted = [Path(app.srcdir) / PAGES / name for name in SHOWN.findall(text)]
        times = [path.stat().st_mtime if path.exists() else 0 for path in wanted]
        if page.name != "gallery.rst" and min(times, default=sys.maxsize) < page.stat().st_mtime:
            with drawing():
                draw_page(text, Path(app.srcdir) / PAGES)


def draw_page(text: str, folder: Path) -> None:
    """Run the examples of a page, and save the last result before each picture."""
    found = {
        match[1]: text.count("\n", 0, match.start()) for match in reversed([*SHOWN.finditer(text)])
    }
    places = sorted((line, name) for name, line in found.items())
    examples = doctest.DocTestParser().get_examples(text)
    names: dict[str, Any] = {}
    values: list[Any] = []
    with patch("sys.displayhook", values.append), redirect_stdout(StringIO()):
        for line, name in places:
            while examples and examples[0].lineno < line:
                example = examples.pop(0)
                if example.exc_msg is None:
                    exec(compile(example.source, "<page>", "single"), names)  # noqa: S102 - ours
            save(values[-1], folder / name)


def save(value: Any, path: Path) -> None:
    """Save a figure with its thumbnail, or the HTML repr of an object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(FOLDERS.sub("", value._repr_html_()), "utf8")
        return
    from PIL import Image

    value.savefig(path, dpi=DOTS_PER_INCH)
    with Image.open(path) as image:
        for k, axes in enumerate(value.axes):
            box = axes.get_window_extent().transformed(value.dpi_scale_trans.inverted())
            (left, bottom), (right, top) = DOTS_PER_INCH * box.get_points()
            corners = [left, image.height - top, right, image.height - bottom]
            if axes.images:  # pixels stay square
                margins = (right - left - top + bottom) / 2, (top - bottom - right + left) / 2
                x, y = (max(margin, 0) for margin in margins)
                corners = [a + b for a, b in zip(corners, (x, y, -x, -y), strict=True)]
            square = image.crop(corners).resize((THUMBNAIL, THUMBNAIL))
            square.save(path.with_suffix(f".{k}.png"))


def hide_figures(_: Sphinx, __: str, source: list[str]) -> None:
    """Remove printed representations of figures: the picture follows."""
    source[0] = FIGURE.sub("", source[0])


def setup(app: Sphinx) -> None:
    """Draw pictures before pages are read."""
    app.connect("builder-inited", draw_pages)
    app.connect("source-read", hide_figures)


if __name__ == "__main__":
    main()
