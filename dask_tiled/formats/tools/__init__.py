"""All that a format is made of: one module to import from, also for formats of other packages."""

# fmt: off
# isort: off
from dask_tiled.errors import (
    CorruptFileError, DatasetError, OutsideFolderError, TruncatedFileError, check_whole,
    choose_dataset, printable, require,
)
from dask_tiled.formats.registry import Format
from dask_tiled.codecs.chunks import codec, unwritten
from dask_tiled.codecs.limits import check_room, most_bytes
from dask_tiled.codecs.packed_files import (
    content_reader, is_compressed, packed_by, read_start, unpacker,
)
from dask_tiled.formats.tools.header import (
    NUMBER, POSITIVE, TEXT, WORD, Allowed, Fields, Keys, Order, Value, check_fields, check_lengths,
    choice, parse_fields, parse_keys, read_fields, read_table,
    record_dtype, several, size_of, whole, wrong_field,
)
from dask_tiled.formats.tools.text import (
    after_lines, local_name, local_time, parse_literal, parse_pairs, parse_xml, plain_tree,
    read_pairs, read_text, read_xml, serial_date, since_1970,
)
from dask_tiled.formats.tools.frames import (
    Part, Record, beside_frames, count_frames, lay_out, part_layout, record_layout,
)
from dask_tiled.formats.tools.files import (
    Member, beside, common_stem, gather, in_sequence, named_file, natural_key,
)
from dask_tiled.formats.tools.volume import (
    anatomical, axis_along, axis_names, check_bytes, describe_volume, pixel_files,
    pixels_beside, volume_layout,
)
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.description import Description
from dask_tiled.model.files import File, read_exactly, read_head
from dask_tiled.model.headers import Headers, WrongHeader, stored_headers
from dask_tiled.model.runs import run_table
from dask_tiled.model.instrument import Entry, converted
from dask_tiled.model.layout import Layout
from dask_tiled.model.paths import absolute, file_size, is_file, named_in, names_in, real
from dask_tiled.model.files import opened
from dask_tiled.model.tile_request import TileRequest
from dask_tiled.model.pieces import Piece, axis_columns, piece_table, strides_of

__all__ = [
    "NUMBER", "POSITIVE", "TEXT", "WORD", "Allowed", "Axis", "Block", "BlockDecoder", "Corrections",
    "CorruptFileError", "DatasetError", "Decoder", "Description", "Entry", "Fetch", "Fields",
    "File", "Format", "Headers", "Keys", "Layout", "Member", "Order", "OutsideFolderError", "Part",
    "Piece", "Record", "TileRequest", "TruncatedFileError", "Value", "WrongHeader", "absolute",
    "after_lines", "anatomical",
    "axis_along", "axis_columns", "axis_names", "beside", "beside_frames",
    "check_bytes", "check_fields", "check_lengths", "check_room", "check_whole", "choice",
    "choose_dataset", "codec", "common_stem", "content_reader", "converted", "count_frames",
    "describe_volume", "file_size", "gather", "in_sequence",
    "is_compressed", "is_file", "lay_out", "local_name", "local_time", "most_bytes", "named_file",
    "named_in", "names_in", "natural_key", "nav_axes", "opened", "packed_by", "parse_fields",
    "parse_keys",
    "parse_literal", "parse_pairs", "parse_xml", "part_layout", "piece_table", "pixel_files",
    "pixels_beside", "plain", "plain_tree", "printable", "read_exactly", "read_fields", "read_head",
    "read_pairs", "read_start", "read_table", "read_text", "read_xml", "real", "record_dtype",
    "record_layout", "require", "run_table", "serial_date", "several", "sig_axes", "since_1970",
    "size_of", "stored_headers", "strides_of", "unpacker", "unwritten", "volume_layout", "whole",
    "wrong_field",
]
# fmt: on
