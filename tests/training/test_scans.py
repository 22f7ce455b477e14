"""Samples of scans: frames of one or several, labels beside them, positions, and parts."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import DatasetError, catalogue, iter_batches, open_dataset
from dask_tiled.testing import write_mib
from dask_tiled.training import order
from dask_tiled.training.order import part_of

SHAPES = (4, 5), (3, 7), (2, 2)
COUNTS = [rows * columns for rows, columns in SHAPES]
STARTS = np.cumsum([0, *COUNTS])


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Three scans in a folder; pixels of a frame equal its number among all frames."""
    folder = tmp_path_factory.mktemp("scans")
    for start, shape in zip(STARTS, SHAPES, strict=False):
        frames = np.arange(start, start + shape[0] * shape[1], dtype="u2")
        np.save(folder / f"{start}.npy", np.tile(frames[:, None, None], (1, 8, 6)))
    return folder


@pytest.fixture
def opened(scans):
    paths = [scans / f"{start}.npy" for start in STARTS[:-1]]
    axes = {"scan_y": "2 nm", "scan_x": "0.5 nm"}
    pairs = zip(paths, SHAPES, strict=True)
    return [open_dataset(path, nav_shape=shape).with_axes(axes) for path, shape in pairs]


def read(source, size=7, **options):
    """Return all batches as one."""
    batches = [*iter_batches(source, size, **options)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_samples_are_the_frames_of_all_scans(opened):
    found = read(opened, fields=["frame", "index", "scan", "position"], shuffle="all")
    order = found["index"]
    assert found["frame"].shape == (sum(COUNTS), 8, 6)
    assert (found["frame"] == order[:, None, None]).all()
    assert (np.sort(order) == np.arange(sum(COUNTS))).all()
    assert (found["scan"] == np.repeat([0, 1, 2], COUNTS)[order]).all()
    places = np.concatenate([[*np.ndindex(shape)] for shape in SHAPES])
    np.testing.assert_array_equal(found["position"], places[order] * [2, 0.5])


def all_but_last(folder):
    return [row for row in catalogue(folder) if "41" not in row.path]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder, _: [folder / "0.npy", folder / "20.npy"], id="paths"),
        pytest.param(lambda folder, arrays: [str(folder / "0.npy"), arrays[1]], id="mixed"),
        pytest.param(lambda folder, _: all_but_last(folder), id="rows", marks=pytest.mark.slow),
        pytest.param(
            lambda _, arrays: da.concatenate([arr.reshape(-1, 8, 6) for arr in arrays[:2]]),
            id="concatenated",
        ),
        pytest.param(
            lambda _, arrays: [arrays[0], arrays[1].compute().reshape(-1, 8, 6)], id="in-memory"
        ),
        pytest.param(
            lambda _, arrays: [arrays[0].astype("u2"), arrays[1].to_xarray()], id="computed"
        ),
    ],
)
def test_sources(scans, opened, make):
    """Scans may differ in their number of axes, too; then they have no positions."""
    found = read(make(scans, opened), fields=["frame", "index"])
    assert (found["frame"] == found["index"][:, None, None]).all()
    assert len(found["index"]) == sum(COUNTS[:2])


def test_labels_stand_beside_scans(opened):
    numbers = np.arange(sum(COUNTS))
    pairs = zip(np.split(numbers, STARTS[1:-1]), SHAPES, strict=True)
    source = {
        "frame": opened,
        "per_scan": [part.reshape(shape) for part, shape in pairs],
        "flat": np.split(numbers, STARTS[1:-1]),
        "joined": numbers,
        "sums": [arr.sum(axis=(-2, -1)) for arr in opened],
        "by_function": lambda batch: batch["frame"][:, 0, 0] + batch["index"],
    }
    found = read(source, fields=[*source, "index"], shuffle="all", seed=1)
    order = found["index"]
    for name in ("per_scan", "flat", "joined"):
        assert (found[name] == order).all()
    assert (found["sums"] == 48 * order).all()
    assert (found["by_function"] == 2 * order).all()


def test_labels_of_equal_scans_may_be_one_array(opened):
    labels = np.arange(40).reshape(2, 4, 5)
    assert (read({"frame": [opened[0]] * 2, "label": labels})["label"] == np.arange(40)).all()
    one = read({"frame": opened[0], "label": labels[0]})
    assert (one["label"] == one["frame"][:, 0, 0]).all()


def test_strings_beside_a_scan_are_labels(scans, opened, monkeypatch):
    """Also those that name a file."""
    monkeypatch.chdir(scans)
    names = ["0.npy", *"abcdefghijklmnopqrs"]
    assert read({"frame": opened[0], "label": names})["label"].tolist() == names


def test_the_order_does_not_depend_on_fields(opened, monkeypatch):
    monkeypatch.setattr(order, "PAGE_BYTES", 4 * 8 * 6 * 2)
    options = {"shuffle": "pages", "seed": 3}
    found = [read(opened, fields=names, **options) for names in (["index"], ["frame", "index"])]
    assert (found[0]["index"] == found[1]["index"]).all()


@pytest.mark.parametrize(
    ("samples", "shape", "count"),
    [
        ("frame", (8, 6), 20),
        ("row", (5, 8, 6), 4),
        ("volume", (4, 5, 8, 6), 1),
        ("scan_x", (4, 8, 6), 5),
        (("y", "scan_y"), (5, 6), 32),
    ],
    ids=str,
)
def test_axes_that_count_samples(opened, samples, shape, count):
    found = read(opened[0], samples=samples, fields=["frame", "position"])
    assert found["frame"].shape == (count, *shape)
    pixels = np.tile(np.arange(20).reshape(4, 5, 1, 1), (1, 1, 8, 6))
    dims = ("scan_y", "scan_x", "y", "x")
    named = {"frame": dims[:2], "row": dims[:1], "volume": ()}
    first = named.get(samples, (samples,) if isinstance(samples, str) else samples)
    axes = [dims.index(name) for name in first]
    pixels = pixels.transpose(axes + [k for k in range(4) if k not in axes])
    assert (found["frame"] == pixels.reshape(count, *shape)).all()
    assert found["position"].shape == (count, len(axes))


def test_a_path_of_one_scan(tmp_path):
    path = write_mib(tmp_path / "a.mib", np.arange(12 * 64 * 64, dtype="u2").reshape(12, 64, 64))
    found = read(path, format="mib", nav_shape=(3, 4))
    assert (found["frame"] == open_dataset(path).compute().reshape(12, 64, 64)).all()


@given(
    count=st.integers(0, 50),
    world=st.integers(1, 7),
    tail=st.sampled_from(["pad", "drop", "keep"]),
)
def test_parts_cover_each_sample(count, world, tail):
    numbers = np.random.default_rng(count).permutation(count)
    if tail == "drop" and 0 < count < world:
        with pytest.raises(DatasetError, match="fewer samples than parts"):
            part_of(numbers, (0, world), tail)
        return
    parts = [part_of(numbers, (rank, world), tail) for rank in range(world)]
    sizes = {*map(len, parts)}
    together = np.concatenate(parts)
    if tail == "keep":
        assert (together == numbers).all()
        assert max(sizes) - min(sizes) <= 1
    else:
        assert len(sizes) == 1
        assert (together[:count] == numbers[: len(together)]).all()
        repeated = together[count:]
        assert tail == "pad" or not len(repeated)
        assert tail == "drop" or not count or {*together} == {*numbers}
        assert len(repeated) < world
        assert not count or (repeated == np.resize(numbers, len(repeated))).all()


def test_parts_of_batches(opened):
    parts = [
        read(opened, shuffle="pages", seed=2, part=(k, 2), tail="keep", fields=["index"])["index"]
        for k in range(2)
    ]
    whole = read(opened, shuffle="pages", seed=2, fields=["index"])["index"]
    assert (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        (lambda x: x, {"samples": "frames"}, "frame, row, volume.*'scan_y', 'scan_x', 'y', 'x'"),
        *[
            (lambda x: x, {"samples": wrong}, "invalid samples")
            for wrong in (["x"] * 2, 3, [["x"]])
        ],
        (lambda x: [x[0], 3], {}, "a mixed list.*'frame'.*int in a list of scans"),
        (lambda x: x, {"fields": ["label"]}, "unknown field.*'frame', 'index', 'scan'"),
        (lambda x: [x[0], x[0][0]], {"fields": ["position"]}, "unknown field"),
        (lambda x: x, {"part": 1}, "invalid part"),
        (lambda x: x, {"part": (2, 2)}, r"part\[0\]"),
        (lambda x: x, {"tail": "cut"}, "invalid tail"),
        (lambda x: [x[0], x[1][..., :4]], {}, "samples of different scans differ.*frame"),
        (lambda x: {"frame": x, "label": np.zeros(44)}, {}, "different lengths.*'label'.*45 sam"),
        (
            lambda x: {"frame": x[0], "label": np.zeros((5, 4))},
            {},
            r"different.*\(4, 5\).*\(5, 4\)",
        ),
        (lambda x: {"frame": x, "label": lambda _: [1]}, {}, "value for each sample.*7 values"),
        (lambda x: {"index": x}, {}, "name of a field is taken"),
        (lambda x: {"label": len(x) * [np.zeros(3)]}, {"samples": "row"}, "no axes of samples"),
        (lambda x: {"label": [np.zeros(3), np.zeros(4)]}, {}, "samples differ in shape"),  # noqa: ARG005
    ],
)
def test_wrong_sources(opened, change, options, problem):
    with pytest.raises(DatasetError, match=f"(?s){problem}"):
        next(iter_batches(change(opened), 7, **options))
