"""Export of several arrays to one group: a node for each, complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dask.base import tokenize

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr import steps
from dask_tiled.export.zarr.group import SERIES, node_names
from dask_tiled.export.zarr.layout import VERSIONS, WRITER, Settings, consolidate
from dask_tiled.export.zarr.plan import plan_of
from dask_tiled.export.zarr.sources import may_read
from dask_tiled.export.zarr.windows import OF_FORMAT_2, ROOT
from dask_tiled.model.mark import MARK, attributes_of, json_value
from dask_tiled.model.paths import open_file
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.nodes import is_document, is_note
from dask_tiled.storing.places import Place, fingerprint

if TYPE_CHECKING:
    import zarr

FAULTS = DatasetError, ImportError, OSError
"""Errors of one array, after which the others are stored."""
MOST_NAMED = 6
"""Name at most this many arrays in an error."""


def arrays_by_name(data: Any) -> Mapping[str, Any] | None:
    """Return several arrays by name: those of a mapping or of an xarray Dataset; None for one.

    Raise a DatasetError if names are not texts, or there are no arrays.
    """
    xr = sys.modules.get("xarray")
    if xr is not None and isinstance(data, xr.DataTree):
        hint = "Pass a mapping of names to its arrays."
        raise DatasetError("a tree of Datasets cannot be exported", found="DataTree", hint=hint)
    if xr is not None and isinstance(data, xr.Dataset):
        names = [*data.data_vars]
        return {str(name): data[name] for name in names} if len(names) > 1 else None
    if not isinstance(data, Mapping):
        return None
    wrong = next((name for name in data if not isinstance(name, str)), None)
    if wrong is not None or not data:
        expected, found = "names of arrays as text", "none" if wrong is None else repr(wrong)
        raise DatasetError("invalid mapping of arrays", expected=expected, found=found)
    return data


class Earlier(NamedTuple):
    """A group that an export left incomplete, because some of its arrays could not be read."""

    path: str
    attempts: Mapping[str, str]
    """Keys of the attempts that stored its nodes, by node."""

    @classmethod
    def at(cls, path: str) -> Earlier | None:
        """Return the group at a path; None if there is none, or it is complete."""
        for name in (ROOT, OF_FORMAT_2):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                with open_file(os.path.join(path, name)) as file:
                    told = json.loads(file.read())
                mark = (told["attributes"] if name == ROOT else told)[MARK]
                if mark["lacking"]:
                    return cls(path, dict(mark["attempts"]))
        return None

    def keep(self, node: str, attempt: str, place: Place) -> bool:
        """Link a node into its new place; return whether the same attempt has stored it."""
        source, target = (os.path.join(x, node) for x in (self.path, place.content.path))
        if self.attempts.get(node) != attempt or not os.path.isdir(source):
            return False
        with writing_to(target):
            shutil.copytree(source, target, copy_function=_linked, dirs_exist_ok=True)
        return True


def _linked(source: str, target: str) -> None:
    """Link a file, or copy it where the file system has no links."""
    if os.path.lexists(target):
        os.remove(target)  # perhaps incomplete
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class Export:
    """An export of several arrays to one group."""

    def __init__(
        self, places: Sequence[Place], settings: Settings, path: str | None, *, show: bool | None
    ) -> None:
        self.places, self.settings, self.path, self.show = places, settings, path, show
        self._noted = places[-1].noted()
        self.stored: dict[str, str] = {}
        """Keys of the attempts that stored nodes, by node."""

    def add(self, data: Any, name: str, node: str, earlier: Earlier | None) -> None:
        """Store an array at a node, unless an earlier attempt has completed it."""
        source = steps.ExportSource.of(data, self.settings._replace(title=name))
        plan = plan_of(source.given, source.settings, relay=len(self.places) > 1)
        outer, attempt = self.places[-1], plan.steps[-1].attempt
        kept = earlier is not None and earlier.keep(node, attempt, outer)
        if not kept and _fingerprint(outer, node) not in self._noted.get(f"{attempt}/{node}", []):
            own = [place.below(node, attempt) for place in self.places[-len(plan.steps) :]]
            with source.on_workers(self.path):
                steps.store(plan, source.arr, {}, own, show=self.show)
        outer.note({f"{attempt}/{node}": _fingerprint(outer, node)})
        self.stored[node] = attempt

    def publish(self, names: Mapping[str, str], lacking: Mapping[str, str]) -> None:
        """Store the metadata of the group, which lists those of its nodes.

        Parameters
        ----------
        names : mapping of str to str
            Names of the stored arrays by node.
        lacking : mapping of str to str
            Reasons why others are not stored, by name.
        """
        content = self.places[-1].content
        there = content.keys()
        if lacking:
            content.remove(x for x in there if x.partition("/")[0] not in names and not is_note(x))
        documents = sorted(x for x in there if is_document(x) and x.partition("/")[0] in names)
        reader = self.places[-1].reader()
        of_nodes = {key: bytes(reader.get(key) or b"") for key in documents}
        told: dict[str, Any] = {"written_by": WRITER, "datasets": {**names}}
        if lacking:
            told |= {"complete": False, "lacking": {**lacking}, "attempts": self.stored}
        attributes = {MARK: attributes_of((), ())[MARK] | told}
        found = _documents(attributes, of_nodes, self.settings.zarr_format)
        self.places[-1].publish(found, there)


def _fingerprint(place: Place, node: str) -> list[int]:
    """Return the fingerprint of the metadata of a node; empty if it has none."""
    reader = place.reader()
    for name in (ROOT, ".zgroup", ".zarray"):
        data = reader.get(f"{node}/{name}")
        if data is not None:
            return fingerprint(data)
    return []


def _documents(
    attributes: dict[str, Any], of_nodes: Mapping[str, bytes], zarr_format: Literal[2, 3]
) -> dict[str, bytes]:
    """Return the documents of a group, given those of its nodes.

    OME-Zarr images are listed as a series, in the layout of bioformats2raw.
    """
    import zarr
    from zarr.buffer import default_buffer_prototype

    contents: dict[str, Any] = {}
    store: Any = zarr.storage.MemoryStore(contents)
    series = [node for node in attributes[MARK]["datasets"] if _is_image(of_nodes, node)]
    if series:
        told: list[dict[str, Any]] = [{"bioformats2raw.layout": 3}, {"series": series}]
        if zarr_format == 3:
            told = [{"ome": {"version": VERSIONS[zarr_format], **one}} for one in told]
        attributes = attributes | told[0]
    zarr.create_group(store, attributes=json_value(attributes), zarr_format=zarr_format)
    if series:
        zarr.create_group(store, path=SERIES, attributes=told[1], zarr_format=zarr_format)
    own = {*contents}
    of_bytes = default_buffer_prototype().buffer.from_bytes
    contents |= {key: of_bytes(data) for key, data in of_nodes.items()}
    consolidate(store)
    return {key: contents[key].to_bytes() for key in contents if key in own or key not in of_nodes}


def _is_image(documents: Mapping[str, bytes], node: str) -> bool:
    """Return whether a node is an image of OME-Zarr."""
    with suppress(KeyError):
        return "ome" in json.loads(documents[f"{node}/{ROOT}"])["attributes"]
    with suppress(KeyError):
        return "multiscales" in json.loads(documents[f"{node}/{OF_FORMAT_2}"])
    return False


def export_each(
    arrays: Mapping[str, Any],
    store: Any,
    settings: Settings,
    *,
    overwrite: bool,
    resume: bool,
    show: bool | None,
) -> zarr.Group:
    """Export arrays to the nodes of one group, one after the other.

    Raise a DatasetError if some arrays cannot be read or stored: at a path, the group then holds
    the others, and the same call adds what is lacking.
    """
    import zarr

    nodes, path = node_names(arrays), local_path(store)
    earlier = Earlier.at(path) if resume and path is not None else None
    attempts = [f"{tokenize(*nodes.values())}-{tokenize(kind)}" for kind in ("relay", "group")]
    failed: dict[str, Exception] = {}

    def reads(other: Any) -> bool:
        return any(
            may_read([steps.ExportSource.of(x, settings).arr], other) for x in arrays.values()
        )

    options = {"overwrite": overwrite or earlier is not None, "resume": resume}
    with begin(store, attempts, reads, **options) as places:
        export = Export(places, settings, path, show=show)
        for name, node in nodes.items():
            try:
                export.add(arrays[name], name, node, earlier)
            except FAULTS as error:
                failed[name] = error
        if failed and (path is None or not export.stored):
            raise _failure(failed, nodes, path or str(store))
        reasons = {x: getattr(one, "problem", type(one).__name__) for x, one in failed.items()}
        export.publish({node: name for name, node in nodes.items() if name not in failed}, reasons)
    if failed:
        raise _failure(failed, nodes, path or str(store))
    if path is not None:  # zarr would treat a name with ``::`` as a URL
        return zarr.open_group(zarr.storage.LocalStore(path, read_only=True), mode="r")
    return zarr.open_group(store, mode="r+")


def _failure(failed: Mapping[str, Exception], nodes: Mapping[str, str], path: str) -> Exception:
    """Return the error about the arrays that are not stored."""
    first = next(iter(failed.values()))
    if len(failed) == len(nodes):
        return first
    named = ", ".join(map(repr, [*failed][:MOST_NAMED])) + ", ..." * (len(failed) > MOST_NAMED)
    problem = f"{len(failed)} of {len(nodes)} arrays are not stored: {named}"
    hint = "The others are. The same call adds those that can be read by then."
    error = DatasetError(problem, path=path, found=str(first), hint=hint)
    error.__cause__ = first
    return error
