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


pytestmark = pytest.mark.timeout(1800)  # a process is forked for each name


@pytest.mark.slow
def test_results_without_each_name():
    # Python 3.12 and later warn of forks beside threads; threads of the libraries are idle.
    command = [sys.executable, "-W", "ignore::DeprecationWarning:__main__", CANARY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    found = {(line["module"], line["name"]): line for line in lines}
    # The installed dask has all names; otherwise nothing would be compared.
    whole = found.pop((None, None))
    assert whole["opened"]
    assert not whole["warned"]
    assert not whole["wrong"]
    assert [*found] == LISTED
    for (module, name), line in found.items():
        use = NAMES[module][name]
        assert not line["wrong"], line
        assert line["opened"] is (use.without != NO_TILES), line
        (warned,) = line["warned"]
        assert f"{module}.{name}" in warned
        assert use.without in warned


def test_missing_functions_match_nothing():
    missing = find("dask.array.chunk", "no_such_function")
    assert missing != find("dask.array.chunk", "no_such_function")
    assert not isinstance(sum, missing)
    with pytest.raises(NotImplementedError, match=r"dask\.array\.chunk\.no_such_function does"):
        missing(1)
