"""Writer of Gatan K2 in-situ sets: eight `.bin` files, one per sector, and a `.gtg` file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.dm_tags import write_tags
from dask_tiled.testing.frames import Frames, StrPath, iter_frames

SHAPE = (1860, 2048)
_SECTORS, _ROWS, _COLUMNS = 8, 930, 16
_PER_FRAME = 32  # blocks per sector and frame: 2 rows of 16


def write_k2is(
    stem: StrPath,
    frames: Frames,
    *,
    scan_shape: tuple[int, int] | None = None,
    shutter_from: int = 0,
    late: Sequence[int] = (0,) * _SECTORS,
    early: Sequence[int] = (0,) * _SECTORS,
    first_id: int = 17,
    gtg: bool = True,
) -> list[Path]:
    """Write a Gatan K2 in-situ set of (1860, 2048) frames of integers below 4096.

    Parameters
    ----------
    stem
        Common start of the paths: ``scan_`` gives ``scan_1.bin`` to ``scan_8.bin`` and
        ``scan_.gtg``.
    scan_shape
        Shape of the scan, (y, x), in the ``.gtg`` file; by default left out, as for a time series.
    shutter_from
        Number of the first frame flagged with an open shutter. The camera sets the flag one frame
        late, so the scan begins one frame before.
    late, early
        Number of missing blocks at the start and at the end of each sector: sectors begin and end
        independently, at any block.
    first_id
        Frame number of the first frame.
    gtg
        Whether a ``.gtg`` file is written.
    """
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}{k + 1}.bin") for k in range(_SECTORS)]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for number, frame in enumerate(iter_frames(frames)):
            packed = _pack(frame)
            active = number >= shutter_from
            for k, file in enumerate(files):
                for i in range(_PER_FRAME):
                    count = number * _PER_FRAME + i
                    if count >= late[k]:
                        file.write(_header(count, first_id + number, i, active=active))
                        file.write(packed[k, i].tobytes())
        for file, blocks in zip(files, early, strict=True):
            file.truncate(file.tell() - blocks * (40 + packed[0, 0].size))
    if gtg:
        tags: dict[str, Any] = {"Microscope": {"Voltage": np.uint32(200000)}}
        if scan_shape is not None:
            y, x = map(np.uint32, scan_shape)
            tags["SI Dimensions"] = {"Size X": x, "Size Y": y}
        write_tags(stem.with_name(stem.name + ".gtg"), tags)
    return paths


def _header(count: int, frame_id: int, i: int, *, active: bool) -> bytes:
    row, column = divmod(i, 16)
    left, top = _COLUMNS * (15 - column), _ROWS * row
    box = left, top, left + _COLUMNS - 1, top + _ROWS - 1
    fields = 0xFFFF0055, 1, int(active), 5000 + count, 256, SHAPE[0], frame_id, *box, 0x5758
    return struct.pack(">I4xBB6xIHHI4HI", *fields)


def _pack(frame: Array) -> Array:
    """Pack pixels into 12 bits each; the result has the shape (sector, block, bytes)."""
    if frame.shape != SHAPE or frame.dtype.kind not in "iu":
        raise ValueError(f"expected integers of shape {SHAPE}, found {frame.dtype} {frame.shape}")
    if frame.min() < 0 or frame.max() > 0xFFF:
        raise ValueError(f"expected 0 to 4095, found {frame.min()} to {frame.max()}")
    # From (block row, row, sector, block column, pixel); the blocks of a row run right to left.
    boxes = frame.astype(np.uint16).reshape(2, _ROWS, _SECTORS, 16, _COLUMNS)
    blocks = boxes[:, :, :, ::-1].transpose(2, 0, 3, 1, 4).reshape(_SECTORS, _PER_FRAME, -1, 2)
    even, odd = blocks[..., 0], blocks[..., 1]
    packed = np.stack([even & 0xFF, even >> 8 | (odd & 0xF) << 4, odd >> 4], axis=-1)
    return packed.astype(np.uint8).reshape(_SECTORS, _PER_FRAME, -1)
