"""The documented table of operations and the axes that they keep is up to date.

Run this module to rewrite the table.
"""

import tempfile
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from dask_tiled import map_tiles, open_dataset, tiles
from dask_tiled.opened.axes import shown_of
from dask_tiled.testing import counting_frames, write_npy

PAGE = Path(__file__).parents[2] / "docs" / "labels_table.rst.inc"
SHAPE = 6, 8, 4, 10
CALIBRATION = {"scan_y": "0.5 nm", "scan_x": "0.5 nm", "y": "2 mrad", "x": "2 mrad"}
UNKNOWN, NONE = "?", "no axes"

OPERATIONS = {
    "Parts": """
        arr[1:, 2, :, ::2]
        arr[:, ::-1]
        da.flip(arr, 0)
        arr[[1, 3, 5]]
        arr[[1, 0, 5]]
        arr[np.arange(6) % 2 == 0]
        arr[arr.sum((1, 2, 3)) > 5]
        arr[arr > 5]
        da.take(arr, [0, 4], axis=3)
        da.compress([True, False, True], arr, axis=0)
        arr.vindex[[0, 1], [2, 3]]
        arr.blocks[0]
    """,
    "Sums and other reductions": """
        arr.sum((2, 3))
        arr.mean(0, keepdims=True)
        np.std(arr, axis=(0, 1))
        arr.argmax(3)
        np.median(arr, axis=0)
        da.nanmedian(arr, axis=(2, 3))
        da.quantile(arr, 0.9, axis=0)
        da.quantile(arr, [0.1, 0.9], axis=0)
        da.percentile(arr[0, 0, 0], [10, 90])
        da.topk(arr, 2, axis=0)
        da.coarsen(np.sum, arr, {0: 2, 1: 2})
        da.histogram(arr, bins=4, range=(0, 8))[0]
        da.cov(arr[0, 0])
    """,
    "Pixel by pixel": """
        np.sqrt(arr) / 3 + 1
        (arr - arr.mean((0, 1))).astype("f4")
        da.where(arr > 3, arr, 0)
        da.clip(arr, 0, 9)
        da.nan_to_num(arr)
        da.isin(arr, [1, 2])
        da.digitize(arr, np.array([1, 2]))
        da.select([arr > 3], [arr])
    """,
    "Along an axis": """
        arr.cumsum(0)
        da.cumprod(arr, 0)
        da.diff(arr, axis=1)
        da.diff(arr, n=2, axis=1)
        da.gradient(arr.astype("f4"), axis=1)
        da.roll(arr, 2, axis=1)
        da.pad(arr, ((1, 1), (0, 0), (0, 0), (0, 0)))
        da.repeat(arr, 2, axis=1)
        da.sum(arr[1:] - arr[:-1], axis=(2, 3))
    """,
    "Other shapes": """
        arr.T
        da.moveaxis(arr, 0, -1)
        da.swapaxes(arr, 0, 1)
        da.rot90(arr[0, 0])
        arr.reshape(48, 4, 10)
        arr.reshape(6, 4, 2, 4, 10)
        arr.sum((2, 3))[:, None]
        da.squeeze(arr[:1], axis=0)
        da.broadcast_to(arr[0], (3, 8, 4, 10))
        arr.rechunk(3)
    """,
    "Several arrays": """
        da.concatenate([arr[:2], arr[2:]])
        da.concatenate([arr[:2], arr[3:]])
        da.stack([arr[0], arr[1]])
        da.block([[arr[0, 0]], [arr[0, 1]]])
        arr.astype("f4") @ np.ones((10, 3), "f4")
        da.tensordot(arr, np.ones((4, 10)), 2)
        da.einsum("abyx->ab", arr)
        da.einsum("abyx,yx->ba", arr, np.ones((4, 10)))
        da.outer(arr[0, 0, 0], arr[0, 0, 0])
    """,
    "Fourier transforms": """
        da.fft.fft(arr, axis=1)
        da.fft.fftshift(da.fft.fft(arr, axis=1), axes=1)
        da.fft.ifft(da.fft.fft(arr, axis=1), axis=1)
        da.fft.rfft(arr, axis=1)
        da.fft.irfft(da.fft.rfft(arr, axis=1), axis=1)
        da.fft.fft2(arr)
        da.fft.fftshift(arr, axes=1)
    """,
    "Functions of your own": """
        arr.map_blocks(lambda block: block + 1)
        arr.map_blocks(np.flip)
        arr.map_blocks(np.sum, axis=(2, 3), drop_axis=(2, 3))
        arr.map_blocks(lambda block: block[..., :2], chunks=(*arr.chunks[:3], (2,)))
        arr.map_overlap(lambda block: block, depth=1, boundary="reflect")
        da.blockwise(np.transpose, "ba", arr.sum((2, 3)), "ab")
        da.apply_gufunc(np.ptp, "(x)->()", arr, axis=-1)
        da.apply_along_axis(np.sum, 3, arr, dtype="f8", shape=())
        map_tiles(lambda tile, info: tile + 1, arr)
        map_tiles(lambda tile, info: tile.sum((1, 2)), arr)
        map_tiles(lambda tile, info: tile.sum(1), arr)
    """,
    "Jobs of the field": """
        tiles.apply_masks(arr, np.ones((2, 4, 10)))
        tiles.center_of_mass(arr)
    """,
    "Results that exist": """
        arr.sum((2, 3)).persist()
        da.from_array(arr.sum((2, 3)).compute())
    """,
}
"""Expressions by kind, one per line."""
NAMES = {"da": da, "np": np, "tiles": tiles, "map_tiles": map_tiles}


def opened(folder):
    path = write_npy(folder / "scan.npy", counting_frames(SHAPE, "uint16"))
    return open_dataset(path, chunks=(3, 8, 4, 10)).with_axes(CALIBRATION)


def axes_of(found, arr):
    """Return the axes of a result as text, with their new labels and steps."""
    shown = shown_of(found)
    units = f"; values in {shown.units}" if shown.units else ""
    return (", ".join(text_of(axis, arr) for axis in shown.axes) or NONE) + units


def text_of(axis, arr):
    if axis is None:
        return UNKNOWN
    if axis in arr.axes:
        return axis.name
    more = axis.listed + axis.steps
    return axis.name + more if more else f"*{axis.name}*"


def table(folder):
    arr = opened(folder)
    lines = [".. Written by tests/labels/test_labels_table.py; do not edit.", ""]
    for kind, typed in OPERATIONS.items():
        lines += [kind, '"' * len(kind), "", ".. list-table::", "   :header-rows: 1", ""]
        lines += ["   * - operation", "     - axes of the result"]
        for line in typed.split("\n"):
            if code := line.strip():
                found = eval(code, NAMES | {"arr": arr})  # noqa: S307 - lines of this module
                lines += [f"   * - ``{code}``", f"     - {axes_of(found, arr)}"]
        lines.append("")
    return "\n".join(lines)


@pytest.mark.thorough
def test_the_table_is_up_to_date(tmp_path):
    again = "run python tests/labels/test_labels_table.py"
    assert PAGE.read_text("utf8") == table(tmp_path), again


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(table(Path(made)), "utf8")
