"""Sphinx configuration. The build reads nothing from the network."""

import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import dask
from numpydoc.docscrape import FunctionDoc
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import dask_tiled
from dask_tiled.model.instrument import VOCABULARY
from dask_tiled.tiling.drawing import svg

project = "dask-tiled"
author = "The dask-tiled developers"
project_copyright = "2026, the dask-tiled developers"
release = importlib.metadata.version("dask-tiled")

sys.path.insert(0, str(Path(__file__).parent))
extensions = [
    "myst_nb",
    "numpydoc",
    "picture",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
exclude_patterns = ["_build", "_generated", "tutorials/*/*"]
templates_path = ["_templates"]

# Notebooks are executed in every build. Errors and output on stderr fail the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_output_stderr = "warn"
SAMPLES = Path(__file__).parent / "_generated" / "samples"
os.environ["DASK_DASK_TILED__SAMPLES_FOLDER"] = str(SAMPLES)  # for the notebooks' kernels
dask.config.set({"dask_tiled.samples-folder": SAMPLES})
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # more threads are slow on busy cores

HAS_TORCH = find_spec("torch") is not None
# Without PyTorch, its page builds with a mock of it.
autodoc_mock_imports = [] if HAS_TORCH else ["torch"]
autodoc_typehints = "none"  # docstrings name the types
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Each documented object has a docstring, whose parameters exist.
numpydoc_validation_checks = {"GL01", "GL06", "GL08", "PR02", "PR03", "YD01"}

# Members and pictures on the pages of public names, by name; used in the autosummary templates.
MEMBERS = {
    "Axis": "calibrated",
    "Catalogue": "summary, to_csv, to_html, to_json, to_pandas",
    "CatalogueRow": "code, open",
    "Corrections": "check, dtype",
    "Description": "of, shape, nav_shape, sig_shape, dims, dtype, units, nbytes, files, missing, "
    "complete, doubts, calibrations, with_scan, with_frames, with_facts, shifted",
    "Format": "options",
    "Patterns": "positions",
    "Recording": "array, close, error, is_running, path, progress, state, stop, wait",
    "TiledArray": "axes, calibrate, description, dims, instrument, isel, levels, metadata, "
    "refresh, save_axes, scheme, sel, with_axes, with_chunks",
    "TilingScheme": "explain, plot, tiles",
    "tiles.Descan": "shifts",
    "tiles.Disk": "center_in_units, mask, radius_in_units, units",
    "torch.IterableBatches": "epoch, load_state_dict, set_epoch, state_dict",
    "virtual.Parser": "__call__",
}
PICTURES = {
    "Corrections": "pages/repaired.png",
    "TiledArray": "pages/look-array.html",
    "TilingScheme": "usual.svg",
    "explain": "pages/explain.html",
    "find_bad_pixels": "pages/worn.png",
    "map_tiles": "pages/own-function.png",
    "negotiate": "usual.svg",
    "samples.alloy": "pages/look-spectra.png",
    "samples.brain": "pages/sample-brain.png",
    "samples.cells": "pages/look-channels.png",
    "samples.gold": "pages/look-scan.png",
    "samples.shapes": "pages/sample-shapes.png",
    "scheme_of": "usual.svg",
    "show": "pages/look-scan.png",
    "tiles.apply_masks": "pages/detectors.png",
    "tiles.center_of_mass": "pages/look-vectors.png",
    "tiles.disk": "pages/start-fields.png",
    "tiles.phase_from_com": "pages/dpc-phase.png",
    "tiles.radial_profile": "pages/radial-profile.png",
    "tiles.ring": "pages/dark-field.png",
    "to_zarr": "pages/export-maps.png",
}
autosummary_context = {"shown_members": MEMBERS, "shown_pictures": PICTURES}

nitpicky = True
# The build fetches no inventories of other projects.
nitpick_ignore_regex = [("py:.*", r"(collections|dask|xarray|zarr)\..*")]

html_theme = "pydata_sphinx_theme"
html_title = "dask-tiled"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
# Pages with wide tables have no sidebar.
html_sidebars = {"**": ["guide.html"], "index": [], "formats": [], "performance": []}
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "article_header_end": ["download-notebook"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "show_nav_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def draw_schemes(app: Sphinx) -> None:
    """Draw the tiling schemes of the page about chunks, in the text colour of the page."""
    with tempfile.NamedTemporaryFile(suffix=".raw") as file:
        file.truncate(256**4 * 2)  # sparse
        shapes = {"nav_shape": (256, 256), "sig_shape": (256, 256)}
        desc = dask_tiled.describe(file.name, "raw", dtype="uint16", **shapes)
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    usual = dask_tiled.negotiate(desc, chunk_bytes=2**27, cache_bytes=2**21)
    by_pixel = dask_tiled.TilingRequest(by="pixel", nbytes=64_000_000)
    pixels = dask_tiled.negotiate(desc, by_pixel, chunk_bytes=2**27, cache_bytes=2**21)
    for name, scheme in (("usual", usual), ("pixels", pixels)):
        (folder / f"{name}.svg").write_text(svg(scheme.picture()), "utf8")


def list_formats(app: Sphinx) -> None:
    """Write the table of formats, and the descriptions of their options."""
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
    """Write the table of instrument facts, with the formats that provide each."""
    rows = [("Name", "Unit", "Meaning", "Formats")]
    formats = sorted(dask_tiled.formats().items())
    for name, term in VOCABULARY.items():
        telling = ", ".join(f"``{key}``" for key, format in formats if name in format.instrument)
        rows.append((f"``{name}``", term.unit, term.meaning, telling))
    write_generated(app, "instrument.rst.inc", "\n".join(list_table(rows, "18 6 38 38")))


def list_table(rows: list[tuple[str, ...]], widths: str) -> list[str]:
    """Return the lines of a table whose first row is its head."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in rows:
        lines += [f"   {'  ' if k else '* '}- {cell}".rstrip() for k, cell in enumerate(row)]
    return lines


def write_generated(app: Sphinx, name: str, text: str) -> None:
    """Write a part of a page."""
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf8")


TORCH_CELLS = re.compile(r"^(```\{code-cell\}.*\n)((?:(?!```).*\n)*?.*\btorch\.)", re.MULTILINE)
"""Code cells of notebooks, up to a first use of PyTorch."""
KERNEL = """
c.InlineBackend.figure_formats = {"retina"}
c.Application.log_level = "ERROR"
c.IPKernelApp.exec_lines = [
    "import logging",
    "logging.getLogger('dask_tiled').setLevel('ERROR')",  # messages about compilation
    "logging.getLogger('distributed.nanny').setLevel('ERROR')",  # messages about slow shutdown
]
"""
WORKERS = """
logging:
  distributed.worker: critical  # heartbeats that a shutdown interrupts
"""


def configure_kernels(app: Sphinx) -> None:
    """Configure kernels: pictures in high resolution, and no output that depends on the machine."""
    profile = Path(app.srcdir) / "_generated" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(KERNEL, "utf8")
    os.environ["IPYTHONDIR"] = str(profile.parent)
    write_generated(app, "dask.yaml", WORKERS)
    os.environ["DASK_CONFIG"] = str(Path(app.srcdir) / "_generated" / "dask.yaml")


def outdated_notebooks(_: Sphinx, env: BuildEnvironment, *_changes: set[str]) -> list[str]:
    """Return the notebooks to execute again, as the package has changed."""
    sources = Path(dask_tiled.__file__).parent.rglob("*.py")
    newest = max(source.stat().st_mtime_ns for source in sources) // 1000
    return [name for name, read in env.all_docs.items() if "tutorials/" in name and read < newest]


def outdated_pages(_: Sphinx, env: BuildEnvironment, *_changes: set[str]) -> list[str]:
    """Return all pages of the guide: Sphinx drops the index entries of pages it does not read."""
    return [name for name in env.all_docs if "/" not in name]


def skip_torch(_: Sphinx, __: str, source: list[str]) -> None:
    """Leave out the execution of cells that need PyTorch, if that is not installed."""
    if not HAS_TORCH:
        source[0] = TORCH_CELLS.sub(r"\1:tags: [skip-execution]\n\n\2", source[0])


def publish_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Copy the executed notebooks next to their pages, for download."""
    if exception is None:
        for path in (Path(app.outdir).parent / "jupyter_execute" / "tutorials").glob("*.ipynb"):
            shutil.copy(path, Path(app.outdir) / "tutorials")


def setup(app: Sphinx) -> None:
    """Connect the functions that generate parts of pages."""
    app.connect("builder-inited", configure_kernels)
    app.connect("env-get-outdated", outdated_notebooks)
    app.connect("env-get-outdated", outdated_pages)
    app.connect("source-read", skip_torch)
    app.connect("build-finished", publish_notebooks)
    app.connect("builder-inited", draw_schemes)
    app.connect("builder-inited", list_formats)
    app.connect("builder-inited", list_facts)
