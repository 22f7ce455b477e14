"""Samples are cached completely or not at all, in the folder of the system or the user."""

import os
import sys
import threading
from pathlib import Path

import dask
import pytest
from checks import unprivileged

from dask_tiled import DatasetError
from dask_tiled.samples import folder
from dask_tiled.samples.folder import SETTING, kept


@pytest.fixture
def cache(tmp_path):
    with dask.config.set({SETTING: tmp_path / "cache"}):
        yield tmp_path / "cache"


def write(place, text="pixels"):
    (place / "a.raw").write_text(text)
    (place / "a.hdr").write_text("header")


def never(_):
    pytest.fail("the sample exists already")


def test_samples_are_made_once(cache):
    path = kept("a-1", "a.raw", write)
    assert path == cache / "a-1" / "a.raw"
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.hdr", "a.raw"]
    assert kept("a-1", "a.raw", never) == path
    assert kept("a-2", "a.raw", write) != path  # another version
    assert sorted(os.listdir(cache)) == ["a-1", "a-2"]


def test_failures_leave_nothing(cache):
    def stop(place):
        write(place)
        raise KeyboardInterrupt

    def full(place):
        write(place)
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        kept("a-1", "a.raw", stop)
    with pytest.raises(
        DatasetError, match=r"cache: the folder of samples is not writable.*No space left"
    ):
        kept("a-1", "a.raw", full)
    assert os.listdir(cache) == []


def test_concurrent_threads_share_one_sample(cache):
    """The sample that is complete first is used by all threads."""
    there, found = threading.Barrier(4), []

    def together(place):
        write(place, f"{threading.get_ident()}")
        there.wait(100)

    def run():
        found.append(kept("a-1", "a.raw", together).read_text())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({*found}) == 1
    assert os.listdir(cache) == ["a-1"]


def test_incomplete_samples_are_made_again(cache):
    kept("a-1", "a.raw", write)
    (cache / "a-1" / "a.raw").unlink()
    assert kept("a-1", "a.raw", write).read_text() == "pixels"


def test_remains_of_killed_processes_are_removed(cache):
    for name, age in (("old", 1e5), ("new", 0)):
        (cache / f".a-1-{name}" / "a-1").mkdir(parents=True)
        made = (cache / f".a-1-{name}").stat().st_mtime - age
        os.utime(cache / f".a-1-{name}", (made, made))
    kept("a-1", "a.raw", write)
    assert sorted(os.listdir(cache)) == [".a-1-new", "a-1"]


@pytest.mark.parametrize(
    ("platform", "xdg", "expected"),
    [
        ("linux", None, "home/.cache"),
        ("linux", "relative", "home/.cache"),
        ("linux", "{}/xdg", "xdg"),
        ("darwin", "{}/xdg", "home/Library/Caches"),
    ],
)
def test_default_folder(platform, xdg, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg.format(tmp_path))
    with dask.config.set({SETTING: None}):
        path = kept("a-1", "a.raw", write)
    assert path == tmp_path / expected / "dask-tiled" / "samples" / "a-1" / "a.raw"


def test_folder_from_the_environment(monkeypatch):
    monkeypatch.setenv("DASK_DASK_TILED__SAMPLES_FOLDER", "~/elsewhere")
    monkeypatch.setenv("HOME", "/home/of")
    with dask.config.set(dask.config.collect_env()):
        assert folder._configured() == Path("/home/of/elsewhere")


def test_unwritable_folder(tmp_path, monkeypatch):
    """An unwritable configured folder raises; the default folder warns once."""
    (tmp_path / "file").touch()
    with (
        dask.config.set({SETTING: tmp_path / "file" / "samples"}),
        pytest.raises(
            DatasetError, match=r"file/samples: the folder of samples is not writable.*config\.set"
        ),
    ):
        kept("a-1", "a.raw", write)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "platform", "linux")
    folder._temporary.cache_clear()
    with dask.config.set({SETTING: None}):
        with pytest.warns(UserWarning, match=r"file/dask-tiled/samples is not writable"):
            path = kept("a-1", "a.raw", write)
        assert path.read_text() == "pixels"
        assert kept("a-1", "a.raw", never) == path


def test_user_without_a_home(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with dask.config.set({SETTING: None}):
        assert folder._configured().is_relative_to(os.devnull)


def test_read_only_folder_is_read(cache):
    path = kept("a-1", "a.raw", write)
    cache.chmod(0o555)
    try:
        with unprivileged():
            assert kept("a-1", "a.raw", never) == path
            with pytest.raises(DatasetError, match="the folder of samples is not writable"):
                kept("b-1", "b.raw", write)
    finally:
        cache.chmod(0o755)
