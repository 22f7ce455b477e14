"""What is right: the pixels that were written, and no frame that is filled without a word."""

import re

import numpy as np

RESTS = re.compile(r".*: the file has stopped growing; (\d+) of (\d+) frames are missing")


class FoundError(Exception):
    """Something is not as it has to be: ``kind`` says of what it is one."""

    def __init__(self, kind, problem):
        super().__init__(problem)
        self.kind = kind


def compare(found, truths):
    """Make sure that what was found is one of the truths, and no mixture of them."""
    for truth in map(np.asarray, truths):
        same = found.shape == truth.shape and found.dtype.kind == truth.dtype.kind
        if same and (
            np.array_equal(found, truth)
            or (truth.dtype.kind in "fc" and np.allclose(found, truth, rtol=1e-12, atol=0))
        ):
            return
    raise FoundError("checksums", f"{found.dtype}{found.shape} is none of {len(truths)} truths")


def compare_rested(found, truth, sig_dims, told, most, absent):
    """Make sure that an export says how many frames it has filled, that others are right.

    Files that are cut off before anybody has seen the frames rest there, as any that an acquisition
    has ended with.

    Parameters
    ----------
    told : list of str
        The warnings.
    most : int
        So many frames may be missing: those that were not there when the files were opened.
    absent : int
        So many are missing in the files now.
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
