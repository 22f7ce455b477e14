"""Sphinx configuration. The build reads nothing from the network."""

import importlib.metadata

project = "dask-tiled"
author = "The dask-tiled developers"
project_copyright = "2026, the dask-tiled developers"
release = importlib.metadata.version("dask-tiled")

extensions = ["numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

autodoc_typehints = "none"  # the docstrings say it in words
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Whoever is documented has a docstring, and what its sections name exists.
numpydoc_validation_checks = {"GL01", "GL06", "GL08", "PR02", "PR03", "YD01"}

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(dask|zarr)\..*")]  # their inventories would have to be fetched

html_theme = "pydata_sphinx_theme"
html_title = "dask-tiled"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_sidebars = {"**": []}  # there is one level of pages, and the navigation bar shows it
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
