"""A head phantom, T1-weighted, in the space of the MNI152 template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tiled.formats.nifti.header import NIFTI_1, TRANSFORMS

Floats = NDArray[np.float64]

SHAPE = (91, 109, 91)
STEP = 2.0  # mm
ORIGIN = (-90.0, -126.0, -72.0)  # of the first voxel: right, anterior, superior
AIR, SKIN, BONE, FLUID, GREY, WHITE, CAPSULE = 0, 420, 60, 150, 500, 720, 1000
NOISE = 12


def draw_head() -> NDArray[np.int16]:
    """Return the brightness of voxels along x, y and z in mm."""
    x, y, z = (
        (origin + STEP * np.arange(n)).reshape([-1 if k == axis else 1 for k in range(3)])
        for axis, (origin, n) in enumerate(zip(ORIGIN, SHAPE, strict=True))
    )

    def inside(centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Floats:
        """Return a distance measure, below 1 inside an ellipsoid, and 1 on it."""
        parts = zip((x, y, z), centre, radii, strict=True)
        return np.sqrt(sum(((at - middle) / radius) ** 2 for at, middle, radius in parts))

    head = np.full(SHAPE, AIR, np.int16)
    skull, brain = inside((0, -16, 12), (76, 96, 82)), inside((0, -18, 14), (66, 84, 62))
    head[skull < 1] = SKIN
    head[inside((0, 80, -32), (9, 14, 16)) < 1] = SKIN  # the nose
    for side in (-1, 1):
        head[inside((80 * side, -18, -22), (6, 12, 17)) < 1] = SKIN  # the ears
    head[skull < 0.93] = BONE
    head[brain < 1.05] = FLUID
    # Folds of the cortex, and the gap between its halves.
    folds = np.sin(x / 4.3) * np.sin(y / 5.1 + 1) + np.sin(z / 4.7) * np.cos(y / 6.3)
    cortex = brain - 0.045 * folds
    halves = (np.abs(x) > 2) | (z < 44)
    head[(cortex < 0.97) & halves] = GREY
    head[(cortex < 0.86) & halves] = WHITE
    for side in (-1, 1):
        head[inside((13 * side, 2, 4), (9, 22, 12)) < 1] = GREY  # the basal ganglia
        head[inside((8 * side, -14, 22), (6, 32, 8)) < 1] = FLUID  # the ventricles
        head[inside((32 * side, 54, -28), (12, 12, 12)) < 1] = FLUID  # the eyes
        lobe = inside((22 * side, -64, -38), (26, 20, 17)) + 0.06 * np.sin(z / 1.9)
        head[lobe < 1] = GREY  # the cerebellum
        head[lobe < 0.7] = WHITE
    head[inside((0, -30, -42), (11, 12, 30)) < 1] = WHITE  # the brain stem
    head[inside((86, -18, -2), (4, 4, 6)) < 1] = CAPSULE  # marks the right side
    noise = np.random.default_rng(7).integers(-NOISE, NOISE + 1, SHAPE, dtype=np.int16)
    return np.clip(head + noise, 0, None).astype(np.int16)


def write_brain(folder: Path) -> None:
    """Write ``brain.nii``."""
    header = np.zeros((), NIFTI_1.newbyteorder("<"))
    fields: dict[str, Any] = {
        "sizeof_hdr": NIFTI_1.itemsize,
        "dim": (len(SHAPE), *SHAPE, 1, 1, 1, 1),
        "datatype": 4,
        "bitpix": 16,
        "pixdim": (1, STEP, STEP, STEP, 1, 1, 1, 1),
        "vox_offset": NIFTI_1.itemsize + 4,
        "scl_slope": 1,
        "xyzt_units": 2,
        "descrip": b"simulated T1-weighted head",
        "qform_code": TRANSFORMS.index("mni"),
        "sform_code": TRANSFORMS.index("mni"),
        "magic": b"n+1",
    }
    for k, axis in enumerate("xyz"):
        fields[f"qoffset_{axis}"] = ORIGIN[k]
        fields[f"srow_{axis}"] = (*(STEP * (k == n) for n in range(3)), ORIGIN[k])
    for name, value in fields.items():
        header[name] = value
    voxels = draw_head().astype("<i2").tobytes(order="F")
    (folder / "brain.nii").write_bytes(header.tobytes() + bytes(4) + voxels)
