"""Exports on a cluster are those of threads, and both show how far they are."""

from contextlib import closing
from functools import partial

import dask
import pytest
import zarr
from conftest import ANY_PORT
from distributed import Client, LocalCluster

from dask_tiled import DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.export import running
from dask_tiled.testing import counting_frames, write_mib

pytestmark = pytest.mark.slow

to_zarr = partial(to_zarr, layout="array")  # its keys are those of chunks alone
FRAMES = counting_frames((6, 7, 8, 16), "uint16")


@pytest.fixture(scope="module")
def cluster():
    """Start two processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, processes=True, **ANY_PORT) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["threads", "cluster"])
def scheduler(request):
    """Compute with threads or with processes."""
    found = request.param if request.param == "threads" else request.getfixturevalue("cluster")
    with dask.config.set(scheduler=found):
        yield


@pytest.fixture
def arr(tmp_path):
    """Open a small scan of several chunks."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES), chunks=(2, 7, 8, 16))


@pytest.mark.usefixtures("scheduler")
def test_progress(arr, tmp_path, capsys):
    """Bytes of pixels that are done, of all; the last line is that of the end."""
    to_zarr(arr, tmp_path / "out.zarr", progress=True)
    last = capsys.readouterr().err.strip().splitlines()[-1].rpartition("\r")[-1]
    assert last.startswith("to_zarr: 100%")
    assert "10.8k/10.8k" in last
    assert "B/s]" in last


@pytest.mark.usefixtures("scheduler")
def test_errors(arr, tmp_path):
    """They are those that the tasks raise."""

    def fail(_block):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        to_zarr(arr.map_blocks(fail, dtype="u2", meta=FRAMES[:0]), tmp_path / "out.zarr")
    to_zarr(arr, tmp_path / "out.zarr")
    zarr.open_array(tmp_path / "out.zarr", mode="r+")[5, 6, 7, 15] = 0
    with pytest.raises(VerificationError) as caught:
        verify_zarr(tmp_path / "out.zarr", arr)
    assert caught.value.where == "[5, 6, 7, 15]"


def test_memory_of_another_process(arr, cluster):
    """Chunks that would be lost are an error."""
    elsewhere = dask.config.set(scheduler=cluster)
    with elsewhere, pytest.raises(DatasetError, match="other processes"):
        to_zarr(arr, {})


def test_time_goes_on_while_nothing_is_done(monkeypatch, capsys):
    monkeypatch.setattr(running, "TICK", 0.001)
    with closing(running._Bar({("a", 0): 10}, 10, show=True, title="waiting")) as bar:
        bar.bar.mininterval = 0
        shown = ""
        while shown.count("waiting") < 5:
            shown += capsys.readouterr().err
