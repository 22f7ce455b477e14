"""Folders that are watched: datasets that are complete, and have not changed for a while."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self

from dask_tiled.batch.naming import is_below
from dask_tiled.batch.planning import ConversionKey, ConversionPlan, PlannedConversion, Source
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.errors import DatasetError, require_extra, warn
from dask_tiled.files.paths import absolute
from dask_tiled.system.changes import is_network, is_written

POLL_SECONDS = 5.0
SHARE = 0.2
"""Share of the time that may be spent listing the folders."""


class SourceWatch:
    """Folders that are watched; a context.

    Parameters
    ----------
    sources : sequence of path-like
        The folders.
    target : str
        The folder of the targets, whose changes are ignored.
    plan : callable
        Returns the present plan; takes a store of headers, ``store=``.
    quiet : float
        Seconds without changes after which a dataset is converted.
    opening : mapping
        Options of ``open_dataset``.

    Attributes
    ----------
    incomplete : list of PlannedConversion
        Datasets that lack frames, or have just changed.

    Raises
    ------
    DatasetError
        A source is no folder.
    ImportError
        ``watchfiles`` is not installed.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        target: str,
        plan: Callable[..., ConversionPlan],
        quiet: float,
        opening: Mapping[str, Any],
    ) -> None:
        self._watchfiles = require_extra("watch", "watchfiles")
        self._folders = [_folder(one) for one in sources]
        inside = any(is_below(one, target) for one in self._folders)
        self._ignored = None if inside else target
        self._plan_by, self._quiet = plan, quiet
        self._accepts_missing = opening.get("missing") == "fill"
        self.incomplete: list[PlannedConversion] = []
        self._stamps = dict[ConversionKey, tuple[Stamp, float]]()
        """Stamp of each source, and the time at which it was seen first."""
        self._begun = dict[ConversionKey, Stamp]()
        self._next = 0.0
        self._has_changed, self._ended = threading.Event(), threading.Event()
        self._has_changed.set()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Start to watch."""
        self._scratch = tempfile.TemporaryDirectory(prefix="dask-tiled-")
        self._store = HeaderStore(os.path.join(self._scratch.name, "headers.sqlite"))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._ended.set()
        self._thread.join()
        self._store.close()
        self._scratch.cleanup()

    def plan(self) -> ConversionPlan:
        """Return the present plan; only headers that have changed are read."""
        return self._plan_by(store=self._store)

    def new(self) -> list[PlannedConversion]:
        """Return the datasets that have become complete, or have changed, since the last call."""
        now = monotonic()
        if now < self._next or not (self._has_changed.is_set() or self._is_due(now)):
            return []
        self._has_changed.clear()
        try:
            planned = self.plan().without_conflicts()
        except FileNotFoundError:  # a folder was removed: it may come back
            planned = []
        ready = [one for one in planned if self._is_ready(one, now)]
        self._begun.update((one.key, one.stamp) for one in ready)
        self.incomplete = [one for one in planned if self._begun.get(one.key) != one.stamp]
        self._next = monotonic() + (monotonic() - now) / SHARE
        return ready

    def _is_due(self, now: float) -> bool:
        """Return whether a dataset has been quiet long enough since the last look."""
        seen = (self._stamps[one.key][1] for one in self.incomplete if self._is_whole(one))
        return any(now - since >= self._quiet for since in seen)

    def _is_ready(self, one: PlannedConversion, now: float) -> bool:
        if self._begun.get(one.key) == one.stamp:
            return False
        stamp, since = self._stamps.get(one.key, (None, now))
        is_quiet = stamp == one.stamp and now - since >= self._quiet
        if stamp != one.stamp or (is_quiet and any(map(_is_open, one.files))):
            since, is_quiet = now, False
        self._stamps[one.key] = one.stamp, since
        return is_quiet and self._is_whole(one)

    def _is_whole(self, one: PlannedConversion) -> bool:
        return self._accepts_missing or not one.lacking

    def _watch(self) -> None:
        """Note changes, until the end."""
        polls = any(map(_is_remote, self._folders))
        while not self._ended.is_set():
            try:
                for _ in self._watchfiles.watch(
                    *filter(os.path.isdir, self._folders),
                    watch_filter=self._is_of_source,
                    stop_event=self._ended,
                    rust_timeout=1000,
                    force_polling=polls or None,
                    poll_delay_ms=round(1000 * POLL_SECONDS),
                    ignore_permission_denied=True,
                ):
                    self._has_changed.set()
            except (OSError, RuntimeError) as error:  # too many folders, or one was removed
                if not polls:
                    warn(f"changes of files are looked for every {POLL_SECONDS:g} s: {error}")
                polls = True
                self._ended.wait(POLL_SECONDS)
                self._has_changed.set()

    def _is_of_source(self, _: object, path: str) -> bool:
        return self._ignored is None or not is_below(path, self._ignored)


def _folder(source: Source) -> str:
    path = absolute(source) if isinstance(source, (str, os.PathLike)) else source.path
    if not os.path.isdir(path):
        raise DatasetError("only folders are watched", path=path, expected="a folder")
    return path


def _is_remote(folder: str) -> bool:
    """Return whether other machines may change a folder without a notice to this one."""
    with suppress(OSError):
        return is_network(folder)
    return True


def _is_open(path: str) -> bool:
    """Return whether a program of this machine has a file open for writing."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return is_written(file.fileno())
    return False
