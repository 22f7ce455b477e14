"""Opens HDF5 files, whoever else has them open; as a program, reads one for another process.

Plugins of the HDF5 library believe what a damaged chunk says, and end the process that they are in.
Nothing of this package is imported here, so that the program starts in no time.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

Bounds = Sequence[tuple[int, int]]
"""The first position on each axis, and the one after the last."""
OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "file locking flag": {},
    "already open for write": {"locking": False, "swmr": True, "libver": "latest"},
}
"""How else to open a file that cannot be opened without locks, by what the library says to that:
this process has it open with locks, or somebody writes who may let others read. The latter is never
tried first: where metadata are damaged, the library would wait for somebody to complete them."""


def open_file(path: str, stream: Any = None) -> Any:
    """Open a file with h5py, and with the plugins that bring it more filters, if installed.

    It may be open already, as a stream.
    """
    import h5py

    with suppress(ImportError, OSError, RuntimeError):
        importlib.import_module("hdf5plugin")
    try:
        return h5py.File(path if stream is None else stream, "r", locking=False)
    except OSError as error:
        how = next((how for why, how in OTHERWISE.items() if why in str(error)), None)
        if how is not None:
            with suppress(OSError):  # what it said first tells more
                return h5py.File(path, "r", **how)
        raise OSError(f"{path}: {error}") from error


def read_box(dataset: Any, bounds: Bounds) -> Any:
    """Read a box of a dataset, whose axes are the last ones; in its own type, bit fields too."""
    inside = bounds[len(bounds) - dataset.ndim :]
    return dataset[tuple(slice(*ends) for ends in inside)]


@contextmanager
def opened(path: str, name: str, stream: Any = None) -> Iterator[Callable[[Bounds], Any]]:
    """Open a dataset; give what reads a box of it."""
    with open_file(path, stream) as file:
        yield partial(read_box, file[name])


@contextmanager
def apart(path: str, name: str) -> Iterator[Callable[[Bounds], Any]]:
    """Start a process that reads a dataset; give what asks it for a box.

    That raises RuntimeError for what the process cannot read, also if it ends for it.
    """
    import numpy as np

    command = [sys.executable, "-P", __file__, path, name]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:  # noqa: S603 - own
        questions: Any = process.stdin
        answers: Any = process.stdout

        def read(bounds: Bounds) -> Any:
            with suppress(BrokenPipeError):
                questions.write(json.dumps(bounds).encode() + b"\n")
                questions.flush()
            length, _, problem = answers.readline().decode().strip().partition(" ")
            if problem or not length:
                raise RuntimeError(problem or f"the end of its process, with {process.wait()}")
            return np.load(io.BytesIO(answers.read(int(length))), allow_pickle=False)

        try:
            yield read
        finally:
            with suppress(BrokenPipeError):
                questions.close()


def serve(path: str, name: str) -> None:
    """Read the boxes that are asked for, one on a line; answer with npy files."""
    import numpy as np

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # some plugins print
    with opened(path, name) as read:
        for line in sys.stdin:
            answer, problem = io.BytesIO(), ""
            try:
                np.save(answer, read(json.loads(line)), allow_pickle=False)
            except Exception as error:  # noqa: BLE001 - it is told to who asked
                problem = " ".join(str(error).split()) or type(error).__name__
            answers.write(f"{answer.tell()} {problem}\n".encode())
            answers.write(answer.getvalue() if not problem else b"")
            answers.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
