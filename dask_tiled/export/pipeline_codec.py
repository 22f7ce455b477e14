"""Chunks with codecs that zarr has no names for: one codec of zarr decodes them as we do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from zarr.registry import register_codec

from dask_tiled.codecs.array_codecs import NUMBERS
from dask_tiled.codecs.pipeline import shared_pipeline
from dask_tiled.errors import CorruptFileError
from dask_tiled.export.codecs import Reading
from dask_tiled.model.indexing import Bytes

NAME = "dask_tiled.pipeline"
"""Name of the codec, and of its entry point."""


@dataclass(frozen=True)
class PipelineCodec(Reading):
    """A pipeline of this package. It only decodes, to little-endian pixels.

    Attributes
    ----------
    codecs : str
        Documents of its codecs, as JSON.
    shape : tuple of int
        Shape of a chunk.
    dtype : str
        Type of its pixels, such as ``"uint16"``.
    edge : tuple of int
        Shape of chunks at the edges that are stored without what lies outside; empty if none are.
    """

    codecs: str
    shape: tuple[int, ...]
    dtype: str
    edge: tuple[int, ...] = ()
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the codec from a document of zarr."""
        told = data.get("configuration")
        told = told if isinstance(told, Mapping) else {}
        codecs, shape, dtype = (told.get(name) for name in ("codecs", "shape", "dtype"))
        edge = told.get("edge", ())
        well = (
            data.get("name") == NAME
            and isinstance(codecs, list | tuple)
            and all(isinstance(some, list | tuple) for some in (shape, edge))
            and all(type(n) is int and n > 0 for n in (*shape, *edge))  # type: ignore[misc] # looked at above
            and isinstance(dtype, str)
            and dtype in NUMBERS
        )
        if not well:
            expected = "a list of codecs, the shape and type of a chunk, and its shape at an edge"
            raise _corrupt(expected, data, "configuration")
        return cls(json.dumps(codecs, sort_keys=True), tuple(shape), dtype, tuple(edge))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Write the codec for a document of zarr."""
        told = {"codecs": json.loads(self.codecs), "shape": [*self.shape], "dtype": self.dtype}
        return {"name": NAME, "configuration": told | ({"edge": [*self.edge]} if self.edge else {})}

    @property
    def size(self) -> int:
        """Bytes of all pixels of a chunk."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def decode_bytes(self, data: Bytes, size: int) -> Bytes:
        """Return the bytes of all pixels of a chunk; those outside of the array are 0.

        Raises
        ------
        CorruptFileError
            The bytes are damaged, a codec is not read, or the chunk has another size.
        """
        shapes, dtype = (self.shape, self.edge or self.shape), np.dtype(self.dtype)
        try:
            if size != self.size:
                raise ValueError(f"chunks of {size} bytes")  # noqa: TRY301 - as those of codecs
            pipeline = shared_pipeline(self.codecs, self.shape, dtype)
            pixels = pipeline.decode(data, inside=shapes[1])
            if pixels.shape not in shapes:
                raise ValueError(f"{pixels.shape} pixels")  # noqa: TRY301 - as those of codecs
        except Exception as error:
            expected = f"{self.shape} {dtype.name}, as {len(data)} bytes of {self.codecs}"
            raise _corrupt(expected, str(error) or repr(error)) from error
        outside = [(0, n - k) for n, k in zip(self.shape, pixels.shape, strict=True)]
        whole = np.pad(pixels, outside) if pixels.shape != self.shape else pixels
        return np.ascontiguousarray(whole, dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _corrupt(expected: str, found: Any, where: str | None = None) -> CorruptFileError:
    return CorruptFileError(f"{NAME} cannot decode", where=where, expected=expected, found=found)


register_codec(NAME, PipelineCodec)
