"""Without a private name of dask, results are right, and one warning names what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dask_tiled.foreign import find
from dask_tiled.graphs.names import NAMES, NO_TILES

CANARY = Path(__file__).parents[1] / "canary.py"
LISTED = [(module, name) for module, names in NAMES.items() for name in names]


pytestmark = pytest.mark.timeout(1800)  # the fixture forks a process for each name


@pytest.fixture(scope="module")
def lines():
    # Python 3.12 and later warn of forks beside threads; threads of the libraries are idle.
    command = [sys.executable, "-W", "ignore::DeprecationWarning:__main__", CANARY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {(line["module"], line["name"]): line for line in lines}


@pytest.mark.slow
def test_nothing_is_missing(lines):
    """The installed dask has all names; otherwise nothing would be compared."""
    line = lines.pop((None, None))
    assert line["opened"]
    assert not line["warned"]
    assert not line["wrong"]
    assert [*lines] == LISTED


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), LISTED)
def test_results_without_a_name(lines, module, name):
    use, line = NAMES[module][name], lines[module, name]
    assert not line["wrong"]
    assert line["opened"] is (use.without != NO_TILES)
    (warned,) = line["warned"]
    assert f"{module}.{name}" in warned
    assert use.without in warned


def test_missing_functions_match_nothing():
    missing = find("dask.array.chunk", "no_such_function")
    assert missing != find("dask.array.chunk", "no_such_function")
    assert not isinstance(sum, missing)
    with pytest.raises(NotImplementedError, match=r"dask\.array\.chunk\.no_such_function does"):
        missing(1)
