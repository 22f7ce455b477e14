"""Other software reads references bit for bit, as the documented table says.

Run this module to rewrite the table.
"""

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
import pytest
import tifffile
import zarr
from h5py import h5d, h5p, h5s, h5t, h5z
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr_readers import IMAGECODECS, NAMES, digest, found_by, is_there, lay_out

from dask_tiled import DatasetError, as_zarr, open_dataset, to_references
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_raw

PAGE = Path(__file__).parents[2] / "docs" / "readers_table.rst.inc"
FRAMES = counting_frames((3, 5, 16, 32), "uint16") % 300


class Row(NamedTuple):
    """A way to store pixels: its name, its writer, options to open it, and the zarr format."""

    name: str
    write: Any
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    zarr_format: int | None = None


def hdf5(**options):
    """Write a dataset of HDF5."""

    def write(path):
        with h5py.File(path, "w") as file:
            file.create_dataset("d", data=FRAMES, chunks=(1, 5, 16, 32), **options)
        return path

    return write


def plugin(name, *, shuffled=False, **options):
    """Write a dataset with a filter of hdf5plugin."""
    return hdf5(**getattr(hdf5plugin, name)(**options), **({"shuffle": True} if shuffled else {}))


def nbit(path):
    """Write numbers of 12 bits."""
    kind = h5t.STD_U16LE.copy()
    kind.set_precision(12)
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((1, 5, 16, 32))
    properties.set_filter(h5z.FILTER_NBIT, 0, ())
    with h5py.File(path, "w") as file:
        space = h5s.create_simple(FRAMES.shape)
        h5d.create(file.id, b"d", kind, space, properties).write(h5s.ALL, h5s.ALL, FRAMES)
    return path


def velox(**options):
    """Write a stack of images as Velox does: frames are the last axis."""

    def write(path):
        with h5py.File(path, "w") as file:
            images = np.moveaxis(FRAMES[0], 0, -1)
            file.create_dataset("Data/Image/ab/Data", data=images, **options)
            metadata = np.zeros((60000, 5), "u1")
            metadata[:2] = np.frombuffer(b"{}", "u1")[:, None]
            file["Data/Image/ab/Metadata"] = metadata
        return path

    return write


def mib(**options):
    """Write counts of a Merlin detector."""
    return lambda path: write_mib(path.with_suffix(".mib"), FRAMES % 64, **options)


def of_zarr(zarr_format, **options):
    """Write an array of zarr."""

    def write(path):
        kinds = {"chunks": (1, 5, 16, 32), "zarr_format": zarr_format, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.create_array(path, shape=FRAMES.shape, dtype="u2", **kinds)
            array[:] = FRAMES
        return path

    return write


def of_numcodecs(**config):
    from numcodecs import get_codec

    return get_codec(config)


def tiff(dtype="uint16", **options):
    """Write pages of a TIFF file."""

    def write(path):
        path = path.with_suffix(".tif")
        pages = FRAMES.reshape(-1, 16, 32).astype(dtype)
        tifffile.imwrite(path, pages, photometric="minisblack", **options)
        return path

    return write


TILES, CUT = {"tile": (16, 16)}, {"rowsperstrip": 5}
SHARDS = {"chunks": (1, 1, 16, 32), "shards": (1, 5, 16, 32)}
BLOSC = {"cname": "zstd", "shuffle": 2}
ROWS = {
    "HDF5": [
        Row("not compressed", hdf5()),
        Row("gzip", hdf5(compression=4)),
        Row("gzip, shuffle", hdf5(compression=4, shuffle=True)),
        Row("gzip, Fletcher's checksum", hdf5(compression=4, fletcher32=True)),
        Row("Zstandard", plugin("Zstd")),
        Row("Zstandard, shuffle", plugin("Zstd", shuffled=True)),
        Row("Blosc with LZ4, shuffle", plugin("Blosc", cname="lz4", shuffle=1)),
        Row("Blosc with Zstandard, bitshuffle", plugin("Blosc", **BLOSC)),
        Row("Blosc with BloscLZ", plugin("Blosc", cname="blosclz", shuffle=0)),
        Row("Blosc with zlib", plugin("Blosc", cname="zlib")),
        Row("bzip2", plugin("BZip2")),
        Row("LZF", hdf5(compression="lzf", shuffle=True)),
        Row("SZIP", hdf5(compression="szip", compression_opts=("nn", 16))),
        Row("LZ4", plugin("LZ4")),
        Row("bitshuffle", plugin("Bitshuffle", cname="none")),
        Row("bitshuffle, LZ4 (Eiger, Arina)", plugin("Bitshuffle")),
        Row("bitshuffle, Zstandard", plugin("Bitshuffle", cname="zstd")),
        Row("scale-offset", hdf5(scaleoffset=0)),
        Row("N-bit", nbit),
    ],
    "Velox (.emd)": [
        Row("images, not compressed", velox(chunks=(16, 32, 1))),
        Row("images, gzip, one in a chunk", velox(chunks=(16, 32, 1), compression=1)),
        Row("images, gzip, several in a chunk", velox(chunks=(8, 8, 5), compression=1)),
        Row("images, contiguous", velox()),
    ],
    "zarr 3": [
        Row("not compressed", of_zarr(3, compressors=None)),
        Row("gzip", of_zarr(3, compressors=GzipCodec())),
        Row("Zstandard", of_zarr(3, compressors=ZstdCodec())),
        Row("Zstandard, CRC-32C", of_zarr(3, compressors=[ZstdCodec(), Crc32cCodec()])),
        Row("Blosc", of_zarr(3, compressors=BloscCodec(cname="lz4"))),
        Row("shards", of_zarr(3, **SHARDS)),
        Row("transposed", of_zarr(3, filters=TransposeCodec(order=(0, 1, 3, 2)))),
    ],
    "zarr 2": [
        Row("zlib", of_zarr(2, compressors=of_numcodecs(id="zlib"))),
        Row("Zstandard", of_zarr(2, compressors=of_numcodecs(id="zstd"))),
        Row("Blosc", of_zarr(2, compressors=of_numcodecs(id="blosc"))),
        Row("LZ4", of_zarr(2, compressors=of_numcodecs(id="lz4"))),
        Row("LZMA", of_zarr(2, compressors=of_numcodecs(id="lzma"))),
        Row("zlib, shuffle", of_zarr(2, filters=of_numcodecs(id="shuffle", elementsize=2))),
    ],
    "TIFF": [
        Row("not compressed", tiff()),
        Row("deflate, tiles", tiff(compression="zlib", **TILES)),
        Row("deflate, strips of which the last is shorter", tiff(compression="zlib", **CUT)),
        Row("deflate, differences", tiff(compression="zlib", predictor=2, **TILES)),
        Row("Zstandard", tiff(compression="zstd", **TILES)),
        Row("LZW", tiff(compression="lzw", **TILES)),
        Row("PackBits", tiff(compression="packbits", **TILES)),
        Row("JPEG", tiff("uint8", compression="jpeg", **TILES)),
        Row("JPEG 2000", tiff(compression="jpeg2000", **TILES)),
    ],
    "Other formats": [
        Row("MIB, counts, which are big-endian", mib()),
        Row("the same with ``zarr_format=3``", mib(), {}, 3),
        Row("MIB, raw (R64)", mib(kind="R64", depth=6)),
        Row("DM4", lambda path: write_dm(path.with_suffix(".dm4"), FRAMES)),
        Row(
            "raw, with headers between frames",
            lambda path: write_raw(path, FRAMES, frame_header=16),
            {"format": "raw", "dtype": "u2", "sig_shape": (16, 32), "frame_header": 16},
        ),
    ],
}
CASES = {f"{kind}: {row.name}": row for kind, rows in ROWS.items() for row in rows}
CELLS = {True: "yes", False: "no"}


def write_all(folder):
    """Write a file of each kind, and its references.

    Returns
    -------
    dict of str to str
        Digests of pixels by name, without the kinds that are refused.
    """
    digests = {}
    for number, (name, row) in enumerate(CASES.items()):
        path = row.write(folder / f"{number}.dat")
        arr = open_dataset(path, **row.options)
        try:
            references = to_references(arr, folder / f"{number}.json", zarr_format=row.zarr_format)
        except DatasetError:
            continue
        lay_out(references, folder / str(number))
        digests[name] = digest(arr.compute())
    return digests


def table(digests, found):
    """Return the table of readers."""
    lines = [".. Written by tests/export/test_readers.py; do not edit.", ""]
    lines += [".. list-table::", "   :header-rows: 1", "   :widths: 40 12 12 12 12 24", ""]
    lines += ["   * - pixels are stored", *(f"     - {name}" for name in NAMES)]
    lines += ["     - who needs dask-tiled"]
    for number, name in enumerate(CASES):
        lines.append(f"   * - {name}")
        if name not in digests:
            lines += [*["     - "] * len(NAMES), "     - all: there is :func:`as_zarr`"]
            continue
        reads = [found[reader][str(number)] == digests[name] for reader in NAMES]
        lines += [f"     - {CELLS[one]}" for one in reads]
        with_images = found[IMAGECODECS][str(number)] == digests[name]
        others = "nobody: zarr-python needs imagecodecs" if with_images else "zarr-python"
        lines.append(f"     - {'nobody' if reads[0] else others}")
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def readings(tmp_path_factory):
    """Return the digests of all pixels, and those that all readers find."""
    lacking = [name for name in NAMES if not is_there(name)]
    if lacking:
        reason = f"not installed: {', '.join(lacking)}; `make test` installs zarrita.js by npm"
        if os.environ.get("DASK_TILED_REQUIRE_READERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("files")
    return write_all(folder), {name: found_by(name, folder) for name in (*NAMES, IMAGECODECS)}


@pytest.mark.slow
def test_the_table_is_up_to_date(readings):
    assert PAGE.read_text("utf8") == table(*readings), "run python tests/export/test_readers.py"


# Codecs of the core of zarr 3, and those of numcodecs in format 2 that are as common.
COMMON = [
    "HDF5: not compressed", "HDF5: gzip", "HDF5: Zstandard", "HDF5: Blosc with LZ4, shuffle",
    "HDF5: Blosc with Zstandard, bitshuffle", "HDF5: Blosc with BloscLZ", "HDF5: Blosc with zlib",
    "Velox (.emd): images, not compressed", "Velox (.emd): images, gzip, one in a chunk",
    "zarr 3: not compressed", "zarr 3: gzip", "zarr 3: Zstandard", "zarr 3: Zstandard, CRC-32C",
    "zarr 3: Blosc", "zarr 3: shards", "zarr 3: transposed", "zarr 2: zlib", "zarr 2: Zstandard",
    "zarr 2: Blosc", "TIFF: not compressed", "TIFF: deflate, tiles", "TIFF: Zstandard",
    "Other formats: the same with ``zarr_format=3``", "Other formats: DM4",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("reader", NAMES)
def test_all_readers_know_common_codecs(readings, reader):
    digests, found = readings
    number = {name: str(k) for k, name in enumerate(CASES)}
    assert {name: found[reader][number[name]] for name in COMMON} == {
        name: digests[name] for name in COMMON
    }


@pytest.mark.slow
def test_no_reader_returns_other_pixels(readings):
    """Readers that do not know a codec raise."""
    digests, found = readings
    for reader in NAMES:
        for number, name in enumerate(CASES):
            if name in digests:
                read = found[reader][str(number)]
                assert read == digests[name] or read.startswith("!"), (reader, name)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("name", CASES)
def test_zarr_reads_all_with_this_package(tmp_path, name):
    row = CASES[name]
    path = row.write(tmp_path / "a.dat")
    arr = open_dataset(path, **row.options)
    np.testing.assert_array_equal(as_zarr(arr)[...], arr.compute())
    if name in {"HDF5: scale-offset", "HDF5: N-bit"}:
        with pytest.raises(DatasetError, match="need filters of the HDF5 library"):
            to_references(arr)
        return
    target = tmp_path / "a.json"
    to_references(arr, target, zarr_format=row.zarr_format)
    options = {"fo": str(target)}
    array = zarr.open_array("reference://", path="data", storage_options=options, mode="r")
    np.testing.assert_array_equal(array[...], arr.compute())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        digests = write_all(Path(folder))
        found = {name: found_by(name, folder) for name in (*NAMES, IMAGECODECS)}
    PAGE.write_text(table(digests, found), "utf8")
