"""Series of DECTRIS detectors to play: HDF5 files with a frame per chunk, and stream V1."""

import json

import h5py
import hdf5plugin

FILTERS = {
    "bslz4": hdf5plugin.Bitshuffle(nelems=0, cname="lz4"),
    "lz4": hdf5plugin.LZ4(),
}
LZ4_HEADER = 16
"""Bytes of the framing of a single block by the filter of HDF5, which stream V1 does not have."""
GREETING = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(52, b"\0")
PUSHES = GREETING + b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH"
"""The beginning of a socket that pushes, by RFC 23."""


def write_played_series(path, frames, compression="bslz4", mask=None):
    """Write frames, or frames of channels, as a DECTRIS detector compresses them."""
    chunk = (1,) * (frames.ndim - 2) + frames.shape[-2:]
    with h5py.File(path, "w") as file:
        where, storage = "entry/data/data_000001", FILTERS[compression]
        file.create_dataset(where, data=frames, chunks=chunk, **storage)
        detector = file.create_group("entry/instrument/detector")
        detector["y_pixel_size"], detector["x_pixel_size"] = 5e-5, 1e-4
        if mask is not None:
            detector["pixel_mask"] = mask
    return path


def stream_v1(path, *, series=34, split=True, mask=None):
    """Yield the messages of stream V1, each a list of parts.

    ``split``: whether the configuration is a message of its own, as with some senders.
    """
    with h5py.File(path) as file:
        data = file["entry/data/data_000001"]
        count, height, width = data.shape
        is_lz4 = data.id.get_create_plist().get_filter(0)[0] == 32004
        head = {"htype": "dheader-1.0", "header_detail": "basic", "series": series}
        config = {
            "nimages": 1, "ntrigger": count, "x_pixel_size": 1e-4, "y_pixel_size": 5e-5,
            "photon_energy": 200_000.0, "threshold_energy": 40_000.0, "count_time": 0.001,
            "description": "ARINA", "trigger_mode": "exte", "bit_depth_image": 16,
            "x_pixels_in_detector": width, "y_pixels_in_detector": height,
            "frame_time": 0.001, "compression": "lz4" if is_lz4 else "bslz4",
        }  # fmt: skip
        parts = [json.dumps(head).encode()], [json.dumps(config).encode()]
        if mask is not None:
            told = {"htype": "dpixelmask-1.0", "shape": [*mask.shape[::-1]], "type": "uint32"}
            parts[1].extend([json.dumps(told).encode(), mask.astype("<u4").tobytes()])
        yield from parts if split else [parts[0] + parts[1]]
        for number in range(count):
            chunk = data.id.read_direct_chunk((number, 0, 0))[1][LZ4_HEADER if is_lz4 else 0 :]
            bits = 8 * data.dtype.itemsize
            told = {
                "htype": "dimage_d-1.0", "shape": [width, height], "type": str(data.dtype),
                "encoding": "lz4<" if is_lz4 else f"bs{bits}-lz4<", "size": len(chunk),
            }  # fmt: skip
            image = {"htype": "dimage-1.0", "series": series, "frame": number, "hash": "0" * 32}
            times = {"htype": "dconfig-1.0", "start_time": number, "stop_time": number + 1}
            yield [
                *(json.dumps(one).encode() for one in (image, told)),
                chunk,
                json.dumps(times).encode(),
            ]
        yield [json.dumps({"htype": "dseries_end-1.0", "series": series}).encode()]


def framed(parts):
    """Return a message as ZeroMQ sends it, by RFC 23: flags and length before each part."""
    message = b""
    for left, part in zip(range(len(parts))[::-1], parts, strict=True):
        more, size = int(left > 0), len(part)
        head = bytes([more, size]) if size < 256 else bytes([more + 2]) + size.to_bytes(8, "big")
        message += head + part
    return message
