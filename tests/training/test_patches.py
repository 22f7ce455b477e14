"""Patches of frames, and neighbours in a scan, as samples."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import DatasetError, iter_batches, open_dataset

SHAPE = 4, 5, 7, 6
DIMS = "scan_y", "scan_x", "y", "x"
PIXELS = np.arange(np.prod(SHAPE), dtype="u4").reshape(SHAPE)


@pytest.fixture(scope="module")
def arr(tmp_path_factory):
    path = tmp_path_factory.mktemp("patches") / "a.npy"
    np.save(path, PIXELS.reshape(-1, *SHAPE[2:]))
    arr = open_dataset(path, nav_shape=SHAPE[:2])
    return arr.with_axes(scan_x="0.5 nm", y="2 mrad")


def read(source, size=7, **options):
    batches = [*iter_batches(source, size, **options)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@st.composite
def cuts(draw):
    names = draw(st.lists(st.sampled_from(DIMS), min_size=1, unique=True))
    patch = {name: draw(st.integers(1, SHAPE[DIMS.index(name)])) for name in names}
    return patch, {name: draw(st.integers(0, size - 1)) for name, size in patch.items()}


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    cut=cuts(),
    edges=st.sampled_from(["shift", "drop"]),
    samples=st.sampled_from(["frame", "row", "volume", "scan_x"]),
    shuffle=st.sampled_from([False, "all", "pages"]),
    kind=st.sampled_from(["opened", "result"]),
)
def test_each_patch_is_read_once(arr, cut, edges, samples, shuffle, kind):
    """Expected are slices of NumPy at the starts; starts are compared with a loop."""
    patch, overlap = cut
    source = {"frame": arr if kind == "opened" else arr + 0, "mask": PIXELS % 7}
    options = {"samples": samples, "patch": patch, "overlap": overlap, "edges": edges}
    if samples == "scan_x":
        source.pop("mask")  # axes of arrays in memory have no names to move them by
    found = read(source, fields=[*source, "index", "start"], shuffle=shuffle, **options)
    counted = {"frame": DIMS[:2], "row": DIMS[:1], "volume": (), "scan_x": ("scan_x",)}[samples]
    order = [*counted, *(name for name in DIMS if name not in counted)]
    pixels = PIXELS.transpose([DIMS.index(name) for name in order])
    axes = [name for name in order if name in counted or name in patch]
    assert (np.sort(found["index"]) == np.arange(len(found["index"]))).all()
    starts = []
    for name in axes:
        length = SHAPE[DIMS.index(name)]
        size = patch.get(name, 1)
        some = [*range(0, length - size + 1, size - overlap.get(name, 0))]
        if edges == "shift" and some[-1] + size < length:
            some.append(length - size)
        starts.append(some)
    corners = np.stack([c.ravel() for c in np.meshgrid(*starts, indexing="ij")], axis=1)
    assert (found["start"] == corners[found["index"]]).all()
    for row, start in enumerate(found["start"].tolist()):
        at = dict(zip(axes, start, strict=True))
        index = tuple(
            slice(at[name], at[name] + patch[name]) if name in patch else at.get(name, slice(None))
            for name in order
        )
        np.testing.assert_array_equal(found["frame"][row], pixels[index])
        if "mask" in source:
            np.testing.assert_array_equal(found["mask"][row], pixels[index] % 7)


def test_labels_of_neighbours_and_of_patches(arr):
    label = np.arange(20).reshape(4, 5)
    window = {"scan_y": 3, "scan_x": 3}
    source, step = {"frame": arr, "label": label}, {"scan_y": 2, "scan_x": 2}
    found = read(source, patch=window, overlap=step, fields=["frame", "label", "position"])
    assert found["frame"].shape == (6, 3, 3, 7, 6)
    assert (found["label"][:, 1, 1] == [6, 7, 8, 11, 12, 13]).all()
    assert found["position"][0].tolist() == [1, 0.5]  # of the middle
    patches = read({"frame": arr[0], "label": label[0]}, patch={"y": 4}, fields=["label"])
    assert patches["label"].tolist() == np.repeat(np.arange(5), 2).tolist()
    own = read({"frame": arr[0], "label": np.arange(10)}, patch={"y": 4}, fields=["label", "index"])
    assert (own["label"] == own["index"]).all()


def test_scans_of_several_sizes(arr):
    """Frames may differ in size, if patches do not; each scan has labels of its own."""
    scans = [arr, arr[:2, :, 1:, 1:]]
    label = [np.zeros((4, 5)), np.ones((2, 5))]
    options = {"patch": {"y": 3, "x": 3}, "fields": ["frame", "label", "scan"]}
    found = read({"frame": scans, "label": label}, shuffle="all", **options)
    assert found["frame"].shape == (20 * 6 + 10 * 4, 3, 3)
    assert (found["label"] == found["scan"]).all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"patch": {"z": 3}}, "no axis of a patch.*'scan_y', 'scan_x', 'y', 'x'.*'z'"),
        ({"patch": {"y": 8}}, "larger than its axis.*'y'.*at most 7.*8"),
        ({"patch": {"y": 0}}, r"patch\['y'\]"),
        ({"patch": {"y": 2.5}}, r"patch\['y'\]"),
        ({"patch": {"y": 3}, "overlap": {"y": 3}}, "invalid overlap.*'y'.*less than 3"),
        ({"patch": {"y": 3}, "overlap": {"x": 1}}, "invalid overlap.*'y'.*'x'"),
        ({"patch": {"y": 3}, "overlap": {"y": -1}}, r"overlap\['y'\]"),
        ({"patch": {"y": 3}, "edges": "pad"}, "invalid edges.*shift.*drop"),
        ({"patch": {}}, "invalid patch"),
        ({"patch": 64}, "invalid patch.*by name"),
        ({"overlap": {"y": 1}}, "needs patches"),
    ],
)
def test_wrong_patches(arr, options, problem):
    with pytest.raises(DatasetError, match=f"(?s){problem}"):
        next(iter_batches(arr, 7, **options))


def test_arrays_without_axes_have_no_patches():
    with pytest.raises(DatasetError, match=r"no axes of samples.*patch"):
        next(iter_batches(da.zeros((3, 4, 5)), 7, patch={"y": 2}))
    with pytest.raises(DatasetError, match="different lengths"):
        next(iter_batches({"frame": np.zeros(3), "label": np.zeros(4)}, 7))
