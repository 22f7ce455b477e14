"""Export of several arrays to one group: a node for each, complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from dask.base import tokenize

from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.zarr import steps
from dask_tiled.export.zarr.group import SERIES, dimension_names, node_names
from dask_tiled.export.zarr.layout import VERSIONS, WRITER, Settings, consolidate
from dask_tiled.export.zarr.plan import ExportPlan, plan_of
from dask_tiled.export.zarr.plates import groups_of_plate, is_plate
from dask_tiled.export.zarr.sources import may_read
from dask_tiled.export.zarr.windows import OF_FORMAT_2, ROOT
from dask_tiled.files.paths import open_file
from dask_tiled.model.mark import MARK, attributes_of, json_value
from dask_tiled.opening.arrays import opened
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.nodes import files, is_document, is_note, lies_in
from dask_tiled.storing.places import Place

FAULTS = DatasetError, ImportError, OSError
"""Errors of files that cannot be read."""
REFUSALS = ImportError, NotImplementedError, TypeError, ValueError
"""Errors of dask, NumPy and zarr about arrays and settings that cannot be stored."""
MOST_NAMED = 6
"""Name at most this many arrays in an error."""
AGAIN = "The same call adds those that can be read by then."
RESUMED = "With resume=True, the same call adds those that can be read by then."
IMAGE = "layout='group', 2 to 5 axes: time, channels, space, with positive scales"
"""What makes an array an image of OME-Zarr."""
KEPT = "The existing group is unchanged until the same call can read all arrays."


class PlannedArray(NamedTuple):
    """An array of a group, and the plan of its export."""

    source: steps.ExportSource
    plan: ExportPlan

    @property
    def attempt(self) -> str:
        """Key: exports with equal keys may resume each other."""
        return self.plan.steps[-1].attempt


def planned_arrays(
    arrays: Mapping[str, Any], settings: Settings, path: str | None
) -> tuple[dict[str, PlannedArray], dict[str, Exception]]:
    """Open arrays, and plan their exports to a path or, if it is None, to a store.

    Raise a DatasetError or a TilingError, with the name, if an array cannot be stored, or is a
    field of a plate but not an image of OME-Zarr.

    Returns
    -------
    dict of str to PlannedArray
    dict of str to Exception
        Errors of arrays that cannot be opened.
    """
    planned: dict[str, PlannedArray] = {}
    failed: dict[str, Exception] = {}
    of_plate = is_plate(arrays)
    for name in arrays:
        try:
            data = arrays[name]
            if isinstance(data, (os.PathLike, Sequence)):
                data = opened(data)
        except FAULTS as error:
            failed[name] = error
            continue
        try:
            source = steps.ExportSource.of(data, settings._replace(title=name))
            plan = plan_of(source.given, source.settings, relay=path is not None)
        except REFUSALS as error:
            kind = TilingError if isinstance(error, TilingError) else DatasetError
            problem = f"the array {name!r} cannot be stored"
            raise kind(problem, path=path, found=_without_stop(error)) from error
        if of_plate and not _is_image(plan.steps[-1].documents):
            axes = ", ".join(dimension_names(source.given.shown.axes))
            raise DatasetError(
                f"the field {name!r} of the plate is not an image of OME-Zarr",
                path=path,
                expected=IMAGE,
                found=f"layout={settings.layout!r}, axes {axes}",
                hint="With names that are not row/column/number, the arrays are not a plate.",
            )
        planned[name] = PlannedArray(source, plan)
    return planned, failed


class Earlier(NamedTuple):
    """A group that an export left incomplete, because some of its arrays could not be read."""

    path: str
    names: frozenset[str]
    """Names of all arrays of the export."""
    attempts: Mapping[str, str]
    """Keys of the attempts that stored its nodes, by node."""
    attributes: Mapping[str, Any]
    """Attributes of the group."""

    @classmethod
    def at(cls, path: str) -> Earlier | None:
        """Return the group at a path; None if there is none, or it is complete."""
        for name in (ROOT, OF_FORMAT_2):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                with open_file(os.path.join(path, name)) as file:
                    told = json.loads(file.read())
                attributes = told["attributes"] if name == ROOT else told
                mark = attributes[MARK]
                if mark["lacking"]:
                    names = frozenset([*mark["datasets"].values(), *mark["lacking"]])
                    return cls(path, names, dict(mark["attempts"]), attributes)
        return None

    def is_continued(self, nodes: Mapping[str, str], planned: Mapping[str, PlannedArray]) -> bool:
        """Return whether an export of these arrays only adds to the group.

        It does if names, and the arrays that are stored, are equal, and nothing else was added.

        Parameters
        ----------
        nodes : mapping of str to str
            Nodes of all arrays, by name.
        planned : mapping of str to PlannedArray
            The arrays that could be opened.
        """
        attempts = {nodes[name]: one.attempt for name, one in planned.items()}
        changed = any(attempts.get(node, one) != one for node, one in self.attempts.items())
        return self.names == {*nodes} and not changed and all(map(self._wrote, files(self.path)))

    def _wrote(self, key: str) -> bool:
        """Return whether the export wrote a file, or it lies in one of its nodes."""
        node, _, inside = key.rpartition("/")
        above = node in ("", SERIES) or any(one.startswith(f"{node}/") for one in self.attempts)
        return lies_in(key, self.attempts) or (above and is_document(inside))

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

    def __init__(self, places: Sequence[Place], path: str | None, *, show: bool | None) -> None:
        self.places, self.path, self.show = places, path, show
        self._noted = places[-1].noted()
        self.stored: dict[str, str] = {}
        """Keys of the attempts that stored nodes, by node."""

    def add(self, one: PlannedArray, node: str, earlier: Earlier | None) -> None:
        """Store an array at a node, unless an earlier attempt has completed it."""
        (source, plan), attempt, outer = one, one.attempt, self.places[-1]
        kept = earlier is not None and earlier.keep(node, attempt, outer)
        if not kept and outer.fingerprint_of(node) not in self._noted.get(f"{attempt}/{node}", []):
            own = [place.below(node, attempt) for place in self.places[-len(plan.steps) :]]
            with source.on_workers(self.path):
                steps.store(plan, source.arr, {}, own, show=self.show)
        outer.note({f"{attempt}/{node}": outer.fingerprint_of(node)})
        self.stored[node] = attempt

    def publish(
        self,
        names: Mapping[str, str],
        lacking: Mapping[str, str],
        attributes: Mapping[str, Any],
        zarr_format: Literal[2, 3],
    ) -> None:
        """Store the metadata of the group, which lists those of its nodes.

        Parameters
        ----------
        names : mapping of str to str
            Names of the stored arrays by node.
        lacking : mapping of str to str
            Reasons why others are not stored, by name.
        attributes : mapping of str to Any
            Further attributes of the group.
        zarr_format : {2, 3}
        """
        content = self.places[-1].content
        there = content.keys()
        if lacking:
            content.remove(x for x in there if not is_note(x) and not lies_in(x, names))
        documents = sorted(x for x in there if is_document(x) and lies_in(x, names))
        reader = self.places[-1].reader()
        of_nodes = {key: bytes(reader.get(key) or b"") for key in documents}
        told: dict[str, Any] = {"written_by": WRITER, "datasets": {**names}}
        if lacking:
            told |= {"complete": False, "lacking": {**lacking}, "attempts": self.stored}
        own = {MARK: attributes_of((), ())[MARK] | told}
        name = os.path.basename(self.path or "").removesuffix(".zarr") or "plate"
        found = _documents({**attributes} | own, of_nodes, name, zarr_format)
        self.places[-1].publish(found, there)


def _documents(
    attributes: dict[str, Any], of_nodes: Mapping[str, bytes], name: str, zarr_format: Literal[2, 3]
) -> dict[str, bytes]:
    """Return the documents of a group, given those of its nodes.

    OME-Zarr images are listed as a series, in the layout of bioformats2raw, or as fields of the
    wells of a plate.
    """
    import zarr
    from zarr.buffer import default_buffer_prototype

    contents: dict[str, Any] = {}
    store: Any = zarr.storage.MemoryStore(contents)
    images = [node for node in attributes[MARK]["datasets"] if _is_image(of_nodes, node)]
    groups: dict[str, dict[str, Any]] = {"": {}}
    if images and is_plate(images):
        groups = groups_of_plate(images, name)
    elif images:
        groups = {"": {"bioformats2raw.layout": 3}, SERIES: {"series": images}}
    for path, told in groups.items():
        # A group that is resumed lists fewer images than there are now.
        of_group = (json_value(attributes) if not path else {}) | _with_version(told, zarr_format)
        zarr.create_group(store, path=path, attributes=of_group, zarr_format=zarr_format)
    own = {*contents}
    of_bytes = default_buffer_prototype().buffer.from_bytes
    contents |= {key: of_bytes(data) for key, data in of_nodes.items()}
    consolidate(store)
    return {key: contents[key].to_bytes() for key in contents if key in own or key not in of_nodes}


def _with_version(told: Mapping[str, Any], zarr_format: Literal[2, 3]) -> dict[str, Any]:
    """Return attributes of OME-Zarr as a version of zarr stores them."""
    version = VERSIONS[zarr_format]
    if zarr_format == 3:
        return {"ome": {"version": version, **told}} if told else {}
    of_plates = ("plate", "well")
    return {key: {"version": version, **x} if key in of_plates else x for key, x in told.items()}


def _is_image(documents: Mapping[str, bytes], node: str = "") -> bool:
    """Return whether a node, or the root, is an image of OME-Zarr."""
    with suppress(KeyError):
        return "ome" in json.loads(documents[f"{node}/{ROOT}".lstrip("/")])["attributes"]
    with suppress(KeyError):
        return "multiscales" in json.loads(documents[f"{node}/{OF_FORMAT_2}".lstrip("/")])
    return False


def export_each(
    arrays: Mapping[str, Any],
    store: Any,
    settings: Settings,
    *,
    overwrite: bool,
    resume: bool,
    show: bool | None,
) -> None:
    """Export arrays to the nodes of one group, one after the other.

    Raise a DatasetError if some arrays cannot be read: at a path, a new group then holds the
    others, and the same call adds what is lacking. An existing group is replaced only by all.
    """
    nodes, path = node_names(arrays), local_path(store)
    planned, failed = planned_arrays(arrays, settings, path)
    if not planned:
        raise _failure(failed, nodes, path, "")
    earlier = Earlier.at(path) if resume and path is not None else None
    continues = earlier is not None and earlier.is_continued(nodes, planned)
    attempts = [f"{tokenize(*nodes.values())}-{tokenize(kind)}" for kind in ("relay", "group")]

    def reads(other: Any) -> bool:
        return may_read([one.source.arr for one in planned.values()], other)

    with begin(store, attempts, reads, overwrite=overwrite or continues, resume=resume) as places:
        export = Export(places, path, show=show)
        for name, one in planned.items():
            try:
                export.add(one, nodes[name], earlier)
            except CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - tasks raise any
                failed[name] = error
        stored = {nodes[name]: name for name in planned if name not in failed}
        if failed and (path is None or not stored):
            raise _failure(failed, nodes, path or str(store), AGAIN if resume else "")
        adds = earlier is not None and continues and stored.keys() >= earlier.attempts.keys()
        if failed and not adds and os.path.lexists(path or ""):
            raise _failure(failed, nodes, path, KEPT)
        reasons = {x: getattr(one, "problem", type(one).__name__) for x, one in failed.items()}
        attributes = earlier.attributes if earlier is not None and continues else {}
        export.publish(stored, reasons, attributes, settings.zarr_format)
    if failed:
        again = AGAIN if resume else RESUMED
        raise _failure(failed, nodes, path, f"The group has the others. {again}")


def _failure(
    failed: Mapping[str, Exception], nodes: Mapping[str, str], path: str | None, hint: str
) -> Exception:
    """Return the error about the arrays that are not stored."""
    first = next(iter(failed.values()))
    if len(failed) == len(nodes):
        return first
    named = ", ".join(map(repr, [*failed][:MOST_NAMED])) + ", ..." * (len(failed) > MOST_NAMED)
    problem = f"{len(failed)} of {len(nodes)} arrays are not stored: {named}"
    error = DatasetError(problem, path=path, found=_without_stop(first), hint=hint)
    error.__cause__ = first
    return error


def _without_stop(error: Exception) -> str:
    """Return the text of an error, or its type if it has none, without a full stop at its end."""
    return str(error).rstrip(".") or type(error).__name__
