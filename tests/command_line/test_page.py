"""The command-line page of the documentation shows real output."""

import doctest
import re
import shlex
import textwrap
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_dm, write_mib

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^\.\. code-block:: console\n\n((?:   .*\n|\n)+)", re.MULTILINE)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def shown():
    """Yield each command of the page with its output."""
    page = (DOCS / "command-line.rst").read_text("utf8")
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", textwrap.dedent(block), flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output.strip()


@pytest.mark.slow
def test_page_shows_real_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")  # keeps paths on one line
    frames = counting_frames((24, 32, 64, 64), "uint16")
    write_mib("scan.mib", frames)
    frames.astype(">u2").tofile("frames.bin")
    Path("night").mkdir()
    for k in range(2):
        write_mib(f"night/scan_{k}.mib", np.ones((4, 4, 16, 16), "uint16"))
    write_dm("two.dm4", frames[0, 0], name="survey", more={"map": frames[:, :, 0, 0]})
    checked = 0
    for command, expected in shown():
        name, *words = shlex.split(command)
        assert name == "dask-tiled"
        printed = CliRunner().invoke(app, words).output.strip()
        if not doctest.OutputChecker().check_output(expected, printed, SAME):
            pytest.fail(f"{command}\n\nexpected:\n{expected}\n\nfound:\n{printed}")
        checked += 1
    assert checked > 6
