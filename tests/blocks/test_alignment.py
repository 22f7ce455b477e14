"""Tasks of an export hold whole stored chunks, and split frames only to save memory."""

import pytest

from dask_tiled import open_dataset
from dask_tiled.blocks import alignment
from dask_tiled.blocks.alignment import aligned
from dask_tiled.testing import counting_frames, write_mib


@pytest.mark.parametrize(
    ("grid", "nbytes", "wanted"),
    [
        ((4, 6, 4, 4), 1 << 20, (4, 6, 16, 16)),  # whole frames fit
        ((4, 6, 4, 4), 4 * 6 * 4 * 16 * 2, (4, 6, 4, 16)),  # a band of rows fits
        ((4, 6, 4, 4), 4 * 6 * 4 * 8 * 2, (4, 6, 4, 8)),
        ((4, 6, 4, 4), 1, (4, 6, 4, 4)),  # a stored chunk is never split
        ((1, 2, 16, 16), 4 * 16 * 16 * 2, (1, 4, 16, 16)),
    ],
)
def test_chunks_of_tasks(tmp_path, monkeypatch, grid, nbytes, wanted):
    """Chunks grow to the width of frames, then to their height, then along the scan."""
    path = write_mib(tmp_path / "a.mib", counting_frames((4, 6, 16, 16), "uint16"))
    arr = open_dataset(path, chunks=(1, 1, 16, 16) if grid[2] < 16 else None)
    monkeypatch.setattr(alignment, "TASK_BYTES", nbytes)
    assert aligned(arr, grid).chunksize == wanted
