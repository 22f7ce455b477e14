"""The conventions that HDF5 files follow, and how to add one.

A convention is one module, with one class derived from
:class:`~dask_tiled.formats.hdf5.convention.Convention`, and a row in ``CONVENTIONS``. It says what
it knows, and inherits the rest:

- ``meant`` lists the arrays that a file means, out of all that were found in it, and what told so;
- ``calibration`` returns an axis for each axis of an array, and how many are signal axes;
- ``scan`` returns the shape of the scan where the frames lie in one row;
- ``facts`` names the groups that tell of an array, whose attributes and small datasets are read;
- ``instrument`` lists where the facts tell of the instrument, by the words of the vocabulary;
- ``refuse`` raises an error that says why something is no array.

All of them get the open file as a :class:`~dask_tiled.formats.hdf5.tree.Tree`: ``tree.look(group,
path)`` follows links within the folder and returns None where they lead nowhere,
``tree.read(dataset)`` reads a small dataset, and ``attribute(item, name)`` of
:mod:`dask_tiled.formats.hdf5.attributes` an attribute, or None where it is damaged. What a method
does not recognise it leaves to the next convention, and raises nothing. Pixels are not its concern:
how they are stored, packed or spread over files is found out for all conventions alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_tiled.formats.hdf5.convention import Convention
from dask_tiled.formats.hdf5.conventions.eiger import Eiger
from dask_tiled.formats.hdf5.conventions.emd import Emd
from dask_tiled.formats.hdf5.conventions.h5oina import H5oina
from dask_tiled.formats.hdf5.conventions.hyperspy import HyperSpy
from dask_tiled.formats.hdf5.conventions.nexus import Nexus
from dask_tiled.formats.hdf5.conventions.velox import Velox
from dask_tiled.formats.tools import Entry

CONVENTIONS: Sequence[Convention] = (
    Velox(),
    HyperSpy(),
    Nexus(),
    Emd(),
    Eiger(),
    H5oina(),
)
"""In the order in which they are asked: the first that knows something is believed."""


def _instrument() -> Mapping[str, Sequence[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for convention in CONVENTIONS:
        for name, path, unit, read in convention.instrument:
            entries.setdefault(name, []).append(Entry(f"hdf5/facts/{path}", unit, read))
    return entries


INSTRUMENT = _instrument()
"""Entries of the instrument, of all conventions."""
