"""What the tests of exports share."""

import pytest

from dask_tiled.export.targets import JournaledFolder


@pytest.fixture
def written(monkeypatch):
    """List the keys of the chunks that are written below a path."""
    keys, put = [], JournaledFolder.put

    def listed(self, key, data):
        if "/c/" in f"/{key}":
            keys.append(key)
        put(self, key, data)

    monkeypatch.setattr(JournaledFolder, "put", listed)
    return keys
