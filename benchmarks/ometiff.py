"""Compare OME-TIFF sets with tifffile and bioio: one plane in each of many files, and many in four.

Run ``python benchmarks/ometiff.py``. All files are read from the page cache. tifffile's arrays are
read by ``aszarr`` and dask, as in its documentation. The readers are timed in turns, and the
medians of all rounds are printed; ratios are times of the other reader divided by that of
dask-tiled. bioio scans the whole set for every plane: it sums only planes of few files, once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from uuid import UUID

import dask.array as da
import numpy as np
import tifffile
import zarr
from rich.console import Console
from rich.table import Table

import dask_tiled
from dask_tiled.testing import iter_counting_frames

BIOIO_FILES = 50
OME = "http://www.openmicroscopy.org/Schemas/OME/2016-06"


def write_set(folder: Path, files: int, planes: int, side: int) -> Path:
    """Write a set whose first file holds the XML, to which the others refer."""
    names = [f"plane{k:05}.ome.tif" for k in range(files)]
    uuids = [UUID(int=file).urn for file in range(files)]
    elements = "".join(
        f'<TiffData IFD="{k}" FirstT="{file * planes + k}">'
        f'<UUID FileName="{name}">{uuids[file]}</UUID></TiffData>'
        for file, name in enumerate(names)
        for k in range(planes)
    )
    sizes = f'SizeX="{side}" SizeY="{side}" SizeZ="1" SizeC="1" SizeT="{files * planes}"'
    pixels = f'<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" {sizes}>'
    channel = '<Channel ID="Channel:0:0" SamplesPerPixel="1"/>'
    image = f'<Image ID="Image:0" Name="set">{pixels}{channel}{elements}</Pixels></Image>'
    stub = f'<BinaryOnly MetadataFile="{names[0]}" UUID="{uuids[0]}"/>'
    pages = iter_counting_frames((files * planes, side, side), "uint16")
    for file, name in enumerate(names):
        inner = stub if file else image
        xml = f'<?xml version="1.0"?><OME xmlns="{OME}" UUID="{uuids[file]}">{inner}</OME>'
        with tifffile.TiffWriter(folder / name) as writer:
            for k in range(planes):
                description = None if k else xml
                writer.write(next(pages), description=description, metadata=None)
    return folder / names[0]


def by_tifffile(path: Path) -> da.Array:
    """Open a set as in tifffile's documentation."""
    with tifffile.TiffFile(path) as file:
        store = file.series[0].aszarr()
    return da.from_zarr(zarr.open(store, mode="r"))


def by_bioio(path: Path) -> da.Array:
    """Open a set with bioio."""
    from bioio import BioImage
    from bioio_ome_tiff import Reader

    return BioImage(path, reader=Reader).dask_data


def readers() -> dict[str, Callable[[Path], da.Array]]:
    """Return the installed readers."""
    found: dict[str, Callable[[Path], da.Array]] = {
        "dask-tiled": dask_tiled.open_dataset,
        "tifffile": by_tifffile,
    }
    try:
        import bioio  # noqa: F401
        import bioio_ome_tiff  # noqa: F401
    except ImportError as error:
        print(f"without bioio: {error}")
    else:
        found["bioio"] = by_bioio
    return found


def seconds(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time functions in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def computed(work: Callable[[da.Array], da.Array], arr: da.Array) -> object:
    """Compute a function of an array."""
    return work(arr).compute()


def add_up(arr: da.Array) -> da.Array:
    """Sum all pixels."""
    return arr.sum(dtype="uint64")


def measure(path: Path, files: int, rounds: int) -> dict[str, dict[str, float]]:
    """Time every reader: opening, the sum, all pixels, and one pixel of every plane."""
    opened = {name: read(path) for name, read in readers().items()}
    bioio = opened.pop("bioio", None)
    expected = None
    for name, arr in opened.items():
        total = int(add_up(arr).compute())
        expected = total if expected is None else expected
        if total != expected:
            print(f"{name} sums to {total}, not {expected}")

    def each(work: Callable[[da.Array], da.Array]) -> dict[str, Callable[[], object]]:
        return {name: partial(computed, work, arr) for name, arr in opened.items()}

    tasks: dict[str, Mapping[str, Callable[[], object]]] = {
        "open": {name: partial(read, path) for name, read in readers().items()},
        "sum": each(add_up),
        "all pixels": each(lambda arr: arr),
        "one pixel of every plane": each(lambda arr: arr[..., 40, 60]),
    }
    results = {task: seconds(functions, rounds) for task, functions in tasks.items()}
    if bioio is not None and files <= BIOIO_FILES:
        results["sum"] |= seconds({"bioio": partial(computed, add_up, bioio)}, 1)
    return results


def show(title: str, results: Mapping[str, Mapping[str, float]]) -> None:
    """Print times and ratios."""
    names = list(results["open"])
    table = Table(title=title)
    table.add_column("")
    for name in names:
        table.add_column(f"{name}, ms", justify="right")
    for name in names[1:]:
        table.add_column(f"{name} / dask-tiled", justify="right")
    for task, times in results.items():
        own = times[names[0]]
        cells = [f"{1000 * times[n]:.1f}" if n in times else "-" for n in names]
        ratios = [f"{times[n] / own:.1f}" if n in times else "-" for n in names[1:]]
        table.add_row(task, *cells, *ratios)
    Console(width=110).print(table)
    pixel, whole = (results[k][names[0]] for k in ("one pixel of every plane", "all pixels"))
    print(f"one pixel of every plane takes {pixel / whole:.1%} of reading all of them\n")


def main() -> None:
    """Run the benchmark and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument(
        "--side", type=int, default=128, help="width and height of the planes of many files"
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for files, planes, side in (4, 128, 512), (args.files, 1, args.side):
        with tempfile.TemporaryDirectory(prefix="ometiff-") as folder:
            path = write_set(Path(folder), files, planes, side)
            mebibytes = files * planes * side * side * np.dtype("u2").itemsize / (1 << 20)
            show(
                f"{files} files of {planes} planes of {side} x {side}: {mebibytes:.0f} MiB",
                measure(path, files, args.rounds),
            )


if __name__ == "__main__":
    main()
