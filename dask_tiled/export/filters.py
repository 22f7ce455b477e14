"""Decoders of this package as codecs of numcodecs: what references in zarr format 2 name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy
from numcodecs.registry import register_codec

from dask_tiled.codecs.byte_codecs import decoded
from dask_tiled.codecs.hdf5_filters import claimed_bytes
from dask_tiled.errors import CorruptFileError
from dask_tiled.export.codecs import UNITS, UnitsCodec
from dask_tiled.export.pipeline_codec import NAME as PIPELINE
from dask_tiled.export.pipeline_codec import PipelineCodec
from dask_tiled.model.indexing import Bytes


class _Filter(Codec):  # type: ignore[misc] # it has no types
    """A codec that only decodes, with a configuration that is looked at then."""

    codec_id = ""

    def __init__(self, **configuration: Any) -> None:
        self.configuration = configuration

    def get_config(self) -> dict[str, Any]:
        """Return the document of the codec."""
        return {"id": self.codec_id, **self.configuration}

    def encode(self, buf: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("dask-tiled reads the files of detectors, and writes none")

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a chunk."""
        data = ensure_contiguous_ndarray(buf).view(np.uint8)
        return ndarray_copy(self._decoded(data), out)

    def _decoded(self, data: Bytes) -> Bytes:
        size = claimed_bytes(self.codec_id, self.configuration, data)
        content = decoded(self.codec_id, self.configuration, data, size)
        if len(content) != size:
            raise CorruptFileError(
                f"{self.codec_id} cannot decode", expected=f"{size} bytes", found=len(content)
            )
        return content


class Units(_Filter):
    """The codec of packed pixels."""

    codec_id = UNITS
    codec: type[UnitsCodec | PipelineCodec] = UnitsCodec

    def _decoded(self, data: Bytes) -> Bytes:
        document = {"name": self.codec_id, "configuration": self.configuration}
        codec = self.codec.from_dict(document)
        return codec.decode_bytes(data, codec.size)


class Pipeline(Units):
    """Codecs that zarr has no names for."""

    codec_id = PIPELINE
    codec = PipelineCodec


class Bitshuffle(_Filter):
    """Bitshuffle, alone or with a compressor of its blocks."""

    codec_id = "dask_tiled.bitshuffle"


class Lz4(_Filter):
    """LZ4 in blocks, as HDF5 has it."""

    codec_id = "dask_tiled.lz4h5"


class Lzf(_Filter):
    """LZF without a header."""

    codec_id = "dask_tiled.lzf"


class Szip(_Filter):
    """SZIP behind a length."""

    codec_id = "dask_tiled.szip"


for _one in (Units, Pipeline, Bitshuffle, Lz4, Lzf, Szip):
    register_codec(_one)
