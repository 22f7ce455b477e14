"""All that a format is made of: one module to import from, also for formats of other packages.

- What a format gives: `Format`, `Description` with `Axis`, `nav_axes` and `sig_axes`, and
  `Corrections` if it has any.
- Files: `File`, `read_head`, `read_exactly`; `read_start` and `is_compressed` for those that are
  compressed as a whole.
- Headers as tables: `Fields`, `read_fields`, `parse_fields`, `check_fields` with `Allowed` and
  `POSITIVE`, `wrong_field`, `read_table`, `size_of`, `Order`.
- Headers as text: `read_pairs`, `parse_pairs`, `read_xml`, `parse_xml`, `plain_tree`, `local_name`.
- Frame after frame: `Record` with `lay_out`, or `count_frames` and `record_layout`; frames in
  parts: `Part` and `part_layout`.
- One array in C order: `describe_volume`, or `volume_layout`, `compressed_layout`, `check_bytes`,
  `check_shape`.
- Anything else: `Layout` of pieces, `Piece` one by one or `piece_table` with `axis_columns`.
- Several files: `Member`, `gather`, `in_sequence`, `series_of`; `beside`, `common_stem` and
  `natural_key` go by their names.
- Pixels: `plain` as numpy has them, `Decoder` for packed ones, `codec` and `BlockDecoder`, with
  `Block` and `Fetch`, for what is compressed piece by piece.
- What can be wrong: `DatasetError`, `CorruptFileError`, `TruncatedFileError`; `check_whole` and
  `choose_dataset` for what users pass.
"""

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    check_whole,
    choose_dataset,
)
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.codecs import codec
from dask_tiled.formats.tools.compression import compressed_layout, is_compressed, read_start
from dask_tiled.formats.tools.headers import (
    POSITIVE,
    Allowed,
    Fields,
    Order,
    check_fields,
    parse_fields,
    read_fields,
    read_table,
    size_of,
    wrong_field,
)
from dask_tiled.formats.tools.markup import (
    local_name,
    parse_pairs,
    parse_xml,
    plain_tree,
    read_pairs,
    read_xml,
)
from dask_tiled.formats.tools.records import (
    Part,
    Record,
    count_frames,
    lay_out,
    part_layout,
    record_layout,
)
from dask_tiled.formats.tools.series import (
    Member,
    beside,
    common_stem,
    gather,
    in_sequence,
    natural_key,
    series_of,
)
from dask_tiled.formats.tools.volumes import (
    check_bytes,
    check_shape,
    describe_volume,
    volume_layout,
)
from dask_tiled.model.coded import Block, Fetch
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.description import Axis, Description, nav_axes, sig_axes
from dask_tiled.model.files import File, read_exactly, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece, axis_columns, piece_table

__all__ = [
    "POSITIVE",
    "Allowed",
    "Axis",
    "Block",
    "BlockDecoder",
    "Corrections",
    "CorruptFileError",
    "DatasetError",
    "Decoder",
    "Description",
    "Fetch",
    "Fields",
    "File",
    "Format",
    "Layout",
    "Member",
    "Order",
    "Part",
    "Piece",
    "Record",
    "TruncatedFileError",
    "axis_columns",
    "beside",
    "check_bytes",
    "check_fields",
    "check_shape",
    "check_whole",
    "choose_dataset",
    "codec",
    "common_stem",
    "compressed_layout",
    "count_frames",
    "describe_volume",
    "gather",
    "in_sequence",
    "is_compressed",
    "lay_out",
    "local_name",
    "natural_key",
    "nav_axes",
    "parse_fields",
    "parse_pairs",
    "parse_xml",
    "part_layout",
    "piece_table",
    "plain",
    "plain_tree",
    "read_exactly",
    "read_fields",
    "read_head",
    "read_pairs",
    "read_start",
    "read_table",
    "read_xml",
    "record_layout",
    "series_of",
    "sig_axes",
    "size_of",
    "volume_layout",
    "wrong_field",
]
