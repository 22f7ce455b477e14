"""Static files of the page, all local: a document, JavaScript modules and a style sheet."""

from __future__ import annotations

from importlib.resources import files

MODULE, STYLE, START = "explore.js", "explore.css", "page.js"

DOCUMENT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>dask-tiled</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="explore.css">
<body class="dask-tiled-page">
<script type="module" src="page.js"></script>
</html>
"""


def text_of(name: str) -> str:
    """Return the text of a static file."""
    return files("dask_tiled.exploring").joinpath("static", name).read_text("utf8")
