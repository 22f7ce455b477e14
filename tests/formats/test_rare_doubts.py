"""Doubts are rare: at most one of twenty real data sets has one."""

import pytest
from kinds import KINDS

from dask_tiled import DatasetError, describe


@pytest.mark.slow
def test_real_files_are_rarely_in_doubt(data):
    """Data sets are told apart by their files; a header opens the same one as its pixels."""
    paths = [path for folder in (data, KINDS) for path in sorted(folder.rglob("*"))]
    in_doubt = {}
    for path in filter(lambda one: one.is_file(), paths):
        try:
            desc = describe(path)
        except (DatasetError, OSError):
            continue
        in_doubt[desc.files] = [one.code for one in desc.doubts]
    doubted = {files[0].path: codes for files, codes in in_doubt.items() if codes}
    assert len(in_doubt) > 100
    assert len(doubted) <= len(in_doubt) / 20, doubted
