"""Decoders of packed pixels and of whole chunks, called by zarr codecs.

They return little-endian pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from dask_tiled.codecs.array_codecs import NUMBERS
from dask_tiled.codecs.byte_codecs import UNKNOWN_TO_ZARR, decoded
from dask_tiled.codecs.hdf5_filters import claimed_bytes
from dask_tiled.codecs.pipeline import shared_pipeline
from dask_tiled.errors import CorruptFileError
from dask_tiled.model.indexing import Bytes
from dask_tiled.model.pieces import FARTHEST
from dask_tiled.reading.ranges import Units

UNITS, PIPELINE = "dask_tiled.units", "dask_tiled.pipeline"
"""Names of the codec of packed pixels, and of the codec that runs a pipeline unknown to zarr."""
NAMES = UNITS, PIPELINE, *UNKNOWN_TO_ZARR
"""All codec names, which are entry points as well."""


class Rate(NamedTuple):
    """Bytes that a kernel reads and writes per step."""

    read: int
    written: int
    alone: bool = False  # whether a unit is a single step


# Documents are untrusted: only these kernels may be called.
RATES = {
    "copy": Rate(1, 1),
    "truth": Rate(1, 1),
    "swap2": Rate(2, 2),
    "swap4": Rate(4, 4),
    "swap8": Rate(8, 8),
    "biased": Rate(1, 1),
    "bits": Rate(8, 64, alone=True),
    "bits_reversed": Rate(8, 64, alone=True),
    "unpack12": Rate(24, 32),
    "join24": Rate(8, 16, alone=True),
    "join24_reversed": Rate(8, 16, alone=True),
    "conjugate": Rate(1, 1),
    "real": Rate(1, 2),
}


@lru_cache
def decoder_of(name: Any, told: str) -> PackedBytes | PackedUnits | PackedChunk:
    """Return the decoder of a codec, given its configuration as JSON.

    Its ``size`` returns the decoded bytes of a chunk, and ``decode`` decodes the chunk.

    Raise a CorruptFileError if there is no such codec, or the configuration is invalid.
    """
    config = json.loads(told)
    if name not in NAMES or not isinstance(config, Mapping):
        raise _corrupt(name, ", ".join(NAMES), told, "configuration")
    if name in UNKNOWN_TO_ZARR:
        return PackedBytes(name, config)
    return PackedUnits.of(config) if name == UNITS else PackedChunk.of(config)


class PackedBytes(NamedTuple):
    """A bytes-to-bytes codec unknown to zarr."""

    name: str
    config: Mapping[str, Any]

    def size(self, data: Bytes) -> int:
        """Return the decoded size that a chunk claims in its header."""
        return claimed_bytes(self.name, self.config, data)

    def decode(self, data: Bytes, size: int) -> Bytes:
        """Decode a chunk of at most ``size`` bytes; errors are those of the codec."""
        return decoded(self.name, self.config, data, size)


class UnitRuns(NamedTuple):
    """Runs of equally spaced units of a chunk, decoded by one kernel.

    Attributes
    ----------
    decoder : str
        A kernel of :mod:`dask_tiled.kernels.decoding`.
    nbytes : int
        Bytes of a unit.
    lag : int
        Distance to the second part of a unit, or 0.
    length, step, out_step : int
        Units in a run, and bytes from one to the next, in the chunk and in its pixels.
    starts, dests : sequence of int
        Offset of the first unit of each run, and of its pixels.
    """

    decoder: str
    nbytes: int
    lag: int
    length: int
    step: int
    out_step: int
    starts: Sequence[int]
    dests: Sequence[int]

    @classmethod
    def of(cls, units: Units, start: int) -> Self:
        """Describe the units of a frame whose first one is at byte ``start`` of the chunk."""
        decoder, runs = units.decoder, units.runs
        starts, dests = (runs.starts + start).tolist(), runs.dests.tolist()
        steps = runs.length, runs.step, runs.out_step
        return cls(decoder.kernel, decoder.nbytes, decoder.lag, *steps, starts, dests)

    @property
    def width(self) -> int:
        """Decoded bytes of a unit."""
        rate = RATES[self.decoder]
        return self.nbytes // rate.read * rate.written

    @property
    def size(self) -> int:
        """Decoded bytes of all units."""
        return len(self.starts) * self.length * self.width

    def is_valid(self) -> bool:
        """Return whether the numbers are safe to pass to a kernel: no sum of them overflows."""
        rate, places = RATES[self.decoder], (*self.starts, *self.dests)
        return (
            all(type(n) is int and abs(n) < FARTHEST for n in (*self[1:6], *places))
            and min(self.nbytes, self.length) > 0 <= self.lag
            and self.nbytes % rate.read == 0
            and not (rate.alone and self.nbytes > rate.read)
            and 0 < len(self.starts) == len(self.dests)
        )

    def reach(self) -> tuple[int, int, int, int]:
        """Return the first byte and the end of the bytes read, then of the pixels written."""
        far, out_far = ((self.length - 1) * step for step in (self.step, self.out_step))
        return (
            min(self.starts) + min(far, 0),
            max(self.starts) + max(far, 0) + self.nbytes + self.lag,
            min(self.dests) + min(out_far, 0),
            max(self.dests) + max(out_far, 0) + self.width,
        )


class PackedUnits(NamedTuple):
    """Decoder of pixels as detectors store them: packed, byte-swapped, flipped, with gaps."""

    units: tuple[UnitRuns, ...]
    """The units cover all pixels of a chunk."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Parse the configuration of the codec."""
        try:
            units = tuple(UnitRuns(**one) for one in config["units"])
            well = len(units) > 0 and all(one.is_valid() for one in units)
        except (TypeError, KeyError):
            well = False
        if not well:
            expected = "a list of units, each with a kernel of dask-tiled and integers"
            raise _corrupt(UNITS, expected, config, "configuration")
        return cls(units)

    def size(self, _: Bytes) -> int:
        """Return the decoded bytes of a chunk."""
        return sum(runs.size for runs in self.units)

    def decode(self, data: Bytes, size: int) -> Bytes:
        """Decode a chunk, after checking that kernels stay in bounds."""
        from dask_tiled.kernels.decoding import compiled

        if self.size(data) != size:
            raise _corrupt(UNITS, f"units of {size} bytes of pixels", self.units, "units")
        for runs in self.units:
            low, high, out_low, out_high = runs.reach()
            if min(low, out_low) < 0 or high > len(data) or out_high > size:
                found = f"bytes {low} to {high}, decoded to {out_low} to {out_high}"
                raise _corrupt(
                    UNITS, f"at most {len(data)} bytes, decoded to {size}", found, "a chunk"
                )
        out = np.zeros(size, np.uint8)
        for runs in self.units:
            starts, dests = (np.array(places, np.int64) for places in (runs.starts, runs.dests))
            steps = runs.out_step, runs.length, runs.nbytes, runs.lag
            compiled(runs.decoder)(data, starts, runs.step, out, dests, *steps)
        return out


class PackedChunk(NamedTuple):
    """Decoder of a chunk whose codecs are unknown to zarr."""

    codecs: str
    """Codec documents, as JSON."""
    shape: tuple[int, ...]
    dtype: np.dtype
    edge: tuple[int, ...]
    """Shape of chunks at an edge that are stored without padding, or ``shape``."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Parse the configuration of the codec."""
        codecs, shape, dtype = (config.get(name) for name in ("codecs", "shape", "dtype"))
        edge = config.get("edge", [])
        lists = all(isinstance(one, list) for one in (codecs, shape, edge))
        if (
            not lists
            or not all(type(n) is int and n > 0 for n in (*shape, *edge))  # type: ignore[misc]
            or not (isinstance(dtype, str) and dtype in NUMBERS)
        ):
            expected = "a list of codecs, shape and dtype of a chunk, and the shape of edge chunks"
            raise _corrupt(PIPELINE, expected, config, "configuration")
        told, whole = json.dumps(codecs, sort_keys=True), tuple(shape)  # type: ignore[arg-type]
        return cls(told, whole, np.dtype(dtype), tuple(edge) or whole)

    def size(self, _: Bytes) -> int:
        """Return the decoded bytes of a chunk."""
        return math.prod(self.shape) * self.dtype.itemsize

    def decode(self, data: Bytes, size: int) -> Bytes:
        """Decode a chunk; pixels outside of the array are 0."""
        try:
            if size != self.size(data):
                raise ValueError(f"chunks of {size} bytes are requested")  # noqa: TRY301 - handled as errors of codecs
            pipeline = shared_pipeline(self.codecs, self.shape, self.dtype)
            pixels = pipeline.decode(data, inside=self.edge)
            if pixels.shape not in (self.shape, self.edge):
                raise ValueError(f"decoded to shape {pixels.shape}")  # noqa: TRY301 - handled as errors of codecs
        except Exception as error:
            expected = f"{self.shape} {self.dtype}, as {len(data)} bytes of {self.codecs}"
            raise _corrupt(PIPELINE, expected, str(error) or repr(error)) from error
        outside = [(0, n - k) for n, k in zip(self.shape, pixels.shape, strict=True)]
        whole = np.pad(pixels, outside) if pixels.shape != self.shape else pixels
        return np.ascontiguousarray(whole, self.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _corrupt(name: Any, expected: Any, found: Any, where: str | None = None) -> CorruptFileError:
    return CorruptFileError(f"{name} cannot decode", where=where, expected=expected, found=found)
