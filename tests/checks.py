"""What tests of errors ask of every error, and of every damaged file."""

from dask_tiled import DatasetError, open_dataset


def assert_names(error, path):
    """Check that an error names the file, what was expected and what was found."""
    assert error.path == str(path)
    assert str(path) in str(error)
    assert error.expected is not None
    assert error.found is not None
    assert f"expected {error.expected}" in str(error)
    assert f"found {error.found}" in str(error)


def opens_or_says_why(path, **options):
    """Open and compute: the only error allowed is a DatasetError that names a file."""
    try:
        arr = open_dataset(path, **options)
        assert arr.nbytes < 1 << 24
        arr.compute()
    except DatasetError as error:
        says = error
    else:
        return
    assert says.path is not None
    assert len(str(says)) < 5000
