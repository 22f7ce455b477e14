"""`Corrections` as values: accepted arguments, equality, and hand-computed means of neighbours."""

import copy
import itertools
import pickle

import dask
import numpy as np
import pytest

from dask_tiled import Corrections, DatasetError
from dask_tiled.reading.correction_plans import CorrectionPlan


def test_means_are_summed_in_float64():
    """float32 would round 2**24 + 1 to 2**24."""
    frame = np.ones((1, 3, 3), "f4")
    frame[0, 0, 0] = 2**24
    out = np.empty_like(frame)
    CorrectionPlan(Corrections(excluded_pixels=[(1, 1)]), [(0, 1, 3), (0, 1, 3)], (3, 3)).apply(
        frame, out
    )
    assert out[0, 1, 1] == np.float32((2**24 + 7) / 8)


def test_halo_by_hand():
    """An excluded pixel in a tile's corner has good neighbours in four tiles."""
    frame = np.arange(25, dtype="u2").reshape(1, 5, 5)
    corrections = Corrections(excluded_pixels=[(2, 2), (1, 1)])
    plan = CorrectionPlan(corrections, [(2, 1, 3), (2, 1, 3)], (5, 5))
    out = np.empty((1, 3, 3), "f4")
    plan.apply(np.ascontiguousarray(frame[:, 2:, 2:]), out)
    (halo,) = plan.halos
    assert halo.box == ((1, 4), (1, 4))
    halo.repair(np.ascontiguousarray(frame[:, 1:4, 1:4]), out)
    expected = frame[0, 2:, 2:].astype("f4")
    expected[0, 0] = (7 + 8 + 11 + 13 + 16 + 17 + 18) / 7
    np.testing.assert_array_equal(out[0], expected)


def test_values_are_copied_and_cannot_be_written():
    dark, mask = np.ones((2, 3), "f4"), np.eye(2, 3, dtype=bool)
    corrections = Corrections(dark=dark, excluded_pixels=mask)
    before = hash(corrections)
    dark[...] = 7
    mask[...] = True
    assert (corrections.dark == 1).all()
    assert corrections.excluded_pixels.tolist() == [[0, 0], [1, 1]]
    for one in (corrections, pickle.loads(pickle.dumps(corrections)), copy.deepcopy(corrections)):
        for array in (one.dark, one.excluded_pixels):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(AttributeError):
            one.gain = dark
        assert hash(one) == before


DIFFERENT = [
    Corrections(),
    Corrections(dark=[1, 2]),
    Corrections(dark=[0.1, 2], gain=[2, 2], excluded_pixels=[0]),
    Corrections(dark=[1, 3]),
    Corrections(dark=[[1, 2]]),
    Corrections(dark=[0.1, 2]),
    Corrections(gain=[1, 2]),
    Corrections(dark=[1, 2], gain=[1, 2]),
    Corrections(excluded_pixels=[1, 2]),
    Corrections(excluded_pixels=[[1, 2]]),
    Corrections(excluded_pixels=[False, True, True]),
    Corrections(excluded_pixels=[False, True, True, False]),
    Corrections(excluded_pixels=[False, False]),
    Corrections(excluded_pixels=[1, 2], fill=0),
    Corrections(excluded_pixels=[1, 2], fill=np.nan),
]


def test_different_content_is_different():
    assert len(set(DIFFERENT)) == len(set(map(dask.base.tokenize, DIFFERENT))) == len(DIFFERENT)
    assert all(a != b for a, b in itertools.combinations(DIFFERENT, 2))
    assert Corrections() != ()
    for one in DIFFERENT:
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert (hash(again), again.sig_shape) == (hash(one), one.sig_shape)
        assert dask.base.tokenize(again) == dask.base.tokenize(one)


def test_tokens_are_plain_values():
    """Plain values make the same token in every process."""
    token = Corrections(np.ones((64, 64))).__dask_tokenize__()
    assert all(type(part) is str for part in token)


def test_equal_content_is_equal():
    by_float = Corrections(dark=np.arange(6.0).reshape(2, 3), excluded_pixels=[(1, 2), (0, 0)])
    by_int = Corrections(dark=np.arange(6).reshape(2, 3), excluded_pixels=[(0, 0), (1, 2), (0, 0)])
    fortran = Corrections(np.asfortranarray(np.arange(6).reshape(2, 3)), None, [(0, 0), (1, 2)])
    assert by_float == by_int == fortran
    assert fortran.dark.flags.c_contiguous
    assert Corrections(excluded_pixels=[]) == Corrections()
    assert Corrections(excluded_pixels=[3]) == Corrections(excluded_pixels=[[3]])


def test_values_are_stored_as_float32_if_exact():
    assert Corrections(dark=np.arange(3)).dark.dtype == "f4"
    assert Corrections(dark=[0.1]).dark.dtype == "f8"


def test_repr():
    text = repr(Corrections(gain=np.ones((9, 9)), excluded_pixels=[(1, 1)]))
    assert text == "<Corrections: gain, 1 excluded pixels>"
    assert repr(Corrections()) == "<Corrections: none>"
    text = repr(Corrections(excluded_pixels=[(1, 1)], fill=np.nan))
    assert text == "<Corrections: 1 excluded pixels as nan>"


@pytest.mark.parametrize("name", ["dark", "gain"])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, -np.inf], [1e39, 1.0], [1j, 2.0], [None, 1], [[1], [1, 2]],
        np.array([1, 2], "M8[s]"), np.zeros(2, "i4, f4"), np.ma.masked_equal([1, 2], 2),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_values_are_refused(name, values):
    with pytest.raises(DatasetError, match=name) as caught:
        Corrections(**{name: values})
    assert caught.value.found is not None


@pytest.mark.parametrize("fill", ["0", True, 1j, [0.0], object()], ids=lambda x: type(x).__name__)
def test_fill_is_a_number(fill):
    with pytest.raises(DatasetError, match="fill: not a real number"):
        Corrections(excluded_pixels=[(0, 0)], fill=fill)


@pytest.mark.thorough
def test_sparse_masks_are_masks():
    import scipy.sparse
    import sparse

    mask = np.zeros((5, 4), bool)
    mask[[1, 3], [2, 0]] = True
    dense = Corrections(excluded_pixels=mask)
    given = scipy.sparse.csr_matrix(mask), scipy.sparse.coo_array(mask), sparse.COO(mask)
    for one in (*given, sparse.GCXS(mask)):
        assert Corrections(excluded_pixels=one) == dense


def test_errors_name_the_pixel():
    dark = np.ones((4, 5))
    dark[2, 3] = np.nan
    with pytest.raises(DatasetError, match=r"nan at \(2, 3\), one of 1"):
        Corrections(dark=dark)


@pytest.mark.parametrize(
    "pixels",
    [
        [(0, -1)], [1.0, 2.0], "abc", [[[0, 1]]], [[0, 1], [2]], [None],
        np.array([[0, 2**63]], "u8"), np.ma.masked_equal([1, 2], 2),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_excluded_pixels_are_refused(pixels):
    with pytest.raises(DatasetError, match="excluded_pixels") as caught:
        Corrections(excluded_pixels=pixels)
    assert caught.value.found is not None


@pytest.mark.parametrize(
    ("corrections", "problem"),
    [
        (Corrections(dark=np.ones((4, 5))), "dark does not have the shape"),
        (Corrections(np.ones((5, 4)), np.ones((4, 5))), "gain does not have the shape"),
        (Corrections(excluded_pixels=np.eye(4, 5, dtype=bool)), "mask of excluded pixels does"),
        (Corrections(excluded_pixels=True), "mask of excluded pixels does"),
        (Corrections(excluded_pixels=[(0, 0, 0)]), "as many coordinates"),
        (Corrections(excluded_pixels=np.eye(5, 4, dtype="u1")), "as many coordinates"),
        (Corrections(excluded_pixels=[(0, 0), (4, 4)]), "outside"),
        (Corrections(excluded_pixels=np.ones((5, 4), bool)), "all pixels are excluded"),
    ],
)
def test_corrections_of_other_frame_shapes_are_refused(corrections, problem):
    with pytest.raises(DatasetError, match=problem) as caught:
        corrections.check((5, 4), "scan.mib")
    assert caught.value.path == "scan.mib"
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_errors_name_the_pixel_outside():
    with pytest.raises(DatasetError) as caught:
        Corrections(excluded_pixels=[(1, 1), (2, 9), (3, 1)]).check((5, 4), "scan.mib")
    assert caught.value.found == (2, 9)


def test_coordinates_need_the_shape_of_the_frame():
    """The frame shape decides which neighbours a pixel at the edge has."""
    corrections = Corrections(excluded_pixels=[(2, 2)])
    assert corrections.sig_shape is None
    with pytest.raises(DatasetError, match="the frame shape is needed"):
        CorrectionPlan(corrections, [(0, 1, 3), (0, 1, 3)])
    assert CorrectionPlan(corrections, [(0, 1, 3), (0, 1, 3)], (3, 3)).halos == ()
    assert CorrectionPlan(corrections, [(0, 1, 3), (0, 1, 3)], (4, 4)).halos[0].box == (
        (1, 4),
        (1, 4),
    )
    shaped = Corrections(gain=np.ones((3, 3)), excluded_pixels=[(2, 2)])
    assert CorrectionPlan(shaped, [(0, 1, 3), (0, 1, 3)]).halos == ()


def test_single_positions_may_have_any_step():
    frame = np.arange(20, dtype="u2").reshape(1, 4, 5)
    corrections = Corrections(dark=frame[0], excluded_pixels=[(1, 1)])
    plan = CorrectionPlan(corrections, [(1, 0, 1), (1, -7, 1)])
    out = np.full((1, 1, 1), 9.0, "f4")
    plan.apply(frame[:, 1:2, 1:2].copy(), out)
    (halo,) = plan.halos
    halo.repair(np.ascontiguousarray(frame[:, 0:3, 0:3]), out)
    assert out.item() == 0
