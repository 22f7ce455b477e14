"""Rates at which streams of detectors are recorded: from senders on this machine, over loopback.

Run ``python benchmarks/live.py`` to measure recordings in memory and, with ``--folder``, on a
disk. A process of its own sends: a Merlin's frames of 256 x 256 pixels of 16 bits, hits of a
Timepix3 in chunks of 8 KiB, and compressed frames of a DECTRIS detector, in stream V2 and V1,
of 192 x 192 or ``--side`` pixels. What is sent is made before. Times are wall time, and processor
time of the receiver, which other programs affect less: ``CPU`` is the rate at which its processor
would be busy. ``nothing`` is a loop that receives the same bytes and drops them: the limit of
loopback with this sender. ``detector`` records a Merlin, or hits in frames of 8,192 of a
Timepix3, in memory while this process computes the sum under a disk by ``progressive``, up to the
last result. Rounds take turns; medians.

``--libertem PYTHON`` is the Python of an environment with LiberTEM-live: it receives the same
stream V1 in turn, to shared memory for 2000 frames, which are dropped, or for all (``LiberTEM*``),
as a recording keeps them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import h5py
import hdf5plugin
import numpy as np
import psutil

import dask_tiled

CHUNK_BYTES = 8 << 10
SENT_AT_ONCE, COLUMNS = 4 << 20, 64
RANGE, TICK = 1 << 34, 1.5625e-9
"""Ticks after which the times of hits begin again, in which a row of them is sent, and seconds."""
AT_ONCE = 64
"""Messages of a DECTRIS detector that are sent at once."""


class Stream(NamedTuple):
    """A stream to record."""

    protocol: str
    unit: str
    number: int
    nbytes: int
    send: Callable[[Any, int], None]


def merlin(connection: socket.socket, count: int) -> None:
    """Send frames of a Merlin with increasing numbers."""
    rng, shape = np.random.default_rng(0), (256, 256)
    header = f"HDR,\nFrames in Acquisition (Number):\t{count}\nEnd\t".encode()
    connection.sendall(b"MPX,%010d,%b" % (len(header) + 1, header))
    pixels = rng.poisson(3, shape).astype(">u2").tobytes()
    fields = "00384,01,0256,0256,U16,   1x1,01,2020-01-01 12:00:00.0,0.001,0,0,0,"
    block, step = bytearray(), 15 + 384 + len(pixels)
    for _ in range(32):
        head = f"MQ1,000000,{fields}".encode().ljust(384, b"\0")
        block += b"MPX,%010d," % (len(pixels) + 385) + head + pixels
    for first in range(0, count, 32):
        for k in range(32):
            block[k * step + 19 : k * step + 25] = b"%06d" % (first + k + 1)
        connection.sendall(memoryview(block)[: step * min(32, count - first)])


def timepix3(connection: socket.socket, count: int) -> None:
    """Send chunks of hits at increasing times; each block of them is a row."""
    rng, hits = np.random.default_rng(0), SENT_AT_ONCE // 8
    time = np.arange(hits) * RANGE // hits
    coarse = -(-time // 16)
    words = (rng.integers(0, 1 << 16, hits) << 44) | (rng.integers(0, 1 << 10, hits) << 20)
    words |= ((coarse & 0x3FFF) << 30) | ((coarse * 16 - time) << 16) | (coarse >> 14 & 0xFFFF)
    chunks = (words.astype("<u8") | np.uint64(0xB << 60)).reshape(-1, CHUNK_BYTES // 8)
    head = b"TPX3\0\0" + CHUNK_BYTES.to_bytes(2, "little")
    block = b"".join(head + chunk.tobytes() for chunk in chunks)
    left = count * 8 // CHUNK_BYTES * (CHUNK_BYTES + 8)
    while left > 0:
        connection.sendall(memoryview(block)[:left])
        left -= len(block)
    connection.close()


def compressed_frame(side: int) -> bytes:
    """Return a frame as DECTRIS detectors compress it."""
    frame = np.random.default_rng(0).poisson(0.3, (1, side, side)).astype("u2")
    with tempfile.TemporaryDirectory() as folder, h5py.File(f"{folder}/a.h5", "w") as file:
        filters = hdf5plugin.Bitshuffle(nelems=0, cname="lz4")
        data = file.create_dataset("a", data=frame, chunks=frame.shape, **filters)
        return bytes(data.id.read_direct_chunk((0, 0, 0))[1])


def stream_v2(side: int, connection: socket.socket, count: int) -> None:
    """Push a series in CBOR."""
    start = {
        "type": "start",
        "series_id": 1,
        "channels": ["threshold_1"],
        "number_of_images": count,
    }
    packed = cbor2.CBORTag(56500, ["bslz4", 2, compressed_frame(side)])
    array = cbor2.CBORTag(40, [[side, side], cbor2.CBORTag(69, packed)])
    image = {"type": "image", "series_id": 1, "image_id": 1 << 40, "data": {"threshold_1": array}}
    head, _, tail = cbor2.dumps(image).partition((1 << 40).to_bytes(8, "big"))
    shake_hands(connection)
    connection.sendall(framed(cbor2.dumps(start)))
    numbers = (number.to_bytes(8, "big") for number in range(count))
    send_numbered(connection, 9 + len(head), numbers, [head + bytes(8) + tail])
    connection.sendall(framed(cbor2.dumps({"type": "end", "series_id": 1})))


def stream_v1(side: int, connection: socket.socket, count: int) -> None:
    """Push a series in JSON and bytes."""
    chunk = compressed_frame(side)
    config = {
        "nimages": 1, "ntrigger": count, "trigger_mode": "exte", "bit_depth_image": 16,
        "x_pixels_in_detector": side, "y_pixels_in_detector": side,
    }  # fmt: skip
    told = {
        "htype": "dimage_d-1.0", "shape": [side, side], "type": "uint16",
        "encoding": "bs16-lz4<", "size": len(chunk),
    }  # fmt: skip
    parts = [
        b'{"htype": "dimage-1.0", "series": 1, "frame": 00000000, "hash": "0"}',
        json.dumps(told).encode(),
        chunk,
        b'{"htype": "dconfig-1.0", "start_time": 0, "stop_time": 1, "real_time": 1}',
    ]
    header = {"htype": "dheader-1.0", "header_detail": "basic", "series": 1}
    shake_hands(connection)
    connection.sendall(framed(json.dumps(header).encode()) + framed(json.dumps(config).encode()))
    numbers = (b"%8d" % number for number in range(count))
    send_numbered(connection, 2 + parts[0].index(b"0000"), numbers, parts)
    connection.sendall(framed(json.dumps({"htype": "dseries_end-1.0", "series": 1}).encode()))


def send_numbered(
    connection: socket.socket, at: int, numbers: Iterator[bytes], parts: Sequence[bytes]
) -> None:
    """Send messages of parts that differ by a number at a place, many at once."""
    message = framed(*parts)
    block, step = bytearray(message * AT_ONCE), len(message)
    while some := list(islice(numbers, AT_ONCE)):
        for k, number in enumerate(some):
            block[k * step + at : k * step + at + len(number)] = number
        connection.sendall(memoryview(block)[: step * len(some)])


def framed(*parts: bytes) -> bytes:
    """Return a message as ZeroMQ sends it."""
    message = b""
    for part in parts:
        more, size = part is not parts[-1], len(part)
        length = bytes([more, size]) if size < 256 else bytes([more | 2]) + size.to_bytes(8, "big")
        message += length + part
    return message


def shake_hands(connection: socket.socket) -> None:
    """Begin a connection as a socket of ZeroMQ that pushes."""
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(52, b"\0"))
    told = b"\5READY\x0bSocket-Type\0\0\0\4PUSH"
    connection.sendall(bytes([4, len(told)]) + told)
    _read(connection, 64)
    _, size = _read(connection, 2)
    _read(connection, size)


def _read(connection: socket.socket, count: int) -> bytes:
    return connection.recv(count, socket.MSG_WAITALL)


def serve(stream: Stream, told: Any) -> None:
    """Send a stream to one program that connects, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            stream.send(connection, stream.number)
            if stream.protocol != "tpx3":
                connection.recv(1)


@contextmanager
def sender(stream: Stream) -> Iterator[int]:
    """Yield the port of a sender."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(stream, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def recorded(stream: Stream, folder: Path | None) -> tuple[float, float]:
    """Record a stream; return seconds of wall time and of the receiver's processor."""
    suffix = {"merlin": "mib", "tpx3": "tpx3", "dectris": "h5"}[stream.protocol]
    target = None if folder is None else folder / f"scan.{suffix}"
    bound = 2 * stream.nbytes if target is None else None
    with sender(stream) as port:
        url = f"{stream.protocol}://127.0.0.1:{port}"
        with dask_tiled.record(url, target, overwrite=True, max_bytes=bound) as recording:
            (receiver,) = (
                one for one in psutil.Process().children() if "live.receiver" in str(one.cmdline())
            )
            while recording.state == "waiting":
                time.sleep(0.001)
            begun, used = time.perf_counter(), 0.0
            before = sum(receiver.cpu_times()[:2])
            while recording.is_running:
                try:
                    used = sum(receiver.cpu_times()[:2]) - before
                except psutil.Error:
                    break
                time.sleep(0.005)
            recording.wait()
            seconds = time.perf_counter() - begun
            told = recording.progress
        assert told.frames + told.events == stream.number, recording
        recording.close()
    return seconds, used


def recorded_with_a_detector(stream: Stream) -> tuple[float, float]:
    """Record a stream while a sum under a disk is computed.

    Return the seconds until the last result, and those of this process on the processor.
    """
    y, x = np.indices((256, 256)) - 128
    mask = np.hypot(y, x) < 32
    options: dict[str, Any] = {"nav_shape": (stream.number // COLUMNS, COLUMNS)}
    if stream.protocol == "tpx3":
        options["nav_shape"] = 8 * stream.number // SENT_AT_ONCE, COLUMNS
        options["frame_time"] = RANGE // COLUMNS * TICK
    url, bound = f"{stream.protocol}://127.0.0.1:", 2 * stream.nbytes
    with (
        sender(stream) as port,
        dask_tiled.record(f"{url}{port}", max_bytes=bound, **options) as recording,
    ):
        arr, begun, used = recording.array, time.perf_counter(), time.process_time()
        *_, last = dask_tiled.progressive((arr * mask).sum((2, 3)), every=0.1)
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        assert recording.wait(10)
        assert last.exact
        assert recording.progress.frames + recording.progress.events == stream.number
        recording.close()
    return seconds, used


def dropped(stream: Stream) -> tuple[float, float]:
    """Receive the same bytes, and drop them."""
    with sender(stream) as port:
        if stream.protocol == "dectris":
            return dropped_messages(port)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            buffer, left = bytearray(1 << 20), stream.nbytes
            begun, used = time.perf_counter(), time.process_time()
            while left > 0 and (count := connection.recv_into(buffer)):
                left -= count
            return time.perf_counter() - begun, time.process_time() - used


def dropped_messages(port: int) -> tuple[float, float]:
    """Receive messages, and drop them."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as server:
        server.connect(f"tcp://127.0.0.1:{port}")
        server.recv_multipart()
        begun, used, parts = time.perf_counter(), time.process_time(), [b""]
        while b"dseries_end" not in parts[0][-64:] and b"cend" not in parts[0][-64:]:
            parts = server.recv_multipart()
        return time.perf_counter() - begun, time.process_time() - used


LIBERTEM = """
import sys, time, libertem_dectris as d
conn = d.DectrisConnection(uri=f"tcp://127.0.0.1:{sys.argv[1]}", frame_stack_size=32,
    bytes_per_frame=int(sys.argv[2]), num_slots=int(sys.argv[5]),
    huge=False, handle_path=sys.argv[3])
conn.start_passive()
client = d.CamClient(conn.get_socket_path())
print("ready", flush=True)
while conn.wait_for_arm(0.5) is None:
    pass
count = 0
begun = used = None
while (stack := conn.get_next_stack(max_size=32)) is not None:
    if begun is None:
        begun, used = time.perf_counter(), time.process_time()
    count += len(stack)
    client.done(stack)
    if count >= int(sys.argv[4]):
        break
print(count, time.perf_counter() - begun, time.process_time() - used, flush=True)
"""


def by_libertem(python: str, stream: Stream, slots: int = 0) -> tuple[float, float]:
    """Receive a series by the library of LiberTEM-live, to shared memory for some frames or all."""
    nbytes = 2 * stream.nbytes // stream.number
    with sender(stream) as port, tempfile.TemporaryDirectory() as folder:
        words = [str(port), str(nbytes), f"{folder}/frames", str(stream.number)]
        words.append(str(slots or stream.number))
        command = [python, "-c", LIBERTEM, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            count, seconds, used = map(float, process.stdout.readline().split())
            process.kill()
    assert count == stream.number
    return seconds, used


def streams(scale: float, side: int) -> dict[str, Stream]:
    """Return the streams by name."""
    frames, hits = int(16384 * scale) // COLUMNS * COLUMNS, int((64 << 20) * scale)
    images = int(65536 * scale * (192 / side) ** 2)
    hits -= hits % (SENT_AT_ONCE // 8)
    series = "dectris", "frame", images, images * len(compressed_frame(side))
    return {
        "Merlin": Stream("merlin", "frame", frames, frames * (2 * 256**2 + 384), merlin),
        "Timepix3": Stream("tpx3", "hit", hits, hits * 8, timepix3),
        "DECTRIS V2": Stream(*series, partial(stream_v2, side)),
        "DECTRIS V1": Stream(*series, partial(stream_v1, side)),
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on a disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--libertem", help="Python of an environment with LiberTEM-live")
    parser.add_argument("--side", type=int, default=192)
    parser.add_argument("--only", help="one stream")
    options = parser.parse_args()
    print(f"{'stream':12} {'receiver':10} {'GB/s':>6} {'M/s':>8} {'CPU GB/s':>9}  load")
    for name, stream in streams(options.scale, options.side).items():
        if options.only not in {None, name}:
            continue
        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "nothing": partial(dropped, stream),
            "memory": partial(recorded, stream, None),
        }
        if options.folder:
            ways["disk"] = partial(recorded, stream, options.folder)
        if name in {"Merlin", "Timepix3"}:
            ways["detector"] = partial(recorded_with_a_detector, stream)
        if options.libertem and name == "DECTRIS V1":
            ways["LiberTEM"] = partial(by_libertem, options.libertem, stream, 2000)
            ways["LiberTEM*"] = partial(by_libertem, options.libertem, stream)
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, run in ways.items():
                times[way].append(run())
        for way, all_times in times.items():
            wall, cpu = (statistics.median(column) for column in zip(*all_times, strict=True))
            rates = stream.nbytes / wall / 1e9, stream.number / wall / 1e6
            busy = stream.nbytes / max(cpu, 1e-9) / 1e9
            load = os.getloadavg()[0]
            print(f"{name:12} {way:10} {rates[0]:6.2f} {rates[1]:8.3f} {busy:9.2f}  {load:.1f}")


if __name__ == "__main__":
    main()
