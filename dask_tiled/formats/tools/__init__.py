"""All that a format is made of: one module to import from, also for formats of other packages.

- What a format gives: `Format`, `Description` with `Axis`, `nav_axes` and `sig_axes`, and
  `Corrections` if it has any.
- Files: `File`, `read_head`, `read_exactly`; `read_start` and `is_compressed` for those that are
  compressed as a whole.
- Headers as tables: `Fields`, `read_fields`, `parse_fields`, `check_fields` with `Allowed` and
  `POSITIVE`, `wrong_field`, `read_table`, `size_of`, `Order`.
- Headers as text: `read_pairs`, `parse_pairs`, `read_xml`, `parse_xml`, `plain_tree`, `local_name`.
- Texts of keys as tables: `Keys`, `parse_keys`, `check_lengths`; `Value`, `TEXT`, `WORD`,
  `NUMBER`, `choice`, `whole`, `several`.
- Frame after frame: `Record` with `lay_out`, or `count_frames` and `record_layout`; frames in
  parts: `Part` and `part_layout`.
- One array in C order: `describe_volume`, or `volume_layout`, `compressed_layout`, `check_bytes`,
  `check_shape`; `axis_names`.
- One behind a text header, or in files that it names: `read_text`, `after_lines`, `pixel_files`,
  `pixels_beside`, `axis_along`, `describe_parts`.
- Anything else: `Layout` of pieces, `Piece` one by one or `piece_table` with `axis_columns`;
  `strides_of` for arrays in C or Fortran order.
- Several files: `Member`, `gather`, `in_sequence`, `series_of`; `beside`, `common_stem` and
  `natural_key` go by their names; `named_file` follows what a header names, in its folder.
- Pixels: `plain` as numpy has them, `Decoder` for packed ones, `codec` and `BlockDecoder`, with
  `Block` and `Fetch`, for what is compressed piece by piece; `unwritten` where there are none.
- What can be wrong: `DatasetError`, `CorruptFileError`, `TruncatedFileError`; `check_whole` and
  `choose_dataset` for what users pass, `require` for libraries; `printable` for texts of the
  metadata.
"""

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    check_whole,
    choose_dataset,
    printable,
    require,
)
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.codecs import codec
from dask_tiled.formats.tools.compression import compressed_layout, is_compressed, read_start
from dask_tiled.formats.tools.detached import (
    after_lines,
    axis_along,
    describe_parts,
    pixel_files,
    pixels_beside,
    read_text,
)
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
from dask_tiled.formats.tools.keys import (
    NUMBER,
    TEXT,
    WORD,
    Keys,
    Value,
    check_lengths,
    choice,
    parse_keys,
    several,
    whole,
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
    named_file,
    natural_key,
    series_of,
)
from dask_tiled.formats.tools.unwritten import unwritten
from dask_tiled.formats.tools.volumes import (
    axis_names,
    check_bytes,
    check_shape,
    describe_volume,
    strides_of,
    volume_layout,
)
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.description import Axis, Description, nav_axes, sig_axes
from dask_tiled.model.files import File, read_exactly, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece, axis_columns, piece_table

__all__ = [
    "NUMBER",
    "POSITIVE",
    "TEXT",
    "WORD",
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
    "Keys",
    "Layout",
    "Member",
    "Order",
    "Part",
    "Piece",
    "Record",
    "TruncatedFileError",
    "Value",
    "after_lines",
    "axis_along",
    "axis_columns",
    "axis_names",
    "beside",
    "check_bytes",
    "check_fields",
    "check_lengths",
    "check_shape",
    "check_whole",
    "choice",
    "choose_dataset",
    "codec",
    "common_stem",
    "compressed_layout",
    "count_frames",
    "describe_parts",
    "describe_volume",
    "gather",
    "in_sequence",
    "is_compressed",
    "lay_out",
    "local_name",
    "named_file",
    "natural_key",
    "nav_axes",
    "parse_fields",
    "parse_keys",
    "parse_pairs",
    "parse_xml",
    "part_layout",
    "piece_table",
    "pixel_files",
    "pixels_beside",
    "plain",
    "plain_tree",
    "printable",
    "read_exactly",
    "read_fields",
    "read_head",
    "read_pairs",
    "read_start",
    "read_table",
    "read_text",
    "read_xml",
    "record_layout",
    "require",
    "series_of",
    "several",
    "sig_axes",
    "size_of",
    "strides_of",
    "unwritten",
    "volume_layout",
    "whole",
    "wrong_field",
]
