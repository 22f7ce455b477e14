"""Places of frames in the output of events: frames 2, 3, 5 and 9 are wanted."""

import numpy as np
import pytest

from dask_tiled.model.events import EventTarget

TARGET = EventTarget(*map(np.array, ([2, 3, 5, 9], [10, 20, 30, 40], [0], [0])))


@pytest.mark.parametrize(
    ("first", "stop", "wanted", "rows"),
    [
        (2, 4, (2, 4), [10, 20]),
        (1, 5, (2, 4), [-1, 10, 20, -1]),
        (2, 6, (2, 6), [10, 20, -1, 30]),
        (3, 11, (3, 10), [20, -1, 30, -1, -1, -1, 40, -1]),
        (9, 10, (9, 10), [40]),
        (8, 11, (9, 10), [-1, 40, -1]),
        (6, 9, (6, 6), [-1, -1, -1]),
    ],
)
def test_wanted_frames_of_events(first, stop, wanted, rows):
    assert TARGET.wanted(first, stop) == wanted
    assert TARGET.rows(first, stop).tolist() == rows
