"""Every format is read from a server as it is from this machine."""

import numpy as np
import pytest
from formats_table import TABLE
from range_server import serving

from dask_tiled import open_dataset


def remote(server, sample):
    """Give what opens a sample over HTTP."""
    path = sample.options["path"]
    urls = [server.url(p) for p in path] if isinstance(path, list) else server.url(path)
    return {**sample.options, "path": urls}


@pytest.mark.parametrize("name", TABLE)
def test_pixels(sample_of, name):
    """Whether the server lists the folder or not."""
    sample = sample_of(name)
    with serving(sample.members[0].parent) as server:
        there = open_dataset(**remote(server, sample))
        np.testing.assert_array_equal(there.compute(), sample.expected)
        index = tuple(slice(n // 3, None, 2) for n in there.shape)
        np.testing.assert_array_equal(there[index].compute(), sample.expected[index])
        server.lists = False
        again = open_dataset(**remote(server, sample))
        assert again.description == there.description
