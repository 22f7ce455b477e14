"""Judge results: pixels equal those written, and no frame is filled without a warning."""

import re

import numpy as np

RESTS = re.compile(r".*: the file has stopped growing; (\d+) of (\d+) frames are missing")


class FoundError(Exception):
    """A wrong result; ``kind`` is its category."""

    def __init__(self, kind, problem):
        super().__init__(problem)
        self.kind = kind


def compare(found, truths):
    """Check that a result equals one of the truths, and is no mixture."""
    for truth in map(np.asarray, truths):
        same = found.shape == truth.shape and found.dtype.kind == truth.dtype.kind
        if same and (
            np.array_equal(found, truth)
            or (truth.dtype.kind in "fc" and np.allclose(found, truth, rtol=1e-12, atol=0))
        ):
            return
    raise FoundError("checksums", f"{found.dtype}{found.shape} is none of {len(truths)} truths")


def compare_rested(found, truth, sig_dims, told, most, absent):
    """Check that an export warns of the frames it filled, and that other frames are right.

    Files truncated before their frames were seen count as complete, as after an interrupted
    acquisition.

    Parameters
    ----------
    told : list of str
        Warnings of the export.
    most : int
        Largest number of missing frames: those absent when the files were opened.
    absent : int
        Number of frames missing in the files now.
    """
    said = [x for x in map(RESTS.fullmatch, told) if x]
    if not said:
        compare(found, [truth])
        return
    frames, expected = (x.reshape(-1, *x.shape[x.ndim - sig_dims :]) for x in (found, truth))
    counts = [tuple(map(int, x.groups())) for x in said]
    if counts != [(absent, len(expected))] or not 0 < absent <= most:
        raise FoundError("checksums", f"{absent} frames, of {most} or less, are missing; {told}")
    filled = np.zeros_like(expected)
    filled[:-absent] = expected[:-absent]
    compare(frames, [filled])
