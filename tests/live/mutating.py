"""Streams of detectors with random changes: a receiver ends with a typed error, or goes on.

``python tests/live/mutating.py --count 10000`` changes each stream so many times.
"""

import argparse
import random
import tempfile
import time
import tracemalloc
from pathlib import Path

from dask_tiled.errors import StreamError
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound
from dask_tiled.live.receiver import BUFFER_BYTES, StreamBuffer
from dask_tiled.testing import counting_frames, write_mib
from dask_tiled.testing.playing import merlin_messages

KINDS = "replace", "insert", "remove", "repeat", "cut"
TOKENS = b"MPX,", b"HDR,", b"MQ1,", b"0000000001,", b"9999999999,", b",", b"\0", b"-1", b"\xff" * 8
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


def receive(make, stream, folder, pieces=64):
    """Pass a stream to a receiver in pieces; return it, and its error or None."""
    receiver, error = make(folder), None
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
    except StreamError as failed:
        error = failed
    receiver.close()
    return receiver, error


def merlin_stream(folder):
    """Return a stream of a Merlin, and the function that makes its receiver."""
    path = write_mib(Path(folder) / "played.mib", counting_frames((3, 4, 16, 16), "uint16"))
    stream = b"".join(merlin_messages(path))
    return stream, lambda folder: MerlinReceiver("merlin://test:1", f"{folder}/a.mib", Bound())


STREAMS = {"merlin": merlin_stream}


def main():
    """Change each stream many times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", default=[*STREAMS])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.streams:
        rng, begun, failed = random.Random(options.seed), time.monotonic(), 0
        with tempfile.TemporaryDirectory() as folder:
            stream, make = STREAMS[name](folder)
            tracemalloc.start()
            for _ in range(options.count):
                edits = [
                    (rng.choice(KINDS), rng.random(), rng.randrange(300), rng.choice(TOKENS))
                    for _ in range(rng.randint(1, 4))
                ]
                with tempfile.TemporaryDirectory(dir=folder) as target:
                    _, error = receive(make, mutated(stream, edits), target, rng.randint(1, 200))
                failed += error is not None
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_MEMORY, f"{name}: {peak} bytes"
        seconds = time.monotonic() - begun
        print(f"{name}: {options.count} streams, {failed} refused, {peak} bytes, {seconds:.0f} s")


if __name__ == "__main__":
    main()
