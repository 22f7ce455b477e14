"""Decoders of this package as codecs of zarr, so that references can point to packed pixels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.registry import register_codec

from dask_tiled.codecs.byte_codecs import UNKNOWN_TO_ZARR, decoded
from dask_tiled.errors import CorruptFileError
from dask_tiled.model.indexing import Bytes
from dask_tiled.model.pieces import FARTHEST
from dask_tiled.reading.ranges import Units

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec


UNITS = "dask_tiled.units"
"""Name of the codec of packed pixels, and of its entry point."""


class Rate(NamedTuple):
    """Bytes that a kernel reads and writes at a time."""

    read: int
    written: int
    alone: bool = False  # a unit is no more than that


# No other kernels are called: the documents come from others.
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


class UnitRuns(NamedTuple):
    """Units of a chunk that one decoder turns into pixels: runs of them at equal distances.

    Attributes
    ----------
    decoder : str
        One of :mod:`dask_tiled.kernels.decoding`.
    nbytes : int
        Bytes of a unit.
    lag : int
        Distance to the second unit that is read with it, or 0.
    length, step, out_step : int
        Units in a run, and bytes from one to the next, in the chunk and in its pixels.
    starts, dests : tuple of int
        Bytes at which the first unit of each run begins, and its pixels.
    """

    decoder: str
    nbytes: int
    lag: int
    length: int
    step: int
    out_step: int
    starts: tuple[int, ...]
    dests: tuple[int, ...]

    @classmethod
    def of(cls, units: Units, start: int) -> Self:
        """Describe units of a frame, the first of which begins at byte ``start`` of the chunk."""
        decoder, runs = units.decoder, units.runs
        starts, dests = (runs.starts + start).tolist(), runs.dests.tolist()
        steps = runs.length, runs.step, runs.out_step
        return cls(decoder.kernel, decoder.nbytes, decoder.lag, *steps, tuple(starts), tuple(dests))

    @classmethod
    def read(cls, found: Any) -> Self:
        """Read a part of a document.

        Raises
        ------
        CorruptFileError
            It is none.
        """
        numbers = cls._fields[1:6]
        lists = cls._fields[6:]
        well = (
            isinstance(found, Mapping)
            and set(found) == set(cls._fields)
            and isinstance(found["decoder"], str)
            and found["decoder"] in RATES
            and all(_whole(found[name]) for name in numbers)
            and all(isinstance(found[name], list | tuple) for name in lists)
            and all(map(_whole, (*found["starts"], *found["dests"])))
        )
        if not well:
            raise _corrupt("units", "a decoder of this package and whole numbers", found)
        runs = cls(**{**found, **{name: tuple(found[name]) for name in lists}})
        rate = RATES[runs.decoder]
        units = runs.nbytes // rate.read
        if (
            min(runs.nbytes, runs.length) < 1
            or runs.lag < 0
            or runs.nbytes % rate.read
            or (rate.alone and units != 1)
            or not 0 < len(runs.starts) == len(runs.dests)
        ):
            raise _corrupt("units", f"units of {rate.read} bytes, and as many places", found)
        return runs

    @property
    def size(self) -> int:
        """Bytes of all pixels."""
        return len(self.starts) * self.length * self._width

    @property
    def _width(self) -> int:
        """Bytes of the pixels of a unit."""
        rate = RATES[self.decoder]
        return self.nbytes // rate.read * rate.written

    def reach(self) -> tuple[int, int, int, int]:
        """Return first bytes and those after the last: of what is read, and of pixels."""
        far, out_far = ((self.length - 1) * step for step in (self.step, self.out_step))
        return (
            min(self.starts) + min(far, 0),
            max(self.starts) + max(far, 0) + self.nbytes + self.lag,
            min(self.dests) + min(out_far, 0),
            max(self.dests) + max(out_far, 0) + self._width,
        )

    def decode(self, data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Decode the units into the bytes of pixels; their reach has been looked at."""
        from dask_tiled.kernels.decoding import compiled

        starts, dests = (np.array(places, np.int64) for places in (self.starts, self.dests))
        steps = self.out_step, self.length, self.nbytes, self.lag
        compiled(self.decoder)(data, starts, self.step, out, dests, *steps)


class Reading(BytesBytesCodec):
    """A codec that only decodes, one chunk in a thread."""

    def decode_bytes(self, data: Bytes, size: int) -> Bytes:
        """Return the bytes of all pixels of a chunk, of which there are ``size``."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        data = np.ascontiguousarray(chunk_data.as_numpy_array()).view(np.uint8)
        size = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        return chunk_spec.prototype.buffer.from_array_like(self.decode_bytes(data, size))

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._encode_sync(chunk_data, chunk_spec)

    def _encode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        raise NotImplementedError("dask-tiled reads the files of detectors, and writes none")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Refuse to foretell the bytes of a stored chunk."""
        raise NotImplementedError("stored chunks have any size")


@dataclass(frozen=True)
class UnitsCodec(Reading):
    """Pixels as detectors store them: packed, swapped, turned, with gaps.

    What is decoded are little-endian pixels.

    Attributes
    ----------
    units : tuple of UnitRuns
        Together they give all pixels of a chunk.
    """

    units: tuple[UnitRuns, ...]
    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the codec from a document of zarr."""
        configuration = data.get("configuration")
        units = configuration.get("units") if isinstance(configuration, Mapping) else None
        if data.get("name") != UNITS or not isinstance(units, list | tuple) or not units:
            raise _corrupt("configuration", "a list of units", data)
        return cls(tuple(map(UnitRuns.read, units)))

    def to_dict(self) -> dict[str, Any]:
        """Write the codec for a document of zarr."""
        return {"name": UNITS, "configuration": {"units": [runs._asdict() for runs in self.units]}}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:  # noqa: ARG002
        """Return the bytes of a stored chunk."""
        return max(runs.reach()[1] for runs in self.units)

    @property
    def size(self) -> int:
        """Bytes of all pixels of a chunk."""
        return sum(runs.size for runs in self.units)

    def decode_bytes(self, data: Bytes, size: int) -> Bytes:
        """Return the bytes of all pixels of a chunk.

        Raises
        ------
        CorruptFileError
            They lie elsewhere than in these bytes, or are not as many.
        """
        if self.size != size:
            raise _corrupt("units", f"{size} bytes of pixels", self.units)
        for runs in self.units:
            low, high, out_low, out_high = runs.reach()
            if min(low, out_low) < 0 or high > len(data) or out_high > size:
                found = f"bytes {low} to {high}, for {out_low} to {out_high}"
                raise _corrupt("a chunk", f"{len(data)} bytes, for {size}", found)
        out = np.zeros(size, np.uint8)
        for runs in self.units:
            runs.decode(data, out)
        return out


@dataclass(frozen=True)
class PackedCodec(Reading):
    """A codec of bytes that zarr does not know.

    Attributes
    ----------
    name : str
        One of :data:`~dask_tiled.codecs.byte_codecs.UNKNOWN_TO_ZARR`.
    configuration : tuple of (str, Any)
    """

    name: str
    configuration: tuple[tuple[str, Any], ...]
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the codec from a document of zarr."""
        configuration = data.get("configuration") or {}
        if data.get("name") not in UNKNOWN_TO_ZARR or not isinstance(configuration, Mapping):
            raise _corrupt("configuration", ", ".join(UNKNOWN_TO_ZARR), data)
        return cls(data["name"], tuple(configuration.items()))

    def to_dict(self) -> dict[str, Any]:
        """Write the codec for a document of zarr."""
        return {"name": self.name, "configuration": dict(self.configuration)}

    def decode_bytes(self, data: Bytes, size: int) -> Bytes:
        """Return the bytes of all pixels of a chunk, at most ``size``.

        Raises
        ------
        ValueError, RuntimeError
            They are damaged, or there are more.
        """
        return decoded(self.name, dict(self.configuration), data, size)


def _whole(value: Any) -> bool:
    """Return whether a value is a whole number that no sum of a few of them makes overflow."""
    return type(value) is int and -FARTHEST < value < FARTHEST


def _corrupt(where: str, expected: Any, found: Any) -> CorruptFileError:
    return CorruptFileError(f"{UNITS} cannot decode", where=where, expected=expected, found=found)


register_codec(UNITS, UnitsCodec)
for _name in UNKNOWN_TO_ZARR:
    register_codec(_name, PackedCodec)
