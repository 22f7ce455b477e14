"""`explain` predicts bytes, passes, tasks and memory, and tells tile work from dask's."""

import sys
import threading
from contextlib import suppress

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
from dask.delayed import delayed

import dask_tiled
from dask_tiled import Corrections, DatasetError, TilingError, explain, open_dataset, scheme_of
from dask_tiled.testing import counting_frames, write_mib, write_npy
from dask_tiled.tiles import apply_masks

SHAPE = (6, 8, 16, 64)
NBYTES = 6 * 8 * 16 * 64 * 2


@pytest.fixture
def arr(tmp_path):
    path = write_npy(tmp_path / "scan.npy", counting_frames(SHAPE, "uint16"))
    return open_dataset(path).with_chunks((2, 8, 16, 64))


def explain_and_run(*arrays, threads=1):
    """Explain and compute; check that bytes match, and memory stays within the prediction."""
    dask.compute(*arrays, scheduler="synchronous")
    found = explain(*arrays, threads=threads, run=True)
    assert found.measured.bytes_read == found.bytes_read
    assert 0 < found.measured.peak_memory <= found.peak_memory
    return found


def test_sum(arr):
    """A sum runs on tiles: the file is read once, and dask computes nothing."""
    found = explain_and_run(arr.sum(axis=(2, 3)))
    assert found.files == tuple(file.path for file in arr.description.files)
    assert (found.bytes_read, found.bytes_decoded, found.passes) == (NBYTES, NBYTES, 1)
    assert len(found.plans) == 1
    assert "reduce sum" in found.plans[0]
    assert not found.left
    np.testing.assert_array_equal(found.results[0], np.asarray(arr).sum(axis=(2, 3)))


def test_text(arr):
    """The text shows the prediction, and measured figures after a run."""
    text = str(explain(arr.max(), threads=2))
    assert "96 KiB, once" in text
    assert "in 2 threads" in text
    assert "reduce max" in text
    assert "measured" not in text
    assert "measured" in str(explain(arr.max(), threads=1, run=True))


def test_html(arr):
    """Notebooks show a table and the trees, escaped once."""
    found = explain(arr.max())._repr_html_()
    assert "<table>" in found
    assert "reduce max" in found
    assert "&lt;" not in found


def test_reads_of_one_chunk_by_several_tasks(arr):
    """Blocks that dask computes again for each dependent are read as often."""
    found = explain_and_run(
        arr.map_blocks(np.flip) + da.ones((3, 6, 1, 1, 1), chunks=(1, 2, 1, 1, 1))
    )
    assert found.passes == 3
    assert found.bytes_read == 3 * NBYTES


def test_parts_and_nothing(arr):
    """A slice reads its own bytes; arrays without files read none."""
    assert explain_and_run(arr[0, :, 3, ::2]).bytes_read == 8 * 32 * 2
    assert explain_and_run(arr[1, 2, 3, 4]).bytes_read == 2
    nothing = explain(da.ones(3), run=True)
    assert (nothing.bytes_read, nothing.passes, nothing.files) == (0, 0, ())


@pytest.mark.parametrize("number", [1, 5])
def test_masks(arr, number):
    """Virtual detectors read the file once, for any number of masks."""
    masks = np.arange(number * 16 * 64, dtype="f4").reshape(number, 16, 64)
    assert explain_and_run(apply_masks(arr, masks)).bytes_read == NBYTES


def test_results_computed_together(arr):
    """Results computed together read the file once."""
    apart = explain(arr.sum()).bytes_read + explain(arr.std()).bytes_read
    together = explain_and_run(arr.sum(), arr.std())
    assert (apart, together.bytes_read) == (2 * NBYTES, NBYTES)
    assert len(together.results) == 2


def test_passes_over_the_same_pixels(arr):
    """Passes count how often each pixel is read, for any chunks and slices."""
    other = arr.with_chunks((6, 8, 16, 32)).map_blocks(np.flip)
    assert explain(arr.sum(), other).passes == 2
    assert explain(arr[:3].sum(), arr[3:].sum()).passes == 1
    assert explain(arr[:, :, ::2].sum(), arr[:, :, 1::2].sum()).passes == 1
    assert explain(arr.sum(), arr[0].sum()).passes == pytest.approx(7 / 6)


def test_plans_have_the_chunks_that_are_computed(arr, monkeypatch):
    """Maxima of chunks of few frames are computed in chunks along another axis."""
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", 1)
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_RUN_BYTES", 1)
    (plan,) = explain(arr.max(0)).plans
    assert plan.startswith("3 tasks, for chunks of (6, 3, 16, 64) pixels")


def test_operations_left_to_dask(arr):
    """Operations that dask computes are listed with the reason."""
    found = explain(da.median(arr, axis=3))
    assert found.left == (("median", "no kernel for median"),)
    assert "median: no kernel for median" in str(found)


def test_compressed_chunks(tmp_path):
    """Compressed chunks count by their bytes in the file, once per task that needs them."""
    counts = counting_frames(SHAPE, "uint16")
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        held = file.create_dataset("counts", data=counts, chunks=(2, 8, 16, 64), compression="gzip")
        stored = sum(held.id.get_chunk_info(k).size for k in range(3))
    arr = open_dataset(tmp_path / "scan.h5")
    assert explain_and_run(arr.sum(axis=(2, 3))).bytes_read == stored
    cut = arr.with_chunks((1, 8, 16, 64))
    assert explain_and_run(cut + 1).bytes_read == 2 * stored


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1, 3, 40])
def test_blocks_are_summed_as_columns(tmp_path, step, monkeypatch):
    """Bytes of thousands of tiles are exact, also below strides, and no tile is planned alone."""
    path = tmp_path / "tiles.tif"
    pixels = np.random.default_rng(0).integers(0, 9, (640, 640), "u1")
    tifffile.imwrite(path, pixels, tile=(16, 16), compression="zlib")
    with tifffile.TiffFile(path) as file:
        sizes = np.reshape(file.pages[0].databytecounts, (40, 40))
    part = open_dataset(path, chunks=(640, 640))[5:, 3::step]
    met = sizes[:, np.unique(np.arange(3, 640, step) // 16)].sum()
    planned = []
    monkeypatch.setattr("dask_tiled.reading.amounts.frame_ranges", planned.append)
    assert explain_and_run(part + 1).bytes_read == met
    assert explain_and_run(part.map_blocks(np.flip)).bytes_read == met
    assert not planned


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["pixels", "blocks"])
def test_neighbours_of_excluded_pixels(tmp_path, kind):
    """Neighbours of excluded pixels outside a tile are counted; blocks once per task."""
    counts = counting_frames(SHAPE, "uint16")
    corrections = Corrections(excluded_pixels=[(7, 31), (8, 32)])
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        options = {"compression": "gzip", "chunks": (1, 4, 8, 32)} if kind == "blocks" else {}
        file.create_dataset("counts", data=counts, **options)
    arr = open_dataset(path, corrections=corrections).with_chunks((2, 8, 8, 32))
    assert explain_and_run(arr + 1).passes == 1
    assert explain_and_run(arr.sum(axis=(0, 1))).bytes_read > 0


def test_packed_pixels(tmp_path):
    """Each chunk reads whole units of packed pixels."""
    counts = counting_frames(SHAPE, "uint16") % 4096
    path = write_mib(tmp_path / "12.mib", counts, kind="R64", depth=12)
    arr = open_dataset(path, nav_shape=SHAPE[:2])
    whole, cut = (
        explain_and_run(arr.sum()),
        explain_and_run(arr.with_chunks((6, 8, 16, (33, 31))) + 1),
    )
    assert cut.bytes_read > whole.bytes_read


def test_objects_of_xarray(arr):
    """DataArrays and Datasets are explained by the dask arrays in them."""
    mean = xr.DataArray(arr).mean()
    assert explain(mean).bytes_read == NBYTES
    found = explain(xr.Dataset({"mean": mean, "max": xr.DataArray(arr).max()}), run=True)
    assert found.bytes_read == found.measured.bytes_read == NBYTES
    assert set(found.results[0].data_vars) == {"mean", "max"}


def test_other_objects_are_refused(arr):
    tree = xr.DataTree(xr.Dataset({"data": xr.DataArray(arr)}))
    for other in (delayed(np.sum)(arr), np.ones(3), "scan.npy", xr.DataArray(np.ones(3)), tree):
        with pytest.raises(DatasetError, match="only computations of arrays"):
            explain(other)
    with pytest.raises(DatasetError, match="threads"):
        explain(arr, threads=0)


def test_computed_arrays_have_no_scheme(arr):
    """The error of `scheme_of` names `explain`."""
    with pytest.raises(TilingError, match="explain"):
        scheme_of(arr.sum(axis=0))


def test_default_threads(arr):
    """By default `explain` counts the threads that dask would use."""
    with dask.config.set(scheduler="threads", num_workers=3):
        assert explain(arr).threads == 3
    with dask.config.set(scheduler="synchronous"):
        assert explain(arr).threads == 1
    assert explain(arr.sum(0), threads=8).peak_memory > explain(arr.sum(0), threads=1).peak_memory


def test_public_names():
    assert dask_tiled.explain is explain
    assert {"Explanation", "Measured"} <= {*dask_tiled.__all__}


def test_a_cluster_reads_in_parallel_and_its_scheduler_takes_tasks(tmp_path):
    """Durations by arithmetic: bytes by workers and rate, and 4,000 or 1,000 tasks a second."""
    frames = np.zeros((8, 1 << 10, 1 << 10), "u2")  # 16 MiB
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", frames), chunks=(1, -1, -1))
    job = arr.sum((1, 2))
    plain = dask_tiled.explain(job)
    assert plain.cluster is None
    sent = dask_tiled.explain(job, workers=4).cluster
    assert (sent.workers, sent.seconds) == (4, None)
    assert 500 < sent.graph_bytes < 50_000
    found = dask_tiled.explain(job, workers=4, gb_per_s=0.001)
    reading = frames.nbytes / (4 * 1e6)
    assert found.cluster.seconds == pytest.approx((reading, reading + plain.tasks / 1000))
    fast = dask_tiled.explain(job, workers=4, gb_per_s=1e9).cluster.seconds
    assert fast == pytest.approx((plain.tasks / 4000, plain.tasks / 1000), rel=1e-3)
    assert "on 4 workers" in str(found)
    assert f"{reading:.3g} to " in str(found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"workers": 2, "gb_per_s": 0}, "a positive number of gigabytes a second; found 0"),
        ({"workers": 2, "gb_per_s": "fast"}, "found 'fast'"),
        ({"workers": 2, "gb_per_s": float("nan")}, "found nan"),
        ({"gb_per_s": 1}, "expected workers="),
    ],
)
def test_wrong_clusters_raise(tmp_path, options, says):
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", np.zeros((2, 4, 4))))
    with pytest.raises(dask_tiled.DatasetError, match=says):
        dask_tiled.explain(arr.sum(), **options)


MEETING = threading.Barrier(1)
"""Where functions of users wait until as many threads have a chunk."""


def meet(block):
    if block.nbytes > 1 << 20:  # a chunk, not a sample of it
        with suppress(threading.BrokenBarrierError):  # the last chunks may be an odd number
            MEETING.wait(timeout=60)


def negative(block):
    meet(block)
    return -block


def brightest(block):
    meet(block)
    return block.max(axis=(2, 3))


def doubled(block):
    meet(block)
    return block.astype("f8")


def spectrum(block):
    return abs(np.fft.fft2(block))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    frames = np.ones((8, 16, 64, 1024), "u2")  # 16 MiB
    path = write_npy(tmp_path_factory.mktemp("large") / "scan.npy", frames)
    return open_dataset(path, chunks=(2, 16, 64, 1024))


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    frames = np.random.default_rng(0).integers(0, 60_000, (8, 16, 64, 256), "u2")  # 4 MiB
    path = write_npy(tmp_path_factory.mktemp("spread") / "scan.npy", frames)
    return open_dataset(path, chunks=(2, 16, 64, 256))


def test_memory_of_a_result_and_of_chunks_that_are_copied_to_it(tmp_path):
    """The memory of the result is there besides that of a task, in which it begins."""
    pixels = np.random.default_rng(0).integers(0, 9, (5, 4, 64, 1019), "u2")
    path = write_npy(tmp_path / "scan.npy", pixels)
    arr = open_dataset(path, io="buffered", chunks=(5, 4, 64, (437, 582)))
    signs = np.sign(arr)
    explain_and_run(da.tensordot(signs, np.ones(4, "c8"), axes=((1,), (0,)))[:, 3], signs)


def test_memory_of_sums_without_a_kernel(tmp_path):
    """Results of unknown shape count as chunks, not as eight bytes for each of theirs."""
    frames = np.ones((16, 8, 64, 512), "f4")
    arr = open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=(2, 8, 64, 512))
    found = explain_and_run((arr / 3).astype("f2").sum((0, 1)))
    assert found.left == (("sum", "no kernel for float16 pixels"),)
    assert found.peak_memory < 8 * found.measured.peak_memory


OF_USERS = {
    "negative": lambda a: a.map_blocks(negative),
    "negative, summed": lambda a: a.map_blocks(negative).sum(),
    "three times": lambda a: a.map_blocks(negative).map_blocks(negative).map_blocks(negative).max(),
    "brightest": lambda a: a.map_blocks(brightest, drop_axis=(2, 3), dtype="u2"),
    "doubled": lambda a: a.map_blocks(doubled, dtype="f8").max((2, 3)),
    "doubled, mean": lambda a: a.map_blocks(doubled, dtype="f8").mean(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_of_positions(tmp_path, threads):
    """Positions in a chunk take one or two bytes, those in the whole array eight."""
    pixels = np.random.default_rng(0).integers(0, 9, (32, 4, 128, 512), "u2")
    arr = open_dataset(write_npy(tmp_path / "scan.npy", pixels), chunks=(2, 4, 128, 512))
    found = explain_and_run(arr.argmax(0), threads=threads)
    np.testing.assert_array_equal(found.results[0], pixels.argmax(0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OF_USERS)
def test_memory_of_functions_of_users(large, name, threads, monkeypatch):
    """Arguments and results are within a factor of two of what is measured."""
    result = OF_USERS[name](large)
    result.compute(scheduler="synchronous")
    monkeypatch.setattr(sys.modules[__name__], "MEETING", threading.Barrier(threads))
    found = explain(result, threads=threads, run=True)
    assert found.unseen == (name.split(",")[0].replace("three times", "negative"),)
    assert found.measured.peak_memory <= found.peak_memory <= 2 * found.measured.peak_memory


NAMED = {
    "fft2": lambda a: da.fft.fft2(a.astype("c8")),
    "isclose": lambda a: da.allclose(a, a),
    "masked_greater": lambda a: da.ma.masked_greater(a, 5).sum(),
    "nanmedian": lambda a: da.nanmedian(a.astype("f4"), axis=1),
    "pixels of dtype object": lambda a: a[:2].astype(object).sum((2, 3)),
    "sort": lambda a: dask_tiled.map_tiles(np.sort, a),
    "topk": lambda a: da.topk(a.reshape(-1), 5),
    "var": lambda a: da.moment(a.astype("f4"), 3),
}
KNOWN = {
    "argmax": lambda a: a.argmax(0),
    "coarsen": lambda a: da.coarsen(np.mean, a.astype("f4"), {2: 2, 3: 2}),
    "concatenate": lambda a: da.concatenate([a, a + 1]),
    "conj": lambda a: a.astype("c8").conj().imag,
    "cumsum": lambda a: a.astype("f4").cumsum(1),
    "diff": lambda a: da.diff(a.astype("f4"), axis=0),
    "flip": lambda a: a.map_blocks(np.flip).max(),
    "histogram": lambda a: da.histogram(a, bins=20, range=(0, 60_000))[0],
    "mean": lambda a: a.astype("c8").mean(0),
    "overlap": lambda a: a.map_overlap(np.negative, depth=1, dtype="u2"),
    "power": lambda a: a.astype("f4") ** 2.5,
    "roll": lambda a: da.roll(a, 3, axis=0),
    "std": lambda a: a.std((0, 1)),
    "take": lambda a: a[:, [3, 1, 7]],
    "ufunc": lambda a: da.arctan2(a.astype("f4"), a.astype("f4") + 1),
    "where": lambda a: da.where(a > 5, a, 0).sum(0),
}


@pytest.mark.parametrize("name", NAMED)
def test_functions_with_unknown_memory_are_named(large, name):
    """What NumPy, dask and users allocate inside is not guessed."""
    found = explain(NAMED[name](large), threads=1)
    assert name in found.unseen
    assert "at most" not in str(found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KNOWN)
def test_memory_of_known_functions(spread, name, threads):
    """Memory has an upper limit, also for pixels that fill a table of counts."""
    found = explain_and_run(KNOWN[name](spread), threads=threads)
    assert found.unseen == ()
    assert "at most" in str(found)


@pytest.mark.thorough
def test_what_functions_allocate_is_not_guessed(large):
    """The row names the functions."""
    found = explain(large.map_blocks(spectrum, dtype="f8").max(), threads=1, run=True)
    assert found.unseen == ("spectrum",)
    assert found.measured.peak_memory > found.peak_memory
    assert "MiB in 1 thread, plus what spectrum may allocate" in str(found)
    tiles = dask_tiled.map_tiles(negative, large), dask_tiled.map_tiles(np.negative, large)
    assert [explain(one).unseen for one in tiles] == [("negative",), ()]
    other = explain(large.map_blocks(np.flip).max(), threads=1)
    assert other.unseen == ()
    assert "at most" in str(other)


def test_parts_of_large_chunks_are_told(tmp_path, monkeypatch):
    """Functions of whole chunks get parts of the chunks that suit tiles."""
    for module in ("tiling.negotiation", "explaining.explanation"):
        monkeypatch.setattr(f"dask_tiled.{module}.USUAL_COUNT", 8)
    path = write_npy(tmp_path / "scan.npy", counting_frames((16, 16, 8, 64), "u2"))
    with dask.config.set({"array.chunk-size": 1 << 13}):
        arr = open_dataset(path)
        mapped = arr.map_blocks(negative)
        assert arr.npartitions < mapped.npartitions
        found = explain(mapped)
        assert explain(arr.sum()).blocks == ""
    parts = f"{mapped.npartitions} parts of {arr.npartitions} chunks"
    assert found.blocks == f"{parts}: functions of whole chunks get them one by one"
    assert "blocks" in str(found)
