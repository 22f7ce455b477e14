"""Image codecs: the names and parameters of imagecodecs, and rows of packed pixels."""

import gzip
import inspect

import imagecodecs.numcodecs
import numpy as np
import pytest

from dask_tiled.codecs.byte_codecs import BYTE_CODECS
from dask_tiled.codecs.hdf5_filters import SZIP_OPTIONS
from dask_tiled.codecs.image_codecs import (
    IMAGE_CODECS,
    JPEG,
    PREDICTORS,
    PREFIX,
    RGB,
    ROWS,
    rows_until,
    unpredicted,
)
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.formats.tiff.storage import BYTE_CODECS as OF_TIFF
from dask_tiled.testing import counting_frames

OTHERS = {
    one.codec_id: {*inspect.signature(one).parameters}
    for one in vars(imagecodecs.numcodecs).values()
    if inspect.isclass(one) and getattr(one, "codec_id", None)
}
OURS = {*IMAGE_CODECS, *PREDICTORS, *(name for name in BYTE_CODECS if name.startswith(PREFIX))}
SAID = {
    "imagecodecs_delta": {"axis", "dist"},
    "imagecodecs_floatpred": {"axis", "dist"},
    "imagecodecs_jpeg": {"tables", "colorspace_jpeg", "colorspace_data"},
    "imagecodecs_webp": {"hasalpha"},
    "imagecodecs_ccittfax3": {"width", "t4options"},
    "imagecodecs_ccittrle": {"width"},
    "imagecodecs_ccittfax4": {"width"},
}


def test_names_and_parameters_are_those_of_imagecodecs():
    assert {*OURS} <= {*OTHERS}
    for name in OURS:
        assert SAID.get(name, set()) <= OTHERS[name], name
    assert {*SZIP_OPTIONS} <= OTHERS["imagecodecs_szip"]


def test_bytes_of_boolean_pixels_are_0_or_1():
    pipeline = Pipeline([{"name": "bytes"}], (3,), np.dtype("?"))
    assert pipeline.decode(np.array([0, 1, 255], "u1")).view("u1").tolist() == [0, 1, 1]


def test_chunks_are_decoded_into_given_memory():
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}]
    pixels = counting_frames((4, 5), "<u2")
    data, out = gzip.compress(pixels.tobytes()), np.empty(pixels.nbytes, "u1")
    found = Pipeline(codecs, (4, 5), pixels.dtype).decode(np.frombuffer(data, "u1"), out=out)
    np.testing.assert_array_equal(found, pixels)
    assert np.shares_memory(found, out)


def test_compressions_of_tiff_have_a_codec():
    assert {*OF_TIFF.values()} - {""} <= {*BYTE_CODECS}


def test_packed_rows():
    """Rows start at a byte; rows beyond `inside` may be missing, others raise."""
    pixels = counting_frames((4, 5), "u2", bits=12)
    places = np.arange(11, -1, -1)
    bits = (pixels[..., None] >> places & 1).reshape(4, 60).astype("u1")
    stored = np.packbits(bits, axis=-1)
    codecs = [{"name": ROWS, "configuration": {"axis": -1, "bits": 12}}]
    pipeline = Pipeline(codecs, (4, 5), np.dtype("u2"))
    np.testing.assert_array_equal(pipeline.decode(stored.ravel()), pixels)
    np.testing.assert_array_equal(pipeline.decode(stored[:3].ravel(), inside=(3, 4)), pixels[:3])
    pipeline = Pipeline(codecs, (2, 2, 5), np.dtype("u2"))
    with pytest.raises(ValueError, match="24 bytes"):
        pipeline.decode(stored[:3].ravel(), inside=(2, 2, 5))
    assert rows_until({"axis": -1}, (4, 6, 8), (2, 3, 8)) == 6 + 3
    assert rows_until({"axis": -2}, (4, 6, 8, 3), (3, 2, 8, 3)) == 2 * 6 + 2


def test_colours_of_jpeg():
    """JFIF means YCbCr, whatever TIFF says; colours without any mark are what TIFF says."""
    colours = np.indices((16, 16, 3), "u1")[1] * 12
    marked = imagecodecs.jpeg8_encode(colours, colorspace="RGB", outcolorspace="RGB")
    letters = {b"R\x11\0G\x11\0B\x11\0": b"\1\x11\0\2\x11\0\3\x11\0", b"R\0G\0B\0": b"\1\0\2\0\3\0"}
    bare = marked[:2] + marked[18:]  # without Adobe's segment
    for found, number in letters.items():
        bare = bare.replace(found, number)
    jfif = imagecodecs.jpeg8_encode(colours)
    config = {"colorspace_jpeg": RGB, "colorspace_data": RGB}
    pipeline = Pipeline([{"name": JPEG, "configuration": config}], colours.shape, np.dtype("u1"))
    for stored, like in ((jfif, jfif), (bare, marked)):
        found = pipeline.decode(np.frombuffer(stored, "u1"))
        np.testing.assert_array_equal(found, imagecodecs.jpeg8_decode(like))


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": ROWS, "configuration": {"axis": 0, "bits": 8}}],
        [{"name": ROWS, "configuration": {"axis": -2, "bits": 0}}],
        [{"name": "imagecodecs_delta", "configuration": {"axis": -3, "dist": 1}}, "bytes"],
        [
            {"name": "imagecodecs_floatpred", "configuration": {"axis": -1, "dist": 1 << 40}},
            "bytes",
        ],
    ],
    ids=repr,
)
def test_invalid_axes_are_refused(codecs):
    with pytest.raises(ValueError, match="axis"):
        Pipeline(codecs, (4, 5), np.dtype("f4"))


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": ROWS, "configuration": {"axis": -1, "bits": 8}}, {"name": f"{PREFIX}packbits"}],
        [{"name": f"{PREFIX}png"}],
    ],
)
def test_impossible_sizes_are_not_allocated(codecs):
    pipeline = Pipeline(codecs, (1 << 20, 1 << 20), np.dtype("u1"))
    with pytest.raises(ValueError, match="at most"):
        pipeline.decode(np.zeros(2, "u1"))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_predictors_of_mapped_pixels(tmp_path, dtype):
    """imagecodecs writes into floats that it decodes; a mapped file is read-only."""
    pixels = np.random.default_rng(0).normal(size=(3, 16)).astype(dtype)
    encoded = imagecodecs.floatpred_encode(pixels, axis=-1, dist=1)
    (tmp_path / "a.bin").write_bytes(encoded.tobytes())
    mapped = np.memmap(tmp_path / "a.bin", dtype, mode="r").reshape(3, 16)
    config = {"axis": -1, "dist": 1}
    np.testing.assert_array_equal(unpredicted("imagecodecs_floatpred", config, mapped), pixels)
