"""Pixels in compressed files: where they begin, and how many bytes may follow."""

import gzip

import numpy as np
import pytest

from dask_tiled.codecs.packed_files import decode
from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.model.blocks import Block

PIXELS = np.arange(6, dtype=">u2").reshape(2, 3)
BYTES = PIXELS.tobytes()


def unpacked(content, offset, *, exact):
    packed = np.frombuffer(gzip.compress(content), "u1")
    file = File("/a.gz", len(packed), 0, 0, 0)
    block = Block((file,), file, 0, len(packed), (0, 0), PIXELS.shape)
    options = {"packed_by": "gzip", "dtype": ">u2", "moved": None}
    return decode(block, lambda *_: packed, offset=offset, exact=exact, **options)


@pytest.mark.parametrize(
    ("content", "offset", "exact"),
    [
        (BYTES, 0, True),
        (b"head" + BYTES, 4, True),
        (BYTES + b"rest", 0, False),
        (b"head of any length" + BYTES, -1, False),
    ],
)
def test_pixels_of_a_compressed_file(content, offset, exact):
    found = unpacked(content, offset, exact=exact)
    assert found.dtype == np.dtype("u2")
    np.testing.assert_array_equal(found, PIXELS)


@pytest.mark.parametrize(
    ("content", "offset", "exact", "error", "match"),
    [
        (BYTES[:-1], 0, False, TruncatedFileError, "expected 12 bytes; found 11"),
        (b"head" + BYTES[:-1], 4, False, TruncatedFileError, "expected 16 bytes; found 15"),
        (BYTES[:-1], -1, False, TruncatedFileError, "ends inside the pixels"),
        (BYTES + b"r", 0, True, CorruptFileError, "too long; expected 12 bytes"),
    ],
)
def test_wrong_lengths_of_compressed_files_raise(content, offset, exact, error, match):
    with pytest.raises(error, match=match):
        unpacked(content, offset, exact=exact)
