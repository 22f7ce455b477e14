"""Chunks with codecs that zarr has no names for: one codec of zarr decodes them as we do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import ArrayBytesCodec
from zarr.registry import register_codec

from dask_tiled.codecs.pipeline import shared_pipeline
from dask_tiled.errors import CorruptFileError
from dask_tiled.model.indexing import Array

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec

NAME = "dask_tiled.pipeline"
"""Name of the codec, and of its entry point."""


@dataclass(frozen=True)
class PipelineCodec(ArrayBytesCodec):
    """A pipeline of this package. It only decodes.

    Attributes
    ----------
    codecs : str
        Documents of its codecs, as JSON.
    edge : tuple of int
        Shape of chunks at the edges that are stored without what lies outside; empty if none are.
    """

    codecs: str
    edge: tuple[int, ...] = ()
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the codec from a document of zarr."""
        told = data.get("configuration")
        told = told if isinstance(told, Mapping) else {}
        codecs, edge = told.get("codecs"), told.get("edge", ())
        well = isinstance(codecs, list | tuple) and isinstance(edge, list | tuple)
        if data.get("name") != NAME or not well or any(type(n) is not int or n < 1 for n in edge):
            expected = "a list of codecs, and the shape of chunks at an edge"
            raise _corrupt(expected, data, "configuration")
        return cls(json.dumps(codecs, sort_keys=True), tuple(edge))

    def to_dict(self) -> dict[str, Any]:
        """Write the codec for a document of zarr."""
        told: dict[str, Any] = {"codecs": json.loads(self.codecs)}
        return {"name": NAME, "configuration": told | ({"edge": [*self.edge]} if self.edge else {})}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Refuse to foretell the bytes of a stored chunk."""
        raise NotImplementedError("compressed chunks have any size")

    def decode_bytes(
        self, data: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype
    ) -> Array:
        """Return the pixels of a chunk; those outside of the array are 0.

        Raises
        ------
        CorruptFileError
            The bytes are damaged, or a codec is not read.
        """
        shapes = shape, self.edge or shape
        try:
            pixels = shared_pipeline(self.codecs, shape, dtype).decode(data, inside=shapes[1])
            if pixels.shape not in shapes:
                raise ValueError(f"{pixels.shape} pixels")  # noqa: TRY301 - as those of codecs
        except Exception as error:
            expected = f"{shape} {dtype.name}, as {len(data)} bytes of {self.codecs}"
            raise _corrupt(expected, str(error) or repr(error)) from error
        outside = [(0, n - k) for n, k in zip(shape, pixels.shape, strict=True)]
        return np.pad(pixels, outside) if pixels.shape != shape else pixels

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        data = np.ascontiguousarray(chunk_data.as_numpy_array()).view(np.uint8)
        dtype = chunk_spec.dtype.to_native_dtype()
        pixels: Any = self.decode_bytes(data, chunk_spec.shape, dtype)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(pixels)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return self._encode_sync(chunk_data, chunk_spec)

    def _encode_sync(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        raise NotImplementedError("dask-tiled reads strips and tiles, and writes none")


def _corrupt(expected: str, found: Any, where: str | None = None) -> CorruptFileError:
    return CorruptFileError(f"{NAME} cannot decode", where=where, expected=expected, found=found)


register_codec(NAME, PipelineCodec)
