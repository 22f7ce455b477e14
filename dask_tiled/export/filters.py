"""Numcodecs codecs that decode packed pixels, named in references of zarr format 2."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy
from numcodecs.registry import register_codec

from dask_tiled.errors import CorruptFileError
from dask_tiled.export.decoders import decoder_of


class Filter(Codec):  # type: ignore[misc] # untyped
    """A codec that only decodes, and checks its configuration only then."""

    def __init__(self, **configuration: Any) -> None:
        self.configuration = configuration

    def get_config(self) -> dict[str, Any]:
        """Return the configuration with the codec id."""
        return {"id": self.codec_id, **self.configuration}

    def encode(self, buf: Any) -> Any:
        """Raise: the codec only decodes."""
        raise NotImplementedError("the codec only decodes: dask-tiled writes no detector files")

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a chunk, into ``out`` if given."""
        data = ensure_contiguous_ndarray(buf).view(np.uint8)
        decoder = decoder_of(self.codec_id, json.dumps(self.configuration))
        size = decoder.size(data)
        content = decoder.decode(data, size)
        if len(content) != size:
            problem, expected = f"{self.codec_id} cannot decode", f"{size} bytes"
            raise CorruptFileError(problem, expected=expected, found=len(content))
        return ndarray_copy(content, out)


Bitshuffle = type("Bitshuffle", (Filter,), {"codec_id": "dask_tiled.bitshuffle"})
Lz4 = type("Lz4", (Filter,), {"codec_id": "dask_tiled.lz4h5"})
Lzf = type("Lzf", (Filter,), {"codec_id": "dask_tiled.lzf"})
Pipeline = type("Pipeline", (Filter,), {"codec_id": "dask_tiled.pipeline"})
Szip = type("Szip", (Filter,), {"codec_id": "dask_tiled.szip"})
Units = type("Units", (Filter,), {"codec_id": "dask_tiled.units"})

for _one in (Bitshuffle, Lz4, Lzf, Pipeline, Szip, Units):
    register_codec(_one)
