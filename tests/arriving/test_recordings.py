"""Results of recordings, while their frames arrive."""

import pickle
import threading
from contextlib import ExitStack

import dask
import h5py
import hdf5plugin
import numpy as np
import pytest

import dask_tiled
from dask_tiled.testing import counting_frames, play, write_mib
from dask_tiled.testing.playing import dectris_messages, merlin_messages, pushing, sending

FRAMES = counting_frames((6, 8, 32, 32), "uint16")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return write_mib(tmp_path_factory.mktemp("played") / "played.mib", FRAMES)


@pytest.fixture
def series(tmp_path):
    """A file as a DECTRIS detector compresses its frames."""
    data, path = FRAMES.reshape(-1, 32, 32), tmp_path / "played.h5"
    storage = {"chunks": (1, 32, 32), **hdf5plugin.Bitshuffle(nelems=0, cname="lz4")}
    with h5py.File(path, "w") as file:
        file.create_dataset("entry/data/data_000001", data=data, **storage)
        for axis in "xy":
            file[f"entry/instrument/detector/{axis}_pixel_size"] = 5e-5
    return path


def results_of(arr):
    return {"image": arr.sum((2, 3)), "mean": arr.mean((0, 1)), "pixel": arr[..., 3, 4] * 2}


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["merlin", "dectris"])
def test_results_of_a_stream_are_those_of_its_file(played, series, tmp_path, protocol):
    is_merlin, goes_on = protocol == "merlin", threading.Event()
    messages = [*(merlin_messages(played) if is_merlin else dectris_messages(series))]

    def half_at_first():
        for k, message in enumerate(messages):
            if k == len(messages) // 2:
                goes_on.wait()
            yield message

    each = sending(half_at_first) if is_merlin else pushing([one] for one in half_at_first())
    path = tmp_path / ("scan.mib" if is_merlin else "scan.h5")
    with each as port, ExitStack() as at_end:
        at_end.callback(goes_on.set)
        url = f"{protocol}://127.0.0.1:{port}"
        with dask_tiled.record(url, path, nav_shape=(6, 8)) as recording:
            counts = []
            for state in dask_tiled.progressive(results_of(recording.array), every=0):
                if not state.exact:
                    counts.append(int(state.values["image"].count()))
                    if counts[-1] >= 16:
                        goes_on.set()
    (expected,) = dask.compute(results_of(dask_tiled.open_dataset(path, nav_shape=(6, 8))))
    for name, values in expected.items():
        assert np.array_equal(state.values[name], values)
    assert counts == sorted(counts)
    assert any(0 < count < 48 for count in counts), "rows appear"
    assert (state.exact, state.missing) == (True, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("kept", ["array", "copy"])
def test_a_recording_that_is_stopped_ends_the_computation(played, kept):
    with (
        play(played, frames_per_second=50) as url,
        dask_tiled.record(url, nav_shape=(7, 8)) as recording,
    ):
        arr = recording.array
        if kept == "copy":  # nothing is known of the recording in another process
            arr = pickle.loads(pickle.dumps(arr))
        rest = 3600 if kept == "array" else 1  # if it is waited for, this test hangs
        states = dask_tiled.progressive(arr.sum((2, 3)), every=0, rest=rest)
        assert not next(states).exact
        stopping = threading.Thread(target=recording.stop)

        def last_state():
            stopping.start()
            if kept == "copy":  # which may end before the recording does
                stopping.join()
            return [*states][-1]

        with pytest.warns(dask_tiled.MissingFramesWarning):
            last = last_state()
        stopping.join()
        assert last.exact
        assert 8 <= last.missing < 56
        assert np.array_equal(last.values, arr.refresh().sum((2, 3)).compute())
