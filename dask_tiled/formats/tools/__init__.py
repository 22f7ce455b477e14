"""Tools for writing formats: common names, and six modules with the rest.

``tools.header`` reads binary headers and keys by tables; ``tools.text`` XML, pairs, literals and
dates; ``tools.files`` finds files that belong together; ``tools.frames`` lays out consecutive
frames; ``tools.volume`` lays out one array in C order; ``tools.events`` lays out streams of events.
Formats in other packages use them too.
"""

from dask_tiled.apart.calls import safely
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, printable
from dask_tiled.files.file import File, read_head
from dask_tiled.formats.registry import Format
from dask_tiled.formats.tools.files import beside
from dask_tiled.formats.tools.frames import Record, beside_frames, lay_out, record_layout
from dask_tiled.formats.tools.header import (
    POSITIVE,
    Fields,
    Order,
    check_fields,
    parse_fields,
    read_fields,
    record_dtype,
    size_of,
    wrong_field,
)
from dask_tiled.formats.tools.volume import describe_volume
from dask_tiled.model.axes import Axis
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.decoders import BlockDecoder, Decoder, EventDecoder, plain
from dask_tiled.model.description import Description
from dask_tiled.model.headers import Headers, WrongHeader, stored_headers
from dask_tiled.model.instrument import Entry
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece
from dask_tiled.model.tile_request import TileRequest

__all__ = [
    "POSITIVE",
    "Axis",
    "BlockDecoder",
    "Corrections",
    "CorruptFileError",
    "DatasetError",
    "Decoder",
    "Description",
    "Entry",
    "EventDecoder",
    "Fields",
    "File",
    "Format",
    "Headers",
    "Layout",
    "Order",
    "Piece",
    "Record",
    "TileRequest",
    "TruncatedFileError",
    "WrongHeader",
    "beside",
    "beside_frames",
    "check_fields",
    "describe_volume",
    "lay_out",
    "parse_fields",
    "plain",
    "printable",
    "read_fields",
    "read_head",
    "record_dtype",
    "record_layout",
    "safely",
    "size_of",
    "stored_headers",
    "wrong_field",
]
