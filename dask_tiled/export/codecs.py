"""Zarr 3 codecs that decode packed pixels, so that references can point to them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.registry import register_codec

from dask_tiled.export.decoders import NAMES, decoder_of

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec


@dataclass(frozen=True)
class ReadingCodec(BytesBytesCodec):
    """A codec that only decodes, one chunk in a thread.

    Attributes
    ----------
    name : str
        One of :data:`~dask_tiled.export.decoders.NAMES`.
    told : str
        The configuration as JSON.
    """

    name: str
    told: str
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the codec from its zarr document."""
        codec = cls(data.get("name", ""), json.dumps(data.get("configuration") or {}))
        decoder_of(codec.name, codec.told)  # raises if they are invalid
        return codec

    def to_dict(self) -> dict[str, Any]:
        """Return the zarr document of the codec."""
        return {"name": self.name, "configuration": json.loads(self.told)}

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        data = np.ascontiguousarray(chunk_data.as_numpy_array()).view(np.uint8)
        size = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        pixels = decoder_of(self.name, self.told).decode(data, size)
        return chunk_spec.prototype.buffer.from_array_like(pixels)

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._encode_sync(chunk_data, chunk_spec)

    def _encode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        raise NotImplementedError("the codec only decodes: dask-tiled writes no detector files")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size of a stored chunk is not fixed."""
        raise NotImplementedError("the size of a stored chunk is not fixed")


for _name in NAMES:
    register_codec(_name, ReadingCodec)
