"""Skip what cannot run on Windows, or not under Wine, with the reason; a pytest plugin."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FORKS = "Windows has no forks"
DEV = "Windows has no /dev"
LINUX = "expects the text of Linux for an error of the system"
OPEN = "on Windows, open files cannot be replaced, and mapped ones not be removed"
CLOSED = "on Windows, files are closed after each chunk, and none stays mapped"
CASTS = "NumPy for Windows casts floats beyond u8 unlike compiled code, so that dask casts them"
PROC = "reads /proc of Linux, which Wine shows"
UNSUPPORTED = {
    "tests/graphs/test_graph.py::test_descriptors": "counts files in /proc",
    "tests/graphs/test_lending.py::test_functions_get_private_pages": "Windows cannot make mapped "
    "pages independent of their file",
    "tests/graphs/test_rewriting.py::test_cast_pixels_are_not_stored": CASTS,
    "tests/command_line/test_failures.py::test_bad_input_gives_one_line[convert scan.mib /d": DEV,
    "tests/command_line/test_failures.py::test_bad_input_gives_one_line[info nothing.mib": LINUX,
    "tests/command_line/test_failures.py::test_missing_extra_names_the_package": "Python of this "
    "environment ignores PYTHONPATH",
    "tests/command_line/test_page.py::test_page_shows_real_output": LINUX,
    "tests/command_line/test_failures.py::test_interrupted": "sends SIGINT, which Windows lacks",
    "tests/engine/test_complex_pixels.py::test_rounding_of_integers[u8]": CASTS,
    "tests/export/test_zarr_export.py::test_memory_of_exports": PROC,
    "tests/export/test_zarr_export.py::test_paths_of_all_kinds[a::b]": "no names with colons",
    "tests/reading/test_backends.py::test_direct_descriptors_are_separate": CLOSED,
    "tests/reading/test_backends.py::test_files_removed_or_replaced_during_compute": OPEN,
    "tests/reading/test_backends.py::test_forks_have_their_own_descriptors": FORKS,
    "tests/reading/test_backends.py::test_idle_descriptors_are_used_again": CLOSED,
    "tests/reading/test_changing_files.py": OPEN,
    "tests/reading/test_rest.py::test_mounts_of_this_machine": "Windows has no table of mounts",
    "tests/reading/test_rest.py::test_network_files_are_mapped_only_on_request[None": CLOSED,
    "tests/reading/test_rest.py::test_recent_files_are_not_mapped": CLOSED,
    "tests/reading/test_rest.py::test_rest_seconds": CLOSED,
    "tests/reading/test_rest.py::test_set_times_of_modification_do_not_count[old]": CLOSED,
    "tests/reading/test_rest.py::test_windows_without_a_lease": "Windows has no leases, "
    "by which few bytes are mapped",
    "tests/reading/test_zero_copy.py::test_kept_maps_are_limited": CLOSED,
    "tests/reading/test_zero_copy.py::test_native_types_are_views": CLOSED,
    "tests/reading/test_zero_copy.py::test_slices_of_whole_runs_are_views": CLOSED,
    "tests/reading/test_zero_copy.py::test_small_file_stays_mapped": CLOSED,
    "tests/reading/test_zero_copy.py::test_sparse_pixels": CLOSED,
    "tests/reading/test_zero_copy.py::test_windows_of_kept_maps": CLOSED,
    "tests/reading/test_zero_copy.py::test_workers_own_their_chunks": CLOSED,
    "tests/storing/test_claims.py::test_late_tasks_do_not_recreate": "on Windows, a folder with an "
    "open file stays; the next export removes it",
    "tests/system/test_names.py::test_core": "runs the suite without names of POSIX",
    "tests/system/test_names.py::test_results": FORKS,
}
"""Reasons by the beginning of the identifier of a test; the first that fits counts."""
NOT_INSTALLED = {"hyperspy", "sparse"}
"""Libraries that single tests need."""
MISSING = re.compile(r"module '(os|signal|socket|select|time)' has no attribute '(\w+)'")


def pytest_collection_modifyitems(items):
    """Mark the tests of the table."""
    for item in items:
        name = item.nodeid.replace("\\", "/")
        why = next((why for start, why in UNSUPPORTED.items() if name.startswith(start)), None)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_configure():
    """Make tests skip that link a file, where that needs a right or does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "link")
        with contextlib.suppress(OSError, NotImplementedError):
            os.symlink(folder, link)
        if not os.path.islink(link):
            os.symlink = _no_link


class NoLinksError(OSError):
    """Raised by what replaces ``os.symlink``."""


def _no_link(*_, **__):
    raise NoLinksError("no symbolic links")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """Skip a test if a fixture of the tests uses a name or a file that Windows lacks."""
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Skip a test that itself uses a name or a file that Windows lacks."""
    return (yield from _skipping())


def _skipping():
    try:
        return (yield)
    except NoLinksError:
        pytest.skip("symbolic links need a right on Windows, and do not exist under Wine")
    except ImportError as error:
        if error.name in NOT_INSTALLED:
            pytest.skip(f"{error.name} is not installed")
        raise
    except (AttributeError, OSError) as error:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        in_test = TESTS in Path(last.tb_frame.f_code.co_filename).parents
        missing = MISSING.match(str(error))
        if in_test and missing:
            pytest.skip(f"the test uses {missing[1]}.{missing[2]}, which Windows lacks")
        if in_test and str(getattr(error, "filename", "")).startswith("/proc/"):
            pytest.skip(f"the test reads {error.filename}, which Windows lacks")
        raise
