"""Conventions of HDF5 files, and how to add one.

A convention is one module, with one class derived from
:class:`~dask_tiled.formats.hdf5.convention.Convention`, and a row in ``CONVENTIONS``. It
overrides the methods that it needs:

- ``meant`` lists the arrays that a file designates, among all that it holds, and the source;
- ``calibration`` returns the axes of an array, and the number of signal axes;
- ``scan`` returns the shape of the scan, if frames are along one axis;
- ``facts`` names the groups with facts about an array: attributes and small datasets;
- ``instrument`` locates facts about the instrument, by names of the vocabulary;
- ``refuse`` raises an error that explains why an object is not an array.

All of them get the open file as a :class:`~dask_tiled.formats.hdf5.tree.Tree`: ``tree.look(group,
path)`` follows links within the folder and returns None for dangling ones,
``tree.read(dataset)`` reads a small dataset, and ``attribute(item, name)`` of
:mod:`dask_tiled.formats.hdf5.attributes` an attribute, or None if it is damaged. A method that does
not recognise an array raises nothing and leaves it to the next convention. Conventions do not deal
with pixels: their storage is analysed in the same way for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_tiled.formats.hdf5.convention import Convention
from dask_tiled.formats.hdf5.conventions.axes_in_json import NionSwift, Vigra
from dask_tiled.formats.hdf5.conventions.delmic import Delmic
from dask_tiled.formats.hdf5.conventions.dimension_scales import DimensionScales
from dask_tiled.formats.hdf5.conventions.dm5 import Dm5
from dask_tiled.formats.hdf5.conventions.eiger import Eiger
from dask_tiled.formats.hdf5.conventions.emd import Emd
from dask_tiled.formats.hdf5.conventions.h5oina import H5oina
from dask_tiled.formats.hdf5.conventions.hyperspy import HyperSpy
from dask_tiled.formats.hdf5.conventions.image import ColourImages
from dask_tiled.formats.hdf5.conventions.imaris import Imaris
from dask_tiled.formats.hdf5.conventions.nexus import Nexus
from dask_tiled.formats.hdf5.conventions.velox import Velox
from dask_tiled.model.instrument import entries

CONVENTIONS: Sequence[Convention] = (
    Velox(),
    Delmic(),
    HyperSpy(),
    Dm5(),
    Nexus(),
    ColourImages(),
    Emd(),
    Eiger(),
    H5oina(),
    Imaris(),
    Vigra(),
    NionSwift(),
    DimensionScales(),
)
"""In order of precedence."""


INSTRUMENT = entries({"hdf5/facts": [row for one in CONVENTIONS for row in one.instrument]})
"""Instrument entries of all conventions."""
