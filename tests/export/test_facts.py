"""What is said of an array in terms of JSON."""

import json
from datetime import datetime

import numpy as np
import pytest

from dask_tiled.export.facts import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: (np.uint16(3), None)}, {"1": [3, None]}),
        (np.array([[1.5, np.nan]]), [[1.5, "nan"]]),
        (np.float64(-np.inf), "-inf"),
        (np.complex64(1j), "1j"),
        (np.longdouble(2), "2.0"),
        (b"raw", "b'raw'"),
        (datetime(2020, 1, 2), "2020-01-02 00:00:00"),  # noqa: DTZ001 - as files have them
        (True, True),
    ],
)
def test_everything_has_a_form(value, expected):
    found = plain(value)
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected
