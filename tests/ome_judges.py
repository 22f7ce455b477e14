"""Judges of OME-Zarr: official JSON schemas, models of others, and their readers."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaozarrs


def validate(path):
    """Validate the metadata of an image group; return them."""
    assert yaozarrs.validate_zarr_store(str(path)) is not None
    three = Path(path, "zarr.json")
    if three.exists():
        told = json.loads(three.read_text())["attributes"]
        version, inner = "0.5", told["ome"]
    else:
        told = json.loads(Path(path, ".zattrs").read_text())
        version, inner = "0.4", told
    check_order(inner["multiscales"][0]["axes"])
    check_schema(version, "image", told)
    check_models(version, path)
    return inner


def check_order(axes):
    """Check what the schema cannot say: time, then channels or another type, then space."""
    ranks = [{"time": 0, "space": 2}.get(axis["type"], 1) for axis in axes]
    assert ranks == sorted(ranks)
    assert ranks.count(0) < 2
    assert ranks.count(1) < 2
    assert 2 <= ranks.count(2) <= 3


def check_schema(version, name, told):
    """Validate a document against an official schema, as ngff-zarr carries it."""
    found = find_spec("ngff_zarr")
    if found is None:
        return
    jsonschema = pytest.importorskip("jsonschema")
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    folder = Path(found.origin).parent / "spec" / version / "schemas"
    schemas = [json.loads(one.read_text()) for one in folder.glob("*.schema")]
    known = {one["$id"]: DRAFT202012.create_resource(one) for one in schemas if "$id" in one}
    schema = json.loads((folder / f"{name}.schema").read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind(schema, registry=Registry().with_resources(known.items())).validate(told)


def check_models(version, path):
    """Validate a group, with its arrays, by ome-zarr-models."""
    if find_spec("ome_zarr_models") is None or version != "0.5":
        return  # the models of 0.4 need an older pydantic
    import zarr
    from ome_zarr_models import open_ome_zarr

    found = open_ome_zarr(zarr.open_group(path, mode="r"), version=version)
    assert type(found).__name__ == "Image"
