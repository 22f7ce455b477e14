"""Errors about the fields of header tables."""

import pytest

from dask_tiled import CorruptFileError, DatasetError
from dask_tiled.formats.tools.header import POSITIVE, check_fields, wrong_field

FIELDS = {"depth": (4, "u2"), "width": (6, "u4"), "size": (10, "u4")}
ALLOWED = {"depth": (8, 16), "width": POSITIVE, "size": range(2, 9, 2)}
VALID = {"depth": 8, "width": 1, "size": 8}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("depth", 12, "8 or 16"),
        ("width", 0, "1 or more"),
        ("width", -(2**40), "1 or more"),
        ("size", 3, "2 to 8, in steps of 2"),
        ("size", 10, "2 to 8, in steps of 2"),
    ],
)
def test_error_names_the_field_its_place_and_allowed_values(field, value, expected):
    values = VALID | {field: value}
    assert wrong_field(values, ALLOWED) == field
    with pytest.raises(CorruptFileError) as caught:
        check_fields("a.bin", values, FIELDS, ALLOWED, "no header", at=100, hint="Look.")
    error = caught.value
    assert (error.problem, error.path, error.hint) == ("no header", "a.bin", "Look.")
    assert error.where == f"byte {100 + FIELDS[field][0]} ({field})"
    assert (error.expected, error.found) == (expected, value)


def test_valid_fields_pass_and_the_type_of_the_error_is_an_option():
    check_fields("a.bin", VALID, FIELDS, ALLOWED, "no header")
    with pytest.raises(DatasetError) as caught:
        check_fields("a.bin", VALID | {"depth": 1}, FIELDS, ALLOWED, "no", kind=DatasetError)
    assert type(caught.value) is DatasetError
