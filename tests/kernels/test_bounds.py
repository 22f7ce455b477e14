"""The fuzzer checks the bounds of every kernel: correct work passes, faults are reported."""

import dask.array as da
import numpy as np
import pytest
from fuzzing import bounds
from fuzzing.campaign import in_a_child

from dask_tiled import DatasetError, open_dataset, tiles
from dask_tiled.engine import evaluation, vectors
from dask_tiled.export.zarr.levels import halved
from dask_tiled.kernels import folds
from dask_tiled.model.pyramids import Halving
from dask_tiled.testing import counting_frames, write_mib, write_raw

pytestmark = pytest.mark.thorough

FRAMES = counting_frames((6, 5, 20, 32), "uint16", bits=12)
SHIFTS = np.moveaxis(np.indices((6, 5)), 0, -1) - 2
WORK = {
    "sum": lambda a: a.sum(),
    "sum of frames": lambda a: a.sum((-2, -1)),
    "sum of pixels": lambda a: a.sum((0, 1)),
    "sum of rows": lambda a: a.sum(-1),
    "max of rows": lambda a: a.max(-1),
    "columns": lambda a: a.max((0, 1, 2)),
    "max": lambda a: a.max((-2, -1)),
    "program": lambda a: da.sqrt(a * 2.5 + 1),
    "logarithm": da.log1p,
    "number": lambda a: da.count_nonzero(a, (-2, -1)),
    "select": lambda a: da.where(a > 7, a, 3),
    "truth": lambda a: (a > 7).any((-2, -1)),
    "std": lambda a: a.std((-2, -1)),
    "std over the scan": lambda a: a.std((0, 1)),
    "thresholds": lambda a: (a > 7).sum((-2, -1)),
    "std of pixels": lambda a: a.astype("f4").std((0, 1)),
    "argmax": lambda a: a.reshape(30, -1).argmax(-1),
    "argmax of floats": lambda a: a.astype("f4").reshape(30, -1).argmax(-1),
    "argmin": lambda a: a.argmin(0),
    "histogram": lambda a: da.histogram(a.astype("f8"), 9, (0, 4096))[0],
    "values": lambda a: da.histogram(a, 64, (0, 4096))[0],
    "nanmean": lambda a: da.nanmean(a.astype("f4"), (-2, -1)),
    "weights": lambda a: (a * np.linspace(0, 1, 32, dtype="f4")).sum((-2, -1)),
    "weighted roots": lambda a: (np.sqrt(a) * np.linspace(0, 1, 32)).sum((-2, -1)),
    "roots": lambda a: np.sqrt(a).sum((0, 1)),
    "several programs": lambda a: da.stack([np.sqrt(a).std((-2, -1)), np.sqrt(a).max((-2, -1))]),
    "several sources": lambda a: (a - a[::-1]).sum(0),
    "frames in any order": lambda a: a.reshape(30, 20, 32)[[28, 3, 11]],
    "shifted masks": lambda a: tiles.apply_masks(a, np.ones((2, 20, 32)), shift=SHIFTS),
}


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory):
    """Load all kernels before children are forked."""
    arr = open_dataset(write_mib(tmp_path_factory.mktemp("loaded") / "a.mib", FRAMES))
    da.compute(*(work(arr) for work in WORK.values()), scheduler="synchronous")


def run_with_fault(path, fault, names, **options):
    """Run work with a fault in a child; return the violations and the kernels that were used."""

    def work():
        bounds.watch()
        fault()
        arr = open_dataset(path, **options)
        for name in names:
            try:
                done = WORK[name](arr).compute(scheduler="synchronous")
            except bounds.OutOfBoundsError:
                continue
            except DatasetError as error:  # decoders' exceptions are converted
                if not isinstance(error.__cause__, bounds.OutOfBoundsError):
                    raise
                continue
            # No threads: a fork has none of its parent's.
            expected = WORK[name](da.from_array(FRAMES)).compute(scheduler="synchronous")
            np.testing.assert_allclose(done, expected, rtol=1e-5)
        return bounds.violations, {name for name, _ in bounds.called.values()}

    return in_a_child(work)


def test_every_kernel_has_a_check(monkeypatch):
    """A new kernel without a check raises LookupError."""
    names = bounds.kernel_names()
    known = {"copy", "decode_frames", "dot_frames", "run_program", "sqrt", "halve_long", "repair"}
    assert known <= names
    for name in names:
        assert callable(bounds.check_of(name))

    def new_fold(data, offsets, width, rows, first, pixels, results, weights):
        pass

    new_fold.__module__ = folds.__name__
    monkeypatch.setattr(folds, "new_fold", new_fold, raising=False)
    assert "new_fold" in bounds.kernel_names()
    with pytest.raises(LookupError, match="new_fold"):
        bounds.check_of("new_fold")


def test_correct_work_stays_inside(tmp_path):
    """Pixels that are decoded and native pixels are read within their arrays."""
    used = set()
    mib = write_mib(tmp_path / "a.mib", FRAMES)
    raw = write_raw(tmp_path / "a.raw", FRAMES)
    options = {"format": "raw", "dtype": "u2", "sig_shape": (20, 32), "nav_shape": (6, 5)}
    for path, given in ((mib, {}), (mib, {"io": "buffered"}), (raw, options)):
        violations, names = run_with_fault(path, lambda: None, WORK, **given)
        assert violations == []
        used |= names
    assert used >= {"look_up", "add_words", "add_reversed_words", "moments_frames"}
    assert used >= {"add_row", "add_groups", "cast", "moments_row", "bins", "count", "add_products"}
    assert used >= {"argmax_row", "argmax_row_of_whole"}


def put(holder, name, change):
    """Change what a function returns."""
    original = getattr(holder, name)
    setattr(holder, name, lambda *args, **options: change(original(*args, **options)))


def take_longer_vectors():
    begin, vectors.VECTOR_BYTES = vectors.BoundVectors.__init__, 64

    def longer(self, *args, **options):
        begin(self, *args, **options)
        self.header[0, 2] *= 100

    vectors.BoundVectors.__init__ = longer


FAULTS = {
    "register": ("program", take_longer_vectors),
    "place": ("select", lambda: put(vectors.Vectors, "array", lambda x: x._replace(
        place=(*x.place[:1], x.place[1] + 8, *x.place[2:])))),
    "rows": ("sum of pixels", lambda: put(vectors, "rows_of", lambda x: (x[0] + 1, x[1]))),
    "lines": ("std of pixels", lambda: put(vectors, "rows_of", lambda x: (x[0] + 1, x[1]))),
    "stage": ("several sources", lambda: put(evaluation.StageSink, "_room", lambda x: x[..., :-1])),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_reported(tmp_path, fault):
    path = write_mib(tmp_path / "a.mib", FRAMES)
    name, plant = FAULTS[fault]
    assert run_with_fault(path, plant, [name])[0], fault


def test_halving_stays_inside():
    def work():
        bounds.watch()
        for dtype in ("u1", "i8", "f4"):
            pixels = np.arange(5 * 7 * 9, dtype=dtype).reshape(5, 7, 9)
            halved(pixels, Halving((1, 2)))
            halved(pixels, Halving((1, 2), "mode"))
        assert bounds.check_of("halve_floats") is bounds.check_halve
        return bounds.violations

    assert in_a_child(work) == []
    pixels, out = np.zeros((1, 4, 7, 9)), np.zeros((1, 2, 4, 5))
    assert bounds.check_halve(pixels, out, 2, 2, np.zeros(9)) is None
    assert bounds.check_halve(pixels, out, 2, 2, np.zeros(8))
    assert bounds.check_halve(pixels, out[..., :4], 2, 2, np.zeros(9))
