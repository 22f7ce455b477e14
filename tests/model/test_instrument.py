"""Instrument facts: names, units, and which values of a header count."""

import functools
import math
import pickle
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import DatasetError, Fact, Format, Instrument
from dask_tiled.formats import tools
from dask_tiled.model.instrument import VOCABULARY, Entry, converted, entries

SAID = {"a": {"b c": {"energy": 200.0, "energy@units": "kV"}, "d/e": {"name": " Titan "}}}


def value_of(value, name="beam_energy", unit="", read=None):
    """Return the value of a fact read from metadata with one value."""
    entries = {name: [Entry("there/it", unit, read)]}
    fact = Instrument({}, {"there": {"it": value}}, entries).get(name)
    return fact and fact.value


def test_paths_lead_to_values_with_units_and_places():
    found = Instrument(
        {},
        SAID,
        {
            "beam_energy": [Entry("a/nowhere", "V"), Entry("a/b*/energy", "kV"), Entry("a", "V")],
            "microscope": [Entry("a/*/name")],
        },
    )
    assert dict(found) == {
        "microscope": Fact("Titan", "", ("a", "d/e", "name")),
        "beam_energy": Fact(200e3, "V", ("a", "b c", "energy")),
    }
    assert list(found) == ["microscope", "beam_energy"]  # the vocabulary's order


def test_units_from_attributes():
    found = Instrument({}, SAID, {"beam_energy": [Entry("a/*/energy", "@")]})
    assert found["beam_energy"].value == 200e3
    other = {"a": 200.0, "a_units": "kV", "b": 200.0}
    assert Instrument({}, other, {"beam_energy": [Entry("a", "@V")]})["beam_energy"].value == 2e5
    assert Instrument({}, other, {"beam_energy": [Entry("b", "@V")]})["beam_energy"].value == 200
    assert not Instrument({}, other, {"beam_energy": [Entry("b", "@")]})


def test_paths_with_wildcards():
    tree = {"top": {"x": {"y": {"energy": 3.0}}, "energy": 2.0}, "energy": 1.0}
    for path, where in {"top/**/energy": ("top",), "**/y/energy": ("top", "x", "y")}.items():
        found = Instrument({}, tree, {"beam_energy": [Entry(path, "V")]})
        assert found["beam_energy"].where == (*where, "energy")


def test_entries_of_tables():
    """Entries join a table's path and a row's; an empty path means the table's path itself."""
    first = ("beam_energy", "energy", "kV"), ("date", "", "", len)
    made = entries({"a": first, "b/*": [("beam_energy", "HT", "V", None, bool)]})
    assert made == {
        "beam_energy": [Entry("a/energy", "kV"), Entry("b/*/HT", "V", None, bool)],
        "date": [Entry("a", "", len)],
    }


@pytest.mark.parametrize(
    "tree",
    [
        {str(k): {str(m): {} for m in range(100)} for k in range(1000)},
        functools.reduce(lambda inner, _: {"deeper": inner}, range(100_000), {}),
    ],
    ids=["wide", "deep"],
)
def test_wildcard_search_is_bounded(tree):
    assert not Instrument({}, {"top": tree}, {"beam_energy": [Entry("top/**/energy", "V")]})
    while tree:  # freeing nested dicts at once would overflow the stack
        _, tree = tree.popitem()


@pytest.mark.parametrize(
    ("number", "unit", "to", "expected"),
    [
        (0.07, "ms", "s", 7e-5), (135.0, "mm", "m", 0.135), (25.0, "cm", "m", 0.25),
        (5.0, "keV", "eV", 5000.0), (300.0, "keV", "V", 300e3), (21.0, "mrad", "rad", 0.021),
        (90.0, "deg", "rad", math.pi / 2), (15.0, "Å", "m", 15e-10),
        (15.0, "angstrom", "m", 15e-10), (1.5, "mR", "rad", 1.5e-3), (3.0, "µm", "m", 3e-6),
        (1e5, "", "", 1e5), (1.0, "V", "eV", None), (1.0, "", "V", None), (1.0, "V", "", None),
        (1.0, "min", "s", None), (1.0, "furlong", "m", None),
    ],
)  # fmt: skip
def test_units_are_converted_exactly_or_not_at_all(number, unit, to, expected):
    assert converted(number, unit, to) == expected


@pytest.mark.parametrize(
    "value",
    [
        None, 0, -1.0, math.nan, math.inf, True, "", "unknown", "200 apples", (), [200], {"a": 1},
        b"1",
    ],
)  # fmt: skip
def test_invalid_voltages_are_ignored(value):
    assert value_of(value, unit="V") is None


@pytest.mark.parametrize("value", [200_000, 2e5, "2e5", "200 kV", "+2E5", " 200kV ", "2.e5 V"])
def test_numbers_as_text_with_units(value):
    assert value_of(value, unit="V") == 200e3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2019-06-06T13:30:00.164675", "2019-06-06T13:30:00.164675"),
        ("2021-04-15T13:44:54.778214701Z", "2021-04-15T13:44:54.778214+00:00"),
        ("2014-07-09", "2014-07-09"),
        ("2021-04-15 14:44:54", "2021-04-15T14:44:54"),
        (date(2014, 7, 9), "2014-07-09"),
        (datetime(2014, 7, 9, 1, tzinfo=UTC), "2014-07-09T01:00:00+00:00"),
        ("09/07/2014", None),
        ("0001-01-01T00:00:00", None),
        (20140709, None),
        ("", None),
    ],
)
def test_dates_follow_iso_8601(value, expected):
    assert value_of(value, "date") == expected


def test_zero_is_a_valid_position_but_no_magnification():
    assert value_of(0, "stage_x", "m") == 0
    assert value_of(0, "magnification") is None


def test_unreadable_values_are_ignored():
    assert value_of("x", read=int) is None
    assert value_of({}, read=lambda tags: tags["missing"]) is None
    assert value_of(3, "microscope") is None
    assert value_of("\x00\x01", "microscope") is None


UNITS = {
    "V": "beam_energy", "A": "beam_current", "eV": "photon_energy threshold",
    "m": "wavelength camera_length defocus working_distance stage_x stage_y stage_z y_pixel_size "
    "x_pixel_size",
    "rad": "convergence_angle collection_angle inner_collection_angle tilt_alpha tilt_beta "
    "rotation",
    "s": "exposure_time live_time real_time dwell_time",
    "": "microscope acquisition_mode magnification detector gain gain_setting date",
}  # fmt: skip
SIGNED = "defocus working_distance stage_x stage_y stage_z tilt_alpha tilt_beta rotation"


def test_vocabulary():
    """Lengths, angles, times and energies are in SI units and eV; positions may be negative."""
    units = {name: unit for unit, names in UNITS.items() for name in names.split()}
    assert {name: term.unit for name, term in VOCABULARY.items()} == units
    texts = {"microscope", "acquisition_mode", "detector", "gain_setting"}
    for name, term in VOCABULARY.items():
        value = {"microscope": "x", "date": "2020-01-01"}.get(name, "x" if name in texts else -1.0)
        shown = value_of(value, name, term.unit)
        assert shown == (value if name in {*SIGNED.split(), *texts, "date"} else None), name
    facts = {"microscope": Fact("Titan", "", ()), "stage_x": Fact(2e-6, "m", ())}
    assert Instrument(facts).line() == "Titan, stage x 2 µm"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


@pytest.mark.thorough
@given(JSON, st.sampled_from([*VOCABULARY]), st.sampled_from(["", "V", "mm", "@", "@V", "?"]))
def test_no_header_value_raises(value, name, unit):
    entries = [Entry("there/it", unit), Entry("there/*", unit), Entry("**/*/*", unit)]
    found = Instrument({}, {"there": {"it": value, "it@units": value}}, {name: entries})
    for fact in found.values():
        assert fact.unit == VOCABULARY[name].unit
        assert isinstance(fact.value, str) or math.isfinite(fact.value)


def test_instrument_repr_and_pickling():
    found = Instrument({"beam_energy": Fact(2e5, "V", ("a", "b/c")), "date": Fact("<now>", "", ())})
    assert repr(found).splitlines() == ["beam_energy  200000 V  a / b/c", "date         <now>"]
    assert "&lt;now&gt;" in found._repr_html_()
    assert pickle.loads(pickle.dumps(found)) == found
    assert repr(Instrument({})) == Instrument({})._repr_html_() != ""


def test_formats_use_the_vocabulary_only():
    with pytest.raises(DatasetError, match="unknown name in the instrument vocabulary"):
        Format("mine", (), "", "", print, print, instrument={"voltage": [tools.Entry("mine/v")]})
