"""Sphinx configuration. The build reads nothing from the network."""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpydoc.docscrape import FunctionDoc
from sphinx.application import Sphinx

import dask_tiled
from dask_tiled.model.instrument import VOCABULARY
from dask_tiled.testing import write_dm, write_nrrd
from dask_tiled.tiling.drawing import svg

project = "dask-tiled"
author = "The dask-tiled developers"
project_copyright = "2026, the dask-tiled developers"
release = importlib.metadata.version("dask-tiled")

extensions = ["numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_design"]
exclude_patterns = ["_build", "_generated"]

autodoc_typehints = "none"  # the docstrings say it in words
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Whoever is documented has a docstring, and what its sections name exists.
numpydoc_validation_checks = {"GL01", "GL06", "GL08", "PR02", "PR03", "YD01"}

nitpicky = True
# Their inventories would have to be fetched.
nitpick_ignore_regex = [("py:.*", r"(collections|dask|xarray|zarr)\..*")]

html_theme = "pydata_sphinx_theme"
html_title = "dask-tiled"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
# Wide tables have the whole page.
html_sidebars = {name: [] for name in ("index", "formats", "performance")}
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "show_nav_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def draw_schemes(app: Sphinx) -> None:
    """Draw the scheme that the page about chunks explains, in the colours of the page."""
    with tempfile.NamedTemporaryFile(suffix=".raw") as file:
        file.truncate(256**4 * 2)  # a hole: it takes no space
        shapes = {"nav_shape": (256, 256), "sig_shape": (256, 256)}
        desc = dask_tiled.describe(file.name, "raw", dtype="uint16", **shapes)
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    usual = dask_tiled.negotiate(desc, chunk_bytes=2**27, cache_bytes=2**21)
    by_pixel = dask_tiled.TilingRequest(by="pixel", nbytes=64_000_000)
    pixels = dask_tiled.negotiate(desc, by_pixel, chunk_bytes=2**27, cache_bytes=2**21)
    for name, scheme in (("usual", usual), ("pixels", pixels)):
        (folder / f"{name}.svg").write_text(svg(scheme.picture()), "utf8")


def draw_arrays(app: Sphinx) -> None:
    """Draw the pictures of the page about them: of a simulated scan, with scales."""
    sys.path.append(str(Path(app.srcdir).parent / "examples"))
    from gold_on_carbon import FIELD_OF_VIEW, MRAD_PER_PIXEL, Specimen

    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    if (folder / "volume.png").exists():
        return
    # Four by four pixels of the detector are one here.
    rows = Specimen(40).counts()
    binned = [row.reshape(-1, 64, 4, 64, 4).sum((2, 4), dtype="uint16") for row in rows]
    nm, mrad = (0.0, FIELD_OF_VIEW / 40, "nm"), (32.0, 4 * MRAD_PER_PIXEL, "mrad")
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "gold.dm4"
        write_dm(
            path, np.concatenate(binned), nav_shape=(40, 40), calibrations=[nm, nm, mrad, mrad]
        )
        arr = dask_tiled.open_dataset(path)
        dask_tiled.show(arr, folder / "scan.png")
        dask_tiled.show(arr, folder / "sample.png", frames=150)
        dask_tiled.show(arr.std(axis=(0, 1)), folder / "deviation.png")
        dask_tiled.show(arr.reshape(1600, 64, 64), folder / "stack.png")
        z, y, x = np.ogrid[-1:1:40j, -1:1:64j, -1:1:64j]
        ball = (200 * (np.hypot(np.hypot(x, y), z) < 0.9) * np.cos(6 * (x + y * z)) ** 2).astype(
            "u1"
        )
        header, *_ = write_nrrd(Path(made) / "ball.nrrd", ball)
        dask_tiled.show(header, folder / "volume.png")


def list_formats(app: Sphinx) -> None:
    """Write the table of formats, and below it what their options mean."""
    heads = ("Format", "Files", "What is read", "Shape of the scan", "Options", "Also read by")
    meanings = [".. options", ""]
    rows = [heads]
    for name, format in sorted(dask_tiled.formats().items()):
        options = {k: v for k, v in format.options().items() if k != "nav_shape"}
        texts = [f"``{k}=``" if v is None else f"``{k}={v!r}``" for k, v in options.items()]
        suffixes, peers = ", ".join(format.extensions), ", ".join(format.peers)
        cells = (format.summary, format.nav_shape_from, ", ".join(texts), peers)
        rows.append((f"``{name}``", suffixes, *cells))
        parameters = FunctionDoc(format.describe)["Parameters"]
        told = [p for p in parameters if {*p.name.split(", ")} & {*options}]
        if told:
            meanings += [f"``{name}``"]
        for parameter in told:
            meanings += [f"   ``{parameter.name}`` : {parameter.type}"]
            meanings += [f"      {line}" for line in parameter.desc] + [""]
    text = "\n".join([*list_table(rows, "12 11 26 20 15 16"), "", *meanings])
    write_generated(app, "formats.rst.inc", text)


def list_facts(app: Sphinx) -> None:
    """Write the table of what files say of the instrument, and which formats do."""
    rows = [("Name", "Unit", "What it is", "Formats that tell it")]
    formats = sorted(dask_tiled.formats().items())
    for name, term in VOCABULARY.items():
        telling = ", ".join(f"``{key}``" for key, format in formats if name in format.instrument)
        rows.append((f"``{name}``", term.unit, term.meaning, telling))
    write_generated(app, "instrument.rst.inc", "\n".join(list_table(rows, "18 6 38 38")))


def list_table(rows: list[tuple[str, ...]], widths: str) -> list[str]:
    """Give the lines of a table, the first row of which is its head."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in rows:
        lines += [f"   {'  ' if k else '* '}- {cell}".rstrip() for k, cell in enumerate(row)]
    return lines


def write_generated(app: Sphinx, name: str, text: str) -> None:
    """Write a part of a page."""
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf8")


def setup(app: Sphinx) -> None:
    """Make what is generated before the pages are read."""
    app.connect("builder-inited", draw_schemes)
    app.connect("builder-inited", draw_arrays)
    app.connect("builder-inited", list_formats)
    app.connect("builder-inited", list_facts)
