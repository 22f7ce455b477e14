"""Waits for file descriptors, of which a process may have too few."""

import errno
import threading
from types import SimpleNamespace

import pytest

from dask_tiled.files import paths
from dask_tiled.files.paths import LONGEST, PATIENCE, with_room


@pytest.fixture
def clock(monkeypatch):
    """Let each look at the clock last a second; return the clock, whose time can be set."""

    def look():
        clock.now += 1
        assert clock.now < 1000, "the wait does not end"
        return clock.now

    clock = SimpleNamespace(now=0, monotonic=look, sleep=lambda _: None)
    monkeypatch.setattr(paths, "time", clock)
    monkeypatch.setattr(paths, "_latest", [(0.0, 0)])
    return clock


def in_a_thread():
    thread = threading.Thread(target=with_room, args=(lambda: None, "other"))
    thread.start()
    thread.join()


def needs_two():
    """Get one descriptor, but not a second one, as where a file is opened and then mapped."""
    with_room(lambda: None, "first")
    raise OSError(errno.EMFILE, "too many")


def test_ones_own_descriptors_do_not_prolong_the_wait(clock):
    with pytest.raises(OSError, match="ulimit -n") as caught:
        with_room(needs_two, "a")
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, "a")
    assert clock.now < 4 * PATIENCE


def test_descriptors_of_other_threads_prolong_the_wait(clock):
    def open_():
        in_a_thread()
        if clock.now < LONGEST - 10:
            raise OSError(errno.EMFILE, "too many")
        return clock.now

    assert with_room(open_, "a") > 4 * PATIENCE


def test_the_wait_ends_although_other_threads_open_files(clock):
    def open_():
        in_a_thread()
        raise OSError(errno.EMFILE, "too many")

    with pytest.raises(OSError, match="ulimit -n"):
        with_room(open_, "a")
    assert LONGEST <= clock.now < LONGEST + 4 * PATIENCE
