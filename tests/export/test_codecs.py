"""The codec of packed pixels checks documents before it calls kernels."""

import inspect
import json

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

from dask_tiled import CorruptFileError
from dask_tiled.export.codecs import ReadingCodec
from dask_tiled.export.decoders import RATES, UNITS, decoder_of
from dask_tiled.kernels import decoding
from dask_tiled.kernels.decoding import compiled
from dask_tiled.testing import counting_frames

WELL = {
    "decoder": "swap8", "nbytes": 8, "lag": 0, "length": 4, "step": 8, "out_step": 8,
    "starts": [0], "dests": [0],
}  # fmt: skip


def document(*units):
    return {"name": UNITS, "configuration": {"units": [dict(one) for one in units]}}


def stored(chunk, codec):
    """Return a zarr array with one chunk of the given bytes."""
    made = {}
    array = zarr.create_array(
        made, shape=(16,), chunks=(16,), dtype="u2", compressors=codec, filters=None,
    )  # fmt: skip
    made["c/0"] = default_buffer_prototype().buffer.from_bytes(chunk)
    return array


def test_zarr_decodes_with_the_codec():
    """Pixels of a Merlin counter are big-endian words of eight bytes."""
    pixels = counting_frames((16,), "uint16")
    words = pixels.view("u8").astype(">u8").tobytes()
    np.testing.assert_array_equal(stored(words, ReadingCodec.from_dict(document(WELL)))[:], pixels)


def test_documents_round_trip():
    codec = ReadingCodec.from_dict(document(WELL, WELL | {"lag": 4}))
    assert ReadingCodec.from_dict(codec.to_dict()) == codec
    array = stored(b"", codec)
    assert zarr.open_array(array.store, mode="r").metadata.codecs[1:] == (codec,)


def test_encoding_raises():
    with pytest.raises(NotImplementedError):
        stored(b"", ReadingCodec.from_dict(document(WELL)))[:] = 1


@pytest.mark.parametrize(
    "changed",
    [
        {"decoder": "os:system"}, {"decoder": "nothing"}, {"decoder": 3}, {"decoder": ["copy"]},
        {"nbytes": 7}, {"nbytes": 0}, {"nbytes": 8.0}, {"nbytes": True}, {"length": 0}, {"lag": -8},
        {"starts": []}, {"starts": [0, 1]}, {"starts": "0"}, {"starts": [1 << 70]},
        {"dests": [None]}, {"more": 1}, {"decoder": "bits", "nbytes": 16},
    ],
)  # fmt: skip
def test_invalid_units_raise(changed):
    with pytest.raises(CorruptFileError, match=r"dask_tiled.units cannot decode"):
        ReadingCodec.from_dict(document(WELL | changed))


@pytest.mark.parametrize(
    "wrong", [{}, {"name": UNITS}, {"name": UNITS, "configuration": {"units": []}}, document(()),
              {"name": "other", "configuration": {"units": [WELL]}}],
)  # fmt: skip
def test_invalid_documents_raise(wrong):
    with pytest.raises(CorruptFileError):
        ReadingCodec.from_dict(wrong)


@pytest.mark.parametrize("chunk", [b"", bytes(31)])
def test_short_chunks_raise(chunk):
    """The file may have been truncated since."""
    with pytest.raises(CorruptFileError, match=f"{len(chunk)} bytes"):
        stored(chunk, ReadingCodec.from_dict(document(WELL)))[:]


def test_chunks_of_too_few_pixels_raise():
    """Uninitialised memory is never returned."""
    with pytest.raises(CorruptFileError, match="at units; expected units of 32 bytes of pixels"):
        stored(bytes(64), ReadingCodec.from_dict(document(WELL | {"length": 2})))[:]


TURNED = {"step": -8, "out_step": -8, "starts": [24], "dests": [24]}


@pytest.mark.parametrize(
    ("units", "size"), [(WELL, 32), (WELL | {"lag": 4}, 36), (WELL | TURNED | {"lag": 4}, 36)]
)
def test_units_may_fill_a_chunk(units, size):
    """Those that need, or write, a byte more are refused."""

    def decode(moved, size):
        config = json.dumps({"units": [units | moved]})
        return decoder_of(UNITS, config).decode(np.zeros(size, "u1"), 32)

    assert len(decode({}, size)) == 32
    (start,), (dest,) = units["starts"], units["dests"]
    for moved, held in (
        *(({}, size - 1), ({"starts": [start - 1]}, size), ({"starts": [start + 1]}, size)),
        *(({"dests": [dest - 1]}, size), ({"dests": [dest + 1]}, size)),
    ):
        with pytest.raises(CorruptFileError, match="decoded to"):
            decode(moved, held)


small = st.integers(-40, 80)


@given(
    st.sampled_from(sorted(RATES)),
    st.sampled_from([1, 2, 8, 24, 48]),
    st.integers(0, 16),
    st.integers(1, 9),
    small,
    small,
    st.lists(st.tuples(small, small), min_size=1, max_size=3),
    st.integers(0, 200),
)
@example("biased", 1, 0, 1, 0, 0, [(0, 0)], 1)
@example("copy", 8, 0, 2, 8, 8, [(0, 0), (16, 16)], 32)
def test_decoding_stays_inside_the_chunk(
    decoder, nbytes, lag, length, step, out_step, places, size
):
    """A document is invalid, or reads bytes of the chunk only."""
    starts, dests = zip(*places, strict=True)
    units = {
        "decoder": decoder, "nbytes": nbytes, "lag": lag, "length": length, "step": step,
        "out_step": out_step, "starts": starts, "dests": dests,
    }  # fmt: skip
    data = counting_frames((size,), "uint8") if size else np.zeros(0, "u1")
    try:
        codec = decoder_of(UNITS, json.dumps(document(units)["configuration"]))
        out = codec.decode(data, codec.size(data))
    except CorruptFileError:
        return
    read = {s + k * step + i for s in starts for k in range(length) for i in range(nbytes)}
    read |= {at + lag for at in read}
    assert 0 <= min(read) <= max(read) < size
    assert len(out) == len(starts) * length * nbytes // RATES[decoder][0] * RATES[decoder][1]


def test_every_kernel_has_a_rate():
    kernels = inspect.getmembers(decoding, inspect.isfunction)
    assert {name for name, kernel in kernels if "lag" in inspect.signature(kernel).parameters} == {
        *RATES
    }


@pytest.mark.parametrize("decoder", RATES)
def test_kernels_write_as_much_as_their_rate(decoder):
    """All bytes of the output are written, and no others."""
    read, written, alone = RATES[decoder]
    nbytes = read if alone else 4 * read
    width = nbytes // read * written
    out = np.zeros(width + 128, "u1")
    seen = np.zeros(len(out), bool)
    for filler in (0, 1, 255):
        out[:] = filler
        data = np.random.default_rng(filler).integers(1, 255, 4096).astype("u1")
        start = np.array([64], np.int64)
        compiled(decoder)(data, start, nbytes, out, start, width, 1, nbytes, 0)
        seen |= out != filler
    assert np.flatnonzero(seen).tolist() == [*range(64, 64 + width)]
