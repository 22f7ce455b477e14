"""Messages of a page give a valid state or a DatasetError, nothing else."""

import json
import math

import dask.array as da
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_tiled import DatasetError
from dask_tiled.exploring.scene import Scene
from dask_tiled.exploring.state import MOST_LETTERS, State, read_message

SCENES = {
    "scan": Scene.of(da.zeros((6, 8, 16, 20), dtype="u2")),
    "spectra": Scene.of(da.zeros((6, 16), dtype="u2")),
    "stack": Scene.of(da.zeros((3, 4, 6, 8, 16, 20), dtype="u2")),
}
USUAL = json.loads(json.dumps(State.first(SCENES["scan"]).as_json()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("name", SCENES)
def test_state_round_trips_through_json(name):
    scene = SCENES[name]
    state = State.first(scene)
    assert State.read(scene, json.loads(json.dumps(state.as_json()))) == state


def read_or_none(read, *values):
    """Return the result of a reader, or None if it refuses with a short DatasetError."""
    try:
        return read(*values)
    except DatasetError as error:
        refused = str(error)
    assert "from the page" in refused
    assert len(refused) < 1000
    return None


@given(st.sampled_from([*USUAL]), JSON)
@example("region", [[math.inf, 0], [0, 1]])
@example("position", [1e308, True])
@example("sliders", {})
@example("detector", {**USUAL["detector"], "shape": "../../etc/passwd"})
def test_any_value_in_a_message_is_read_or_refused(name, value):
    state = read_or_none(State.read, SCENES["scan"], {**USUAL, name: value})
    if state is not None:
        check(SCENES["scan"], state)


@given(st.sampled_from([*USUAL["detector"]]), JSON)
def test_any_value_in_a_detector_is_read_or_refused(name, value):
    detector = {**USUAL["detector"], name: value}
    state = read_or_none(State.read, SCENES["scan"], {**USUAL, "detector": detector})
    if state is not None:
        check(SCENES["scan"], state)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=2))
def test_positions_are_clipped_to_the_scan(position):
    state = State.read(SCENES["scan"], {**USUAL, "position": position})
    for at, asked, size in zip(state.position, position, (6, 8), strict=True):
        assert at == min(max(round(asked), 0), size - 1)


def check(scene, state):
    """Check that a state lies within the array."""
    pairs = zip(state.position, scene.scan_shape, strict=True)
    assert all(type(at) is int and 0 <= at < size for at, size in pairs)
    for (start, stop), size in zip(state.region or (), scene.scan_shape, strict=False):
        assert 0 <= start < stop <= size
    detector = state.detector
    numbers = [*detector.center, detector.radius, detector.inner, *detector.size]
    assert all(type(number) is float and math.isfinite(number) for number in numbers)


@given(st.text(max_size=50) | st.binary(max_size=50) | JSON.map(json.dumps) | st.none())
@example("[" * MOST_LETTERS)
@example('{"type": "show"' + " " * MOST_LETTERS + "}")
@example('{"type": 1}')
@example("1" * 4096)
def test_any_text_is_read_or_refused(text):
    message = read_or_none(read_message, text)
    assert message is None or isinstance(message["type"], str)
