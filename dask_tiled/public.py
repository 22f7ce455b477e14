"""All public names; the package imports them when the first one is used."""

from __future__ import annotations

import dask_tiled.samples as samples  # noqa: PLR0402 - the package would import this module
import dask_tiled.tiles as tiles  # noqa: PLR0402 - as above
import dask_tiled.virtual as virtual  # noqa: PLR0402 - as above
from dask_tiled.arriving.progressive import ProgressiveState, progressive
from dask_tiled.batch.running import convert_all
from dask_tiled.batch.verifying import verify_all
from dask_tiled.blocks.iteration import ArrayBlock, iter_blocks
from dask_tiled.bridges.hyperspy import file_reader, to_hyperspy
from dask_tiled.bridges.libertem import from_libertem
from dask_tiled.bridges.xarray import to_xarray
from dask_tiled.cataloguing.catalogue import Catalogue, catalogue
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.checkpoints.run import Progress, run
from dask_tiled.converting.convert import convert
from dask_tiled.engine.jobs import TileInfo
from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    DoubtError,
    DoubtWarning,
    MissingFileError,
    MissingFramesWarning,
    OutsideFolderError,
    RemoteError,
    StaleFileError,
    StreamError,
    TilingError,
    TruncatedFileError,
    UnknownFormatError,
    VerificationError,
)
from dask_tiled.explaining.explanation import Explanation, Measured, OnCluster, explain
from dask_tiled.exploring.explore import explore
from dask_tiled.export.virtual.as_zarr import as_zarr
from dask_tiled.export.virtual.references import to_references
from dask_tiled.export.zarr.verification import verify_zarr
from dask_tiled.export.zarr.zarr_export import to_zarr
from dask_tiled.formats.registry import Format, formats, register_format
from dask_tiled.live.progress import StreamProgress
from dask_tiled.live.recording import Recording, record
from dask_tiled.measuring.bad_pixels import find_bad_pixels
from dask_tiled.measuring.calibrating import calibrate
from dask_tiled.model.axes import Axis
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.instrument import Fact, Instrument
from dask_tiled.model.pieces import Piece
from dask_tiled.opened.tile_functions import map_tiles, reduce_tiles
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import open_dataset, scheme_of
from dask_tiled.opening.by_hand import from_pieces
from dask_tiled.opening.datasets import open_datasets
from dask_tiled.opening.describing import describe
from dask_tiled.opening.event_lists import events
from dask_tiled.opening.frame_headers import frame_facts
from dask_tiled.opening.series import open_series
from dask_tiled.opening.volumes import open_volumes
from dask_tiled.showing.show import show
from dask_tiled.tiling.negotiation import TilingRequest
from dask_tiled.tiling.scheme import TilingScheme, negotiate
from dask_tiled.training.batches import iter_batches
from dask_tiled.training.beton import to_beton
from dask_tiled.training.fields import ImageField
from dask_tiled.training.patterns import Patterns
from dask_tiled.training.tar import TarSamples

# fmt: off
__all__ = [
    "ArrayBlock", "Axis", "Catalogue", "CatalogueRow", "Corrections", "CorruptFileError",
    "DatasetError", "Description", "Doubt", "DoubtError", "DoubtWarning", "Explanation", "Fact",
    "Format", "ImageField", "Instrument", "Measured", "MissingFileError", "MissingFramesWarning",
    "OnCluster", "OutsideFolderError", "Patterns", "Piece", "Progress", "ProgressiveState",
    "Recording", "RemoteError", "StaleFileError", "StreamError", "StreamProgress", "TarSamples",
    "TileInfo", "TiledArray", "TilingError", "TilingRequest", "TilingScheme", "TruncatedFileError",
    "UnknownFormatError", "VerificationError", "as_zarr", "calibrate", "catalogue", "convert",
    "convert_all", "describe", "events", "explain", "explore", "file_reader", "find_bad_pixels",
    "formats", "frame_facts", "from_libertem", "from_pieces", "iter_batches", "iter_blocks",
    "map_tiles", "negotiate", "open_dataset", "open_datasets", "open_series", "open_volumes",
    "progressive", "record", "reduce_tiles", "register_format", "run", "samples", "scheme_of",
    "show", "tiles", "to_beton", "to_hyperspy", "to_references", "to_xarray", "to_zarr",
    "verify_all", "verify_zarr", "virtual",
]
# fmt: on
