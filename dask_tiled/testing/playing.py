"""A detector played from a file: its messages, sent to whoever connects to this machine."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dask_tiled.testing.frames import StrPath


@contextmanager
def play(path: StrPath, *, frames_per_second: float = math.inf) -> Iterator[str]:
    """Play a detector: send a recorded file, as the detector did, to each program that connects.

    It listens on a free port of 127.0.0.1 while the context lasts.

    Parameters
    ----------
    path : path-like
        A .mib file of a Merlin with its .hdr file, a .tpx3 file of SERVAL, or an HDF5 file of a
        DECTRIS detector with a frame per chunk, which pyzmq sends as stream V2, once.
    frames_per_second : float
        Highest rate; by default as fast as it is received.

    Yields
    ------
    str
        The URL for :func:`dask_tiled.record`.

    Raises
    ------
    ValueError
        No detector sends such a file.
    """
    suffix = Path(path).suffix
    if suffix not in MESSAGES:
        raise ValueError(f"path: expected one of {', '.join(MESSAGES)}, found {suffix!r}")
    protocol, messages = MESSAGES[suffix]
    interval = 1 / frames_per_second
    if protocol == "dectris":
        with pushing([one] for one in messages(Path(path))) as port:
            yield f"{protocol}://127.0.0.1:{port}"
        return
    closes = protocol == "tpx3"  # SERVAL has no other end of a stream
    with sending(lambda: messages(Path(path)), interval=interval, closes=closes) as port:
        yield f"{protocol}://127.0.0.1:{port}"


@contextmanager
def sending(
    messages: Callable[[], Iterable[bytes]], *, interval: float = 0.0, closes: bool = False
) -> Iterator[int]:
    """Send messages to each program that connects; yield the port.

    ``closes``: whether the connection ends with the last message; detectors keep it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def serve() -> None:
            with suppress(OSError):  # the server is closed at the end
                while not is_over.is_set():
                    connection, _ = server.accept()
                    with suppress(OSError), connection:
                        _send(connection, messages(), interval)
                        if not closes:
                            connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _send(connection: socket.socket, messages: Iterable[bytes], interval: float) -> None:
    begun = time.monotonic()
    for number, message in enumerate(messages):
        ahead = begun + number * interval - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        connection.sendall(message)


def merlin_messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a Merlin: the acquisition header, and a frame each."""
    header = path.with_suffix(".hdr").read_bytes()
    yield mpx(header)
    with path.open("rb") as file:
        fields = file.read(64).split(b",")
        width, height, kind = int(fields[4]), int(fields[5]), fields[6].strip().decode()
        bits = _raw_bits(header) if kind == "R64" else int(kind[1:])
        nbytes = int(fields[2]) + width * height * bits // 8
        file.seek(0)
        while frame := file.read(nbytes):
            yield mpx(frame)


def mpx(content: bytes) -> bytes:
    """Return a message of a Merlin."""
    return b"MPX,%010d,%b" % (len(content) + 1, content)


def _raw_bits(header: bytes) -> int:
    """Return the bits of a stored pixel by the counter depth in an acquisition header."""
    line = next(one for one in header.splitlines() if one.startswith(b"Counter Depth"))
    return {1: 1, 6: 8, 12: 16, 24: 16}[int(line.split(b"\t")[1])]


@contextmanager
def pushing(messages: Iterable[Sequence[bytes]], *, interval: float = 0.0) -> Iterator[int]:
    """Push messages of parts by ZeroMQ to a program that connects; yield the port."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as server:
        server.setsockopt(zmq.SNDTIMEO, 100)
        server.setsockopt(zmq.LINGER, 0)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        is_over = threading.Event()

        def serve() -> None:
            begun = time.monotonic()
            for number, parts in enumerate(messages):
                if is_over.is_set():
                    return
                time.sleep(max(0.0, begun + number * interval - time.monotonic()))
                while not is_over.is_set():
                    with suppress(zmq.Again):
                        server.send_multipart(parts)
                        break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            is_over.set()
            thread.join()


def dectris_messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a DECTRIS detector in stream V2: start, images and end."""
    import cbor2
    import h5py

    with h5py.File(path) as file:
        data = file["entry/data/data_000001"]
        channels = ["threshold_1"] if data.ndim == 3 else [*map(str, range(data.shape[1]))]
        detector, common = file["entry/instrument/detector"], {"series_id": 1}
        start = {
            "type": "start", "arm_date": "2020-01-01T12:00:00Z", "channels": channels,
            "image_dtype": str(data.dtype), "image_size_y": data.shape[-2],
            "image_size_x": data.shape[-1], "number_of_images": data.shape[0],
            "incident_energy": 200_000.0, "count_time": 0.001,
            "pixel_size_y": float(detector["y_pixel_size"][()]),
            "pixel_size_x": float(detector["x_pixel_size"][()]),
            "threshold_energy": dict.fromkeys(channels, 40000.0),
        }  # fmt: skip
        if "pixel_mask" in detector:
            mask = detector["pixel_mask"][()]
            values = cbor2.CBORTag(UINT32, mask.astype("<u4").tobytes())
            start["pixel_mask"] = {
                name: cbor2.CBORTag(ARRAY, [[*mask.shape], values]) for name in channels
            }
        yield cbor2.dumps(start | common)
        tag, filters = TAGS[data.dtype.itemsize], data.id.get_create_plist()
        algorithm = {32008: "bslz4", 32004: "lz4"}[filters.get_filter(0)[0]]
        itemsize = data.dtype.itemsize if algorithm == "bslz4" else 0
        for number in range(data.shape[0]):
            arrays = {}
            for channel, name in enumerate(channels):
                place = (number, *([channel] if data.ndim == 4 else []), 0, 0)
                _, chunk = data.id.read_direct_chunk(place)
                values = cbor2.CBORTag(COMPRESSED, [algorithm, itemsize, chunk])
                shape = [*data.shape[-2:]]
                arrays[name] = cbor2.CBORTag(ARRAY, [shape, cbor2.CBORTag(tag, values)])
            image = {"type": "image", "image_id": number, "data": arrays}
            yield cbor2.dumps(image | common)
        yield cbor2.dumps({"type": "end"} | common)


def timepix3_messages(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a stream of SERVAL."""
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            yield part


ARRAY, COMPRESSED, UINT32 = 40, 56500, 70
TAGS = {1: 64, 2: 69, 4: UINT32}
"""Tags of CBOR: arrays, compressed bytes, and little-endian integers by their size."""
MESSAGES: dict[str, tuple[str, Callable[[Path], Iterable[bytes]]]] = {
    ".mib": ("merlin", merlin_messages),
    ".tpx3": ("tpx3", timepix3_messages),
    ".h5": ("dectris", dectris_messages),
}
