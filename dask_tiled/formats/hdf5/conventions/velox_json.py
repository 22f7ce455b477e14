"""Image titles of a Velox file, and its JSON.

Layout facts: files of Velox 2.9 to 3.10. ``Operations`` produced the images, ``Displays`` show
them: the JSON of each names an image by its path, directly or by a reference, and its title.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.formats.tools import text

MOST_TEXT = 1 << 20
"""Longer JSON is not read."""
MOST_TITLES = 1000
"""Search at most this many operations and displays for titles."""
SIGNS = {"Subtraction": "-", "Addition": "+", "Multiplication": "*", "Division": "/"}

Json = Mapping[str, Any]


def titles_of(tree: Tree) -> dict[str, str]:
    """Return the titles of images by path."""
    titles: dict[str, str] = {}
    operations = {f"/Operations/{path}": said for path, said in _documents(tree, "Operations")}
    shown = [*_documents(tree, "Presentation/Displays"), *_documents(tree, "Displays")]
    for _, said in shown:
        title = part_of(said, "display").get("label") or said.get("title")
        _note(titles, _data_path(tree, said), title)
    made: dict[str, str] = {}
    for path, said in operations.items():
        kind = path.split("/")[2]
        name = said.get("detector") or said.get("cameraName")
        if kind == "DpcOperation":
            name = "DPC"
        elif kind == "SurfaceReconstructionOperation":
            name = "iDPC"
            if said.get("enableFilter") == "true":
                _note(made, said.get("unfilteredDataPath"), name)
                name = "Filtered iDPC"
        elif kind == "MathematicsOperation":
            name = _calculated(path, said, operations)
        _note(made, said.get("dataPath"), name)
    return {**titles, **made}


def _note(titles: dict[str, str], path: Any, title: Any) -> None:
    if text_in(path) and text_in(title):
        titles.setdefault(path, title)


def _calculated(path: str, said: Json, operations: Mapping[str, Json]) -> str:
    """Return the name of a result computed from detector segments, such as ``A-C``."""
    inputs: dict[str, str] = {}
    for other in operations.values():
        outputs = other.get("outputs")
        for output in outputs if isinstance(outputs, list) else []:
            if isinstance(output, dict) and output.get("operation") == path:
                inputs[str(output.get("inputIndex"))] = str(other.get("detector", ""))
    names = [inputs[key].rpartition("-")[2] for key in sorted(inputs)]
    mode = said.get("mathematicsMode")
    return SIGNS.get(mode, f" {mode} ").join(names) if all(names) and isinstance(mode, str) else ""


def _data_path(tree: Tree, said: Json) -> Any:
    """Return the path of the image that a display shows, directly or by a reference."""
    path = said.get("data", said)
    reference = read_document(tree, tree.root, path) if isinstance(path, str) else path
    return reference.get("dataPath") if isinstance(reference, dict) else None


def _documents(tree: Tree, path: str) -> Iterator[tuple[str, Json]]:
    """Yield the JSON documents below a group, with their paths."""
    import h5py

    group, left = tree.look(tree.root, path), MOST_TITLES
    for kind in names_in(group, MOST_TITLES) if isinstance(group, h5py.Group) else ():
        inner = tree.look(group, kind)
        for name in names_in(inner, left) if isinstance(inner, h5py.Group) else ():
            left -= 1
            yield f"{kind}/{name}", read_document(tree, inner, name)


def read_document(tree: Tree, start: Any, path: str) -> Json:
    """Read a document at a path, relative to a group; empty if there is none."""
    found = tree.look(start, path)
    if getattr(found, "shape", None) not in {(), (1,)}:
        return {}
    try:
        value = tree.read(found)
    except BROKEN:
        return {}
    value = value if isinstance(value, bytes) else value.reshape(-1)[0]
    return parsed(value if isinstance(value, bytes) else b"")


def parsed(document: bytes) -> Json:
    """Parse a document; empty if it is damaged."""
    try:
        found = text.parse_json(document[:MOST_TEXT])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def part_of(said: Json, name: str) -> Json:
    """Return the object with a name; empty if there is none."""
    found = said.get(name)
    return found if isinstance(found, dict) else {}


def text_in(value: Any) -> str:
    """Return a text; empty for other values."""
    return value if isinstance(value, str) else ""


number_in = partial(text.number_in, default=math.nan)
"""Return a number that is stored as text; NaN for other values."""
