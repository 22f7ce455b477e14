"""Doubts are rare: at most one of twenty real data sets has one, beside unknown scans."""

from pathlib import Path

import pytest
from kinds import KINDS

from dask_tiled import DatasetError, describe

SCANS_UNKNOWN = {
    "Single_9_Frame_CounterDepth_12_Rows_256.mib",
    "Single_9_Frame_CounterDepth_1_Rows_256.mib",
    "Single_9_Frame_CounterDepth_1_Rows_256RAW.mib",
    "Single_9_Frame_CounterDepth_6_Rows_256.mib",
    "example.mib",
    "test_tvips_2345_split_000.tvips",
}
"""Files of cameras that scan, with several frames and nothing about a scan."""


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
    scans = {Path(path).name for path, codes in doubted.items() if codes == ["scan-shape"]}
    assert scans == SCANS_UNKNOWN
    others = {path: codes for path, codes in doubted.items() if codes != ["scan-shape"]}
    assert len(in_doubt) > 100
    assert len(others) <= len(in_doubt) / 20, others
