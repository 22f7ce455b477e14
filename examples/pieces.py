"""Three layouts that no format describes: bricks, files in turn, and an uneven split.

Run it without arguments: it writes small files below a temporary folder, opens them, and checks.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import dask.array as da
import numpy as np

import dask_tiled
from dask_tiled import Piece


def open_bricks(folder: Path) -> da.Array:
    """Open a volume of 4 x 6 x 8 pixels whose bricks are laid like those of a wall.

    Every layer has a file of its own. In odd layers the joints are half a brick further on, so
    that no grid of chunks could follow them.
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
    """Open frames that a fast camera has written to three disks in turn, columns instead of pieces.

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
    """Open 17 planes in one file and 13 in another, which has another type and byte order."""
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
    print("bricks, files in turn and uneven splits are read as they should be")


if __name__ == "__main__":
    main()
