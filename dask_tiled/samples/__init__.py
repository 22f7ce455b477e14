"""Sample files: simulated data in genuine file formats, for examples and experiments.

Each function returns the path of a file. Nothing is downloaded: a missing sample is made in a few
seconds, and kept in the user's cache folder. That is ``dask-tiled/samples`` in ``$XDG_CACHE_HOME``
or ``~/.cache`` on Linux, in ``~/Library/Caches`` on macOS, or the folder in dask's configuration,
``dask_tiled.samples-folder``, which the environment variable ``DASK_DASK_TILED__SAMPLES_FOLDER``
sets. Each sample has its own folder there, which may be deleted at any time. All machines make the
same pixels.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dask_tiled.samples.folder import kept

__all__ = ["alloy", "brain", "cells", "gold", "shapes"]


def gold(*, bad_pixels: bool = False) -> Path:
    """Return the path of a 4D-STEM scan of gold crystals on a carbon film, in Merlin's format.

    A MIB file of 60 x 64 positions, 1 nm apart, and frames of 128 x 128 pixels of 0.4 mrad, uint16:
    121 MiB. A beam of 200 kV and 0.8 mrad semi-angle makes a small disk and the rings of gold, 111
    at 10.7 mrad, 200 at 12.3, 220 at 17.4 and more. Thickness deflects the beam by up to 0.15 mrad,
    the gradient of a phase, which the centre of mass recovers.

    Parameters
    ----------
    bad_pixels : bool
        Add the defects of a worn detector: hot pixels (y, x) at (20, 97), (71, 12) and (103, 64),
        dead ones at (9, 30), (45, 110), (88, 41) and (120, 120). This is a separate file.

    Returns
    -------
    pathlib.Path
        Path of ``gold.mib``. Beside it are ``gold.hdr`` and the axes, which MIB cannot hold, as
        :meth:`~dask_tiled.TiledArray.save_axes` saves them.

    Raises
    ------
    DatasetError
        The sample is missing, and cannot be written.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> arr.shape, arr.dtype
    ((60, 64, 128, 128), dtype('uint16'))
    >>> [f"{axis.name}: {axis.scale} {axis.units}" for axis in arr.axes]
    ['scan_y: 1.0 nm', 'scan_x: 1.0 nm', 'y: 0.4 mrad', 'x: 0.4 mrad']
    """
    from dask_tiled.samples.scan import write_gold

    name = "gold-with-bad-pixels" if bad_pixels else "gold"
    return kept(f"{name}-1", "gold.mib", partial(write_gold, bad_pixels=bad_pixels))


def cells() -> Path:
    """Return the path of an image of stained cells, one of the six files of an OME-TIFF set.

    Channels nuclei, membranes and spots, 12 planes 0.6 µm apart, 256 x 256 pixels of 0.2 µm: an
    array (c, z, y, x), uint16, 4.5 MiB. Each file has half of the planes of a channel, and any of
    them opens all. The metadata name microscope, objective and wavelengths.

    Returns
    -------
    pathlib.Path
        Path of ``cells_nuclei_0.ome.tif``.

    Raises
    ------
    DatasetError
        The sample is missing, and cannot be written; or tifffile is not installed.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.open_dataset(dask_tiled.samples.cells()).shape
    (3, 12, 256, 256)
    """
    from dask_tiled.samples.stack import write_cells

    return kept("cells-1", "cells_nuclei_0.ome.tif", write_cells)


def alloy() -> Path:
    """Return the path of a file with several images of copper particles in shells of gold.

    HDF5 as HyperSpy writes it: the spectrum image "EDS", 64 x 64 positions 2 nm apart and 1024
    channels of 10 eV, uint8, which opens first, and the images "HAADF" and "BF" of 256 x 256 pixels
    of 0.5 nm, uint16; 4.3 MiB. Each has axes and microscope metadata.

    Returns
    -------
    pathlib.Path
        Path of ``alloy.hspy``.

    Raises
    ------
    DatasetError
        The sample is missing, and cannot be written; or h5py is not installed.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.open_dataset(dask_tiled.samples.alloy()).shape
    (64, 64, 1024)
    >>> dask_tiled.open_dataset(dask_tiled.samples.alloy(), dataset="Experiments/HAADF").shape
    (256, 256)
    """
    from dask_tiled.samples.spectra import write_alloy

    return kept("alloy-1", "alloy.hspy", write_alloy)


def brain() -> Path:
    """Return the path of a NIfTI volume of a head.

    A phantom of ellipsoids in the shape and the position of the MNI152 template, 91 x 109 x 91
    voxels (z, y, x) of 2 mm, int16, 1.7 MiB: T1-weighted, with a capsule of vitamin E beside the
    right ear. Its affine leads from voxels to right, anterior and superior in mm.

    Returns
    -------
    pathlib.Path
        Path of ``brain.nii``.

    Raises
    ------
    DatasetError
        The sample is missing, and cannot be written.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.open_dataset(dask_tiled.samples.brain()).shape
    (91, 109, 91)
    """
    from dask_tiled.samples.volume import write_brain

    return kept("brain-1", "brain.nii", write_brain)


def shapes() -> Path:
    """Return the path of a sample file of FFCV: 600 images of shapes to classify.

    The fields are "image", RGB of 32 x 32 pixels, uint8, "label", 0 for a circle, 1 for a square
    and 2 for a triangle, and "centre", float32 (y, x) in pixels; 4 MiB.

    Returns
    -------
    pathlib.Path
        Path of ``shapes.beton``.

    Raises
    ------
    DatasetError
        The sample is missing, and cannot be written.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.open_dataset(dask_tiled.samples.shapes(), field="image").shape
    (600, 32, 32, 3)
    """
    from dask_tiled.samples.training import write_shapes

    return kept("shapes-1", "shapes.beton", write_shapes)
