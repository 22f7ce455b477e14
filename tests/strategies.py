"""Hypothesis strategies: indices, chunks, selections of frames, boxes of pieces."""

import math

import numpy as np
from hypothesis import strategies as st


@st.composite
def basic_indices(draw, shape):
    """Draw an index of integers, an ellipsis, and forward slices, also beyond the ends."""
    items = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-n - 2, n + 2)
        cut = st.just(slice(None)) | st.builds(slice, bound, bound, st.integers(1, n + 1))
        items.append(draw(cut | st.integers(-n, n - 1) if n else cut))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(items)))
        tail = len(shape) - len(items) + at  # items after an ellipsis belong to the last axes
        if items[at:] == [slice(None)] * len(items[at:]) or tail == at:
            items.insert(at, Ellipsis)
    return tuple(items)


@st.composite
def cuts(draw, shape):
    """Draw a non-empty index of integers and forward slices."""
    index = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        cut = st.builds(slice, st.just(start), st.integers(start + 1, n), st.integers(1, 5))
        index.append(draw(st.just(slice(None)) | cut | cut | st.just(start)))
    return tuple(index)


@st.composite
def chunked(draw, shape):
    """Draw chunks of any sizes."""
    axes = []
    for n in shape:
        edges = draw(st.lists(st.integers(1, n - 1), max_size=3, unique=True)) if n > 1 else []
        axes.append(tuple(np.diff([0, *sorted(edges), n]).tolist()))
    return tuple(axes)


@st.composite
def selections(draw):
    """Draw `nav_shape`, `sync_offset` and `roi`."""
    nav_shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    sync_offset = draw(st.integers(-15, 15))
    count = math.prod(nav_shape)
    kind = draw(st.sampled_from(["none", "mask", "places"]))
    roi = None
    if kind == "mask":
        places = draw(st.sets(st.integers(0, count - 1), min_size=1))
        roi = np.isin(np.arange(count), list(places)).reshape(nav_shape)
    elif kind == "places":
        places = st.lists(st.integers(-count, count - 1), min_size=1, max_size=30)
        roi = draw(st.sampled_from([list, np.array]))(draw(places))
    return nav_shape, sync_offset, roi


def shown(frames, nav_shape, sync_offset=0, roi=None, fill_value=0):
    """Return the expected array, with frames placed one by one, and the missing positions."""
    places = list(range(math.prod(nav_shape)))
    if roi is not None:
        found = np.asarray(roi)
        chosen = np.flatnonzero(found) if found.dtype == bool else found
        places = [places[k] for k in chosen.tolist()]
        nav_shape = (len(places),)
    out = np.full((len(places), *frames.shape[1:]), fill_value, frames.dtype)
    missing = []
    for i, place in enumerate(places):
        if 0 <= place + sync_offset < len(frames):
            out[i] = frames[place + sync_offset]
        else:
            missing.append(i)
    return out.reshape(*nav_shape, *frames.shape[1:]), missing


@st.composite
def boxes(draw, shape):
    """Draw a partition of an array into boxes."""
    found = [[(0, n) for n in shape]]
    for _ in range(draw(st.integers(0, 5))):
        box = found.pop(draw(st.integers(0, len(found) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        start, stop = box[axis]
        cut = draw(st.integers(start, stop))
        if start < cut < stop:
            found += [[*box[:axis], (start, cut), *box[axis + 1 :]]]
            box = [*box[:axis], (cut, stop), *box[axis + 1 :]]
        found.append(box)
    return found


def part_of(draw, arr):
    """Draw a non-empty index of forward slices."""
    index = []
    for size in arr.shape:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        index.append(slice(start, stop, draw(st.integers(1, 3))))
    return tuple(index)
