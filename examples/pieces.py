"""Three layouts that need `from_pieces`: bricks, interleaved files, and an uneven split.

Run it without arguments: it writes small files to a temporary folder, opens and checks them.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import dask.array as da
import numpy as np

import dask_tiled
from dask_tiled import Piece


def open_bricks(folder: Path) -> da.Array:
    """Open a volume of 4 x 6 x 8 pixels, stored as bricks.

    Each layer has its own file. As in a wall, odd layers are shifted by half a brick, so that no
    chunk grid fits.
    """
    pieces = []
    for z in range(4):
        joints = [0, 4, 8] if z % 2 == 0 else [0, 2, 6, 8]
        offset = 0
        for first, stop in pairwise(joints):
            shape = (1, 6, stop - first)
            pieces.append(Piece(folder / f"layer_{z}.raw", (z, 0, first), shape, offset))
            offset += 2 * 6 * (stop - first)
    return dask_tiled.from_pieces(pieces, shape=(4, 6, 8), dtype="<u2")


def open_in_turn(folder: Path, n_frames: int = 10) -> da.Array:
    """Open frames that a fast camera wrote to three disks in turn; pieces are given as columns.

    Each file has a header of 16 bytes.
    """
    frame = np.arange(n_frames)
    columns = {
        "file": frame % 3,
        "start": np.column_stack([frame, 0 * frame, 0 * frame]),
        "shape": (1, 6, 8),
        "offset": 16 + frame // 3 * 6 * 8,
    }
    files = [folder / f"disk_{k}.raw" for k in range(3)]
    return dask_tiled.from_pieces(columns, shape=(n_frames, 6, 8), dtype="u1", files=files)


def open_uneven(folder: Path) -> da.Array:
    """Open 17 planes in one file and 13 in another, of different dtype and byte order."""
    pieces = [
        Piece(folder / "first.raw", (0, 0, 0), (17, 6, 8)),
        Piece(folder / "rest.raw", (17, 0, 0), (13, 6, 8), decoder=1),
    ]
    return dask_tiled.from_pieces(
        pieces, shape=(30, 6, 8), dtype="u2", decoders=["u1", ">u2"], chunks=(5, 6, 8)
    )


def main() -> None:
    """Write the files, open them, and compare."""
    numbers = np.arange(30 * 6 * 8, dtype="<u2").reshape(30, 6, 8) % 251
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for z in range(4):
            joints = [0, 4, 8] if z % 2 == 0 else [0, 2, 6, 8]
            bricks = [numbers[z, :, a:b] for a, b in pairwise(joints)]
            (folder / f"layer_{z}.raw").write_bytes(b"".join(b.tobytes() for b in bricks))
        np.testing.assert_array_equal(open_bricks(folder).compute(), numbers[:4])
        for k in range(3):
            frames = numbers[k:10:3].astype("u1").tobytes()
            (folder / f"disk_{k}.raw").write_bytes(b"a header, so be it"[:16] + frames)
        np.testing.assert_array_equal(open_in_turn(folder).compute(), numbers[:10])
        (folder / "first.raw").write_bytes(numbers[:17].astype("u1").tobytes())
        (folder / "rest.raw").write_bytes(numbers[17:].astype(">u2").tobytes())
        np.testing.assert_array_equal(open_uneven(folder).compute(), numbers)
    print("bricks, interleaved files and an uneven split: all pixels are equal")


if __name__ == "__main__":
    main()
