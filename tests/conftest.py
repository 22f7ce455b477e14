"""What the tests share: the real files, and how hypothesis and dask run."""

import os
from pathlib import Path

import dask
import pytest
from hypothesis import HealthCheck, settings

DATA = Path(os.environ.get("DASK_TILED_TESTDATA", Path(__file__).parents[2] / "shared" / "data"))

# Writing files takes long at times: neither the duration of an example nor that of making one says
# anything about the package.
settings.register_profile(
    "local", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def data() -> Path:
    """Give the folder of real files, and skip where it is absent, or fail if it must not be."""
    if not (DATA / "MANIFEST.tsv").is_file():
        reason = f"the real files are absent: no MANIFEST.tsv in {DATA.resolve()}"
        if os.environ.get("DASK_TILED_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return DATA


@pytest.fixture(scope="module")
def synchronous():
    """Compute in the thread of the test: small arrays are quicker, and failures easier to read."""
    with dask.config.set(scheduler="synchronous"):
        yield
