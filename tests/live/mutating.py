"""Streams of detectors with random changes: a receiver ends with a typed error, or goes on.

``python tests/live/mutating.py --count 10000`` changes each stream so many times.
"""

import argparse
import random
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from played_series import framed, stream_v1, write_played_series

from dask_tiled.errors import StreamError
from dask_tiled.live.byte_sockets import BUFFER_BYTES, StreamBuffer
from dask_tiled.live.dectris import DectrisReceiver
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound
from dask_tiled.live.timepix3 import Timepix3Receiver
from dask_tiled.live.zmtp import MessageStream
from dask_tiled.testing import counting_frames, write_mib, write_tpx3
from dask_tiled.testing.playing import dectris_messages, merlin_messages, timepix3_messages

KINDS = "replace", "insert", "remove", "repeat", "cut"
TOKENS = (
    *(b"MPX,", b"HDR,", b"MQ1,", b"0000000001,", b"9999999999,", b",", b"\0", b"-1", b"\xff" * 8),
    *(
        b"TPX3",
        b"\xd9\xdc\xb4",
        b"\x9b",
        b"{",
        b'"series": 2',
        b"\1\x40",
        b"\2" + bytes(7),
        b"\4\5",
    ),
)
MOST_MEMORY = 4 * BUFFER_BYTES


def mutated(stream, edits):
    """Return a stream with edits: kind, place from 0 to 1, length, and a token."""
    data = bytearray(stream)
    for kind, place, length, token in edits:
        at = int(place * len(data))
        if kind == "replace":
            data[at : at + len(token)] = token
        elif kind == "insert":
            data[at:at] = token * (1 + length % 3)
        elif kind == "remove":
            del data[at : at + length]
        elif kind == "repeat":
            data[at:at] = data[at : at + length]
        else:
            del data[at:]
    return bytes(data)


def receive(receiver, stream, pieces=64):
    """Pass a stream to a receiver in pieces; return its error, or None."""
    buffer, at = StreamBuffer("merlin://test:1"), 0
    size = max(1, len(stream) // pieces)
    try:
        while at < len(stream) and not receiver.is_complete:
            room = buffer.room
            assert len(room), "a receiver neither takes nor refuses bytes"
            part = stream[at : at + min(size, len(room))]
            room[: len(part)] = part
            at += len(part)
            buffer.pass_on(len(part), receiver)
    except StreamError as error:
        return error
    finally:
        receiver.close()


def merlin_stream(folder):
    """Return a stream of a Merlin."""
    path = write_mib(Path(folder) / "played.mib", counting_frames((3, 4, 16, 16), "uint16"))
    return b"".join(merlin_messages(path))


def timepix3_stream(folder):
    """Return a stream of a Timepix3."""
    hits = np.random.default_rng(0).poisson(0.01, (1, 256, 256))
    path = write_tpx3(Path(folder) / "played.tpx3", hits)
    return b"".join(timepix3_messages(path))


def stream_v2_of(folder):
    """Return a stream V2."""
    path = write_played_series(Path(folder) / "played.h5", counting_frames((6, 8, 12), "uint16"))
    return b"".join(framed([message]) for message in dectris_messages(path))


def stream_v1_of(folder):
    """Return a stream V1."""
    frames = counting_frames((6, 8, 12), "uint16")
    return b"".join(map(framed, stream_v1(write_played_series(f"{folder}/played.h5", frames))))


def dectris(url, path, bound):
    """Return what receives both streams."""
    return MessageStream(None, DectrisReceiver(url, path, bound), url)


URL = "dectris://test:1"
STREAMS = {
    "merlin": (merlin_stream, MerlinReceiver, "mib"),
    "tpx3": (timepix3_stream, Timepix3Receiver, "tpx3"),
    "stream V2": (stream_v2_of, dectris, "h5"),
    "stream V1": (stream_v1_of, dectris, "h5"),
}


def receiver_of(name, folder):
    """Return the receiver of a stream."""
    _, make, suffix = STREAMS[name]
    return make(URL, f"{folder}/recorded.{suffix}", Bound())


def main():
    """Change each stream many times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", default=[*STREAMS])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.streams:
        rng, begun, failed = random.Random(options.seed), time.monotonic(), 0
        stream_of = STREAMS[name][0]
        with tempfile.TemporaryDirectory() as folder:
            stream = stream_of(folder)
            tracemalloc.start()
            for _ in range(options.count):
                edits = [
                    (rng.choice(KINDS), rng.random(), rng.randrange(300), rng.choice(TOKENS))
                    for _ in range(rng.randint(1, 4))
                ]
                with tempfile.TemporaryDirectory(dir=folder) as target:
                    receiver = receiver_of(name, target)
                    error = receive(receiver, mutated(stream, edits), rng.randint(1, 200))
                failed += error is not None
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_MEMORY, f"{name}: {peak} bytes"
        seconds = time.monotonic() - begun
        print(f"{name}: {options.count} streams, {failed} refused, {peak} bytes, {seconds:.0f} s")


if __name__ == "__main__":
    main()
