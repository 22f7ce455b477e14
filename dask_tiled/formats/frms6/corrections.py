"""The mean dark frame of a set, and a gain map that the user names."""

from __future__ import annotations

import io
import math
import os

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import Guard, require
from dask_tiled.files.paths import Border, within
from dask_tiled.formats import tools
from dask_tiled.formats.frms6.header import HEADER_BYTES, PIXEL, Frms6File
from dask_tiled.formats.tools.files import is_file, opened, read_exactly
from dask_tiled.model.indexing import Array

BLOCK_BYTES = 1 << 24
MAT_KEY = "GainMap"
TEXT_BYTES = 64
"""Longest text of a number in a file."""


def read_corrections(desc: tools.Description) -> tools.Corrections:
    """Return the mean of the dark frames, and the gain map."""
    facts = desc.metadata["frms6"]
    dark, gain = facts["dark_frames"], facts.get("gain_map")
    if gain is None and not is_file(dark):
        raise tools.DatasetError("the file of the dark frames is missing", path=dark)
    mean = _mean_dark_frame(dark, facts["binning"]) if is_file(dark) else None
    if gain is None:
        return tools.Corrections(mean)
    with within(Border([gain])):  # the user named the file
        return tools.Corrections(mean, _read_gain_map(gain, math.prod(desc.sig_shape)))


def _mean_dark_frame(path: str, binning: int) -> npt.NDArray[np.float32]:
    """Average the frames of a file in blocks; repeat binned rows as the set does."""
    frames = Frms6File.at(path)
    count, record = frames.count_frames(settled=False), frames.record
    chip = record.sig_shape[1] // 2
    whole = np.dtype([("header", "V", record.header), ("pixels", PIXEL, record.sig_shape)])
    per_block = max(1, BLOCK_BYTES // record.nbytes)
    total = np.zeros(record.sig_shape, dtype=np.uint64)
    for first in range(0, count, per_block):
        number = min(per_block, count - first)
        at = HEADER_BYTES + first * record.nbytes
        content = read_exactly(path, number * record.nbytes, at, "the dark frames")
        frames.file.check()
        block = np.frombuffer(content, whole)
        total += block["pixels"].sum(axis=0, dtype=np.uint64)
    mean = (total / count).astype(np.float32)
    upper, lower = mean[:, :chip], mean[::-1, : chip - 1 : -1]
    return np.concatenate([upper, lower]).repeat(binning, axis=0)


def _read_gain_map(path: str, pixels: int) -> Array:
    """Read a gain map: a ``.mat`` file, or a text file with a line for each column."""
    size, most = tools.File.at(path).size, TEXT_BYTES * (1024 + pixels)
    if size > most:
        problem, expected = "the gain map is too large", f"at most {most} bytes"
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=f"{size} bytes")
    suffix, expected = os.path.splitext(path)[1].lower(), "a .mat or .csv file"
    if suffix not in {".mat", ".csv"}:
        raise tools.DatasetError("not a gain map", path=path, expected=expected, found=suffix)
    return _read_mat(path) if suffix == ".mat" else _read_csv(path)


def _read_mat(path: str) -> Array:
    matlab = require("scipy.io", "frms6", path)
    place = {"expected": "a file of MATLAB 5 to 7.2"}
    with Guard(path, "the .mat file cannot be read", place), opened(path) as stream:
        gain = matlab.loadmat(stream, variable_names=[MAT_KEY]).get(MAT_KEY)
    if gain is None:
        raise tools.CorruptFileError("no gain map in the .mat file", path=path, expected=MAT_KEY)
    return np.asarray(gain)


def _read_csv(path: str) -> Array:
    """Read numbers separated by ``;``; a line is a column of the frame."""
    with opened(path) as content, io.TextIOWrapper(content, encoding="latin1") as stream:
        rows = [[cell for cell in line.split(";") if cell.strip()] for line in stream]
    try:
        return np.array([row for row in rows if row], dtype=np.float64).T
    except ValueError as error:
        problem = "the gain map is not a table of numbers"
        raise tools.CorruptFileError(problem, path=path, found=str(error)) from error
