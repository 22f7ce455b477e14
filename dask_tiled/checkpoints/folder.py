"""The folder of a checkpoint: claimed by one run, and filled with partial results."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from dask_tiled.checkpoints.values import decoded, encoded, names_in
from dask_tiled.errors import DatasetError, warn, warn_once
from dask_tiled.files.paths import listed
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.folders import Folder, local_path, place_in
from dask_tiled.storing.locks import locked
from dask_tiled.storing.nodes import files, reading_of, unknown_key
from dask_tiled.storing.places import Place, fingerprint

SMALL_BYTES = 1 << 16
"""Larger results are stored by the worker that computed them; others by the client, together."""
GROUP_BYTES = 1 << 12
"""Approximate size of the metadata of a group."""
RECORD = "zarr.json"
"""Key of the root group, whose attributes describe the computation."""
RESULT = "result-"
"""Prefix of the names of results; those of other tasks are keys of dask."""
_OWN = re.compile(r"store/.+|(journal|writing)/[0-9a-f]{32}")
_HINT = "Pass another folder, or resume=False to discard what this one holds."


class StoredResult(NamedTuple):
    """A result in the folder."""

    group: str
    """Name of its zarr group."""
    keys: tuple[str, ...]
    """All keys of the group."""


class Small(NamedTuple):
    """A result that the client receives, and stores with others."""

    value: Any


def store(place: Place, name: str, value: Any) -> StoredResult | Small:
    """Store a large result; return others to the client."""
    if nbytes_of(value) <= SMALL_BYTES:
        return Small(value)
    return stored(place, {name: value}) or Small(value)


def stored(place: Place, values: Mapping[str, Any]) -> StoredResult | None:
    """Store results as a zarr group, and note it in the journal; None if none can be stored."""
    contents = encoded(values, _not_kept)
    if not contents:
        return None
    group = uuid.uuid4().hex
    found = {f"{group}/{key}": data for key, data in contents.items()}
    for key, data in found.items():
        place.put(key, data)
    place.note({key: fingerprint(data) for key, data in found.items()})
    return StoredResult(group, tuple(found))


def _not_kept(name: str, kind: str) -> None:
    """Warn of a partial result that zarr cannot store; those of last steps need not be stored."""
    if not name.startswith(RESULT):
        warn_once(f"partial results of type {kind} cannot be kept in a checkpoint", UserWarning)


def load(place: Place, one: StoredResult, name: str) -> Any:
    """Read a result."""
    return dict(_values(place, one))[name]


def _values(place: Place, one: StoredResult) -> Iterator[tuple[str, Any]]:
    contents = dict[str, bytes]()
    for key in one.keys:
        data = place.reader().get(key)
        if data is None:
            raise DatasetError("a partial result is missing", path=place.path, where=key)
        contents[key.removeprefix(f"{one.group}/")] = bytes(data)
    yield from decoded(contents)


def nbytes_of(value: Any) -> int:
    """Return the bytes of the arrays of a result."""
    if isinstance(value, Mapping):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes_of, value))
    return int(getattr(value, "nbytes", 64))


class Checkpoint:
    """The partial results of a computation.

    Parameters
    ----------
    place : Place
    every : float
        Seconds for which small results may be in memory only.
    """

    def __init__(self, place: Place, every: float) -> None:
        self.place = place
        self._every = every
        self._due = time.monotonic() + every
        self._stored: dict[str, StoredResult] = {}
        self._held: dict[str, Any] = {}
        self._waiting: dict[str, Any] = {}

    def recall(self) -> None:
        """Find the results that an earlier run has proven, and remove the rest."""
        whole, groups = self.place.whole(), dict[str, set[str]]()
        for key in self.place.noted():
            groups.setdefault(key.partition("/")[0], set()).add(key)
        groups.pop(RECORD, None)
        for group, keys in groups.items():
            if keys <= whole and f"{group}/{RECORD}" in keys:
                one = StoredResult(group, tuple(sorted(keys)))
                names = names_in(self.place.reader().get(f"{group}/{RECORD}") or b"", len(keys))
                self._stored |= dict.fromkeys(names, one)
                sizes = [self.place.content.nbytes(key) or 0 for key in keys]
                if sum(sizes) <= (SMALL_BYTES + GROUP_BYTES) * len(names):
                    self._held |= _values(self.place, one)
        self._tidy()

    @property
    def stored(self) -> Collection[str]:
        """Names of the results in the folder."""
        return self._stored.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._stored or name in self._held

    def add(self, name: str, one: StoredResult | Small) -> None:
        """Add a result that a task has returned."""
        if isinstance(one, StoredResult):
            self._stored[name] = one
            return
        self._held[name] = self._waiting[name] = one.value
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Store the results that are in memory only."""
        waiting, self._waiting = self._waiting, {}
        self._due = time.monotonic() + self._every
        if waiting and (one := stored(self.place, waiting)) is not None:
            self._stored |= {name: one for name in waiting if name not in self._stored}

    def held(self, name: str) -> StoredResult | Small:
        """Return a result that is in memory, or its place in the folder."""
        return Small(self._held[name]) if name in self._held else self._stored[name]

    def value(self, name: str) -> Any:
        """Return a result."""
        one = self.held(name)
        return one.value if isinstance(one, Small) else load(self.place, one, name)

    def keep(self, needed: Collection[str]) -> None:
        """Remove all results but those that are needed, which are computed from the others."""
        gone = {self._stored.pop(name) for name in self._stored.keys() - {*needed}}
        for name in self._held.keys() - {*needed}:
            del self._held[name]
        # Groups that are needed in part are written again.
        self._waiting = {x: self._held[x] for x, one in self._stored.items() if one in gone}
        for name in self._waiting:
            del self._stored[name]
        self.flush()
        self._tidy()

    def _tidy(self) -> None:
        """Remove files that belong to no result."""
        ours = {RECORD} | {key for one in {*self._stored.values()} for key in one.keys}
        self.place.content.remove(self.place.content.keys() - ours)


def path_of(folder: Any) -> str:
    """Return the path of a folder that a user passes.

    Raise a DatasetError if it is not a path, or is that of a file.
    """
    path = local_path(folder)
    if path is None:
        raise DatasetError("invalid checkpoint", expected="a folder", found=repr(folder))
    if os.path.lexists(path) and not os.path.isdir(path):
        raise DatasetError("invalid checkpoint", path=path, expected="a folder", found="a file")
    return path


@contextmanager
def claimed(path: str, about: Mapping[str, Any], *, resume: bool) -> Iterator[Place]:
    """Claim a folder, and yield the place in it for a computation.

    Parameters
    ----------
    about : mapping
        Description of the computation, for JSON.
    resume : bool
        Keep the results of an equal computation; otherwise discard any.

    Raises
    ------
    DatasetError
        The folder holds other files, or is in use by another run; it holds another computation; or
        it cannot be written.
    """
    with locked(path, partial(_make, path)):
        with reading_of(path):
            odd = next((key for key in files(path) if not _is_own(key)), None)
        if odd is not None:
            problem = "the checkpoint folder holds other files, which are not replaced"
            raise DatasetError(problem, path=path, where=odd, hint="Pass another folder.")
        place = place_in(path)
        place.path = path
        unfinished = os.path.join(path, "writing")  # of killed runs
        Folder(unfinished, unfinished).remove(listed(unfinished))
        found = _record(place)
        if found not in (None, about) and _is_damaged(place):
            _start_again(place)
            found = None
        if found is not None and found != about and resume:
            _check(path, found, about)
        if found != about or not resume:
            _discard(place)
            data = _document(about)
            place.put(RECORD, data)
            place.note({RECORD: fingerprint(data)})
        yield place


def _make(path: str) -> None:
    with writing_to(path):
        os.makedirs(path, exist_ok=True)


def _is_own(key: str) -> bool:
    if not _OWN.fullmatch(key):
        return False
    folder, _, name = key.partition("/")
    return folder != "store" or unknown_key([name], whole=False) is None


def _record(place: Place) -> dict[str, Any] | None:
    """Return the description of the computation in a folder; None if there is none."""
    data = place.reader().get(RECORD)
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return dict(json.loads(bytes(data or b""))["attributes"]["computation"])
    if place.content.keys():
        _start_again(place)
    return None


def _is_damaged(place: Place) -> bool:
    """Return whether the record differs from the one that was noted."""
    noted = place.noted().get(RECORD, [])
    return bool(noted) and fingerprint(place.reader().get(RECORD) or b"") not in noted


def _start_again(place: Place) -> None:
    warn(f"{place.path}: the record of the checkpoint is damaged, so it starts again")


def _document(about: Mapping[str, Any]) -> bytes:
    attributes = {"computation": dict(about)}
    return json.dumps(
        {"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1
    ).encode()


def _check(path: str, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Warn that results of other files or versions are discarded; refuse other computations."""
    for what, why in (("versions", "of other versions"), ("files", "computed from changed files")):
        old, new = found.get(what), about[what]
        if old != new and isinstance(old, dict) and old.keys() == new.keys():
            warn(f"{path}: the partial results are {why}, so the computation starts again")
            return
    raise DatasetError(
        "the checkpoint is of another computation",
        path=path,
        expected=_told(about),
        found=_told(found),
        hint=_HINT,
    )


def _told(about: Mapping[str, Any]) -> str:
    return "; ".join(map(str, about.get("results", ())))


def _discard(place: Place) -> None:
    """Remove the record, then all notes: results without a note are removed by recall."""
    place.content.remove([RECORD])
    if place.journal is not None:
        place.journal.remove(place.journal.keys())
