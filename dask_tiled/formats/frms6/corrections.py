"""Corrections that come with FRMS6 sets: dark frames, and a gain map from elsewhere."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.frms6.files import HEADER_BYTES, Frames

BLOCK_BYTES = 1 << 24
MAT_KEY = "GainMap"
TEXT_BYTES = 64
"""As long as a number in a text file may be."""


def read_corrections(desc: tools.Description) -> tools.Corrections:
    """Read the mean of the dark frames, and the gain map that was named."""
    facts = desc.metadata["frms6"]
    dark, gain = facts["dark_frames"], facts.get("gain_map")
    if gain is None and not os.path.isfile(dark):
        raise tools.DatasetError("the file of the dark frames is missing", path=dark)
    return tools.Corrections(
        dark=mean_dark_frame(dark, facts["binning"]) if os.path.isfile(dark) else None,
        gain=None if gain is None else read_gain_map(gain, math.prod(desc.sig_shape)),
    )


def mean_dark_frame(path: str, binning: int) -> npt.NDArray[np.float32]:
    """Average the frames of a file block by block; rows are repeated as in frames of the set."""
    frames = Frames.at(path)
    count, record = frames.count(settled=False), frames.stored
    chip = record.sig_shape[1] // 2
    whole = np.dtype([("header", "V", record.header), ("pixels", "<u2", record.sig_shape)])
    per_block = max(1, BLOCK_BYTES // record.nbytes)
    total = np.zeros(record.sig_shape, dtype=np.uint64)
    with open(path, "rb") as stream:
        stream.seek(HEADER_BYTES)
        for first in range(0, count, per_block):
            size = min(per_block, count - first) * record.nbytes
            data = stream.read(size)
            frames.file.check(os.fstat(stream.fileno()))
            total += np.frombuffer(data, whole)["pixels"].sum(axis=0, dtype=np.uint64)
    mean = (total / count).astype(np.float32)
    upper, lower = mean[:, :chip], mean[::-1, : chip - 1 : -1]
    return np.concatenate([upper, lower]).repeat(binning, axis=0)


def read_gain_map(path: str, pixels: int) -> npt.NDArray[Any]:
    """Read a gain map of ``pixels`` numbers: a ``.mat`` file, or text, a line for each column."""
    file = tools.File.at(path)
    if file.size > 1024 * TEXT_BYTES + TEXT_BYTES * pixels:
        raise tools.CorruptFileError(
            "the gain map is too large",
            path=path,
            expected=f"{pixels} numbers of up to {TEXT_BYTES} bytes",
            found=f"{file.size} bytes",
        )
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".mat":
        return _read_mat(path)
    if suffix == ".csv":
        return _read_csv(path)
    raise tools.DatasetError("no gain map", path=path, expected="a .mat or .csv file", found=suffix)


def _read_mat(path: str) -> npt.NDArray[Any]:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError as error:
        raise tools.DatasetError(
            ".mat files need scipy",
            path=path,
            hint="Install scipy, or save the gain map as a .csv file.",
        ) from error
    try:
        found = loadmat(path, variable_names=[MAT_KEY]).get(MAT_KEY)
    except Exception as error:  # scipy raises about anything on damaged files
        raise tools.CorruptFileError(
            "the .mat file cannot be read",
            path=path,
            expected="a file of MATLAB 5 to 7.2",
            found=repr(error),
        ) from error
    if found is None:
        raise tools.CorruptFileError("no gain map in the .mat file", path=path, expected=MAT_KEY)
    return np.asarray(found)


def _read_csv(path: str) -> npt.NDArray[Any]:
    with open(path, encoding="latin1") as stream:
        rows = [[cell for cell in line.split(";") if cell.strip()] for line in stream]
    try:
        # A line is a column of the frame.
        return np.array([row for row in rows if row], dtype=np.float64).T
    except ValueError as error:
        raise tools.CorruptFileError(
            "the gain map is no table of numbers", path=path, found=str(error)
        ) from error
