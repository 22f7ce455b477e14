"""Child processes of this interpreter, which get one end of a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dask_tiled.system.names import offered

fork: Callable[[], int] | None = offered("os", "fork")
_killpg = offered("os", "killpg")
_fcntl, _COPY = offered("fcntl", "fcntl"), offered("fcntl", "F_DUPFD_CLOEXEC")
_startup_info: Any = offered("subprocess", "STARTUPINFO")
_NEW_GROUP, _NO_WINDOW = (
    offered("subprocess", name) for name in ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")
)
SERVE = """
import importlib, json, sys
sys.path[:], module, arguments = json.loads(sys.argv[1])
importlib.import_module(module).serve(int(sys.argv[2]), *arguments)
"""


def start(
    module: str, *arguments: Any, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Any]:
    """Start a process that calls ``serve`` of a module; return it, and the connection to it.

    The process has this one's ``sys.path`` and no standard streams, and Ctrl-C interrupts only this
    one. ``serve`` receives the number of its connection, and the arguments, which are JSON values.
    """
    from multiprocessing.connection import Pipe
    from multiprocessing.spawn import get_executable

    paths = [path for path in sys.path if isinstance(path, str)]
    command = [get_executable() or "", "-P", "-c", SERVE, json.dumps([paths, module, arguments])]
    ours, theirs = Pipe()
    with theirs:
        try:
            return _started(command, theirs, environment), ours
        except BaseException:
            ours.close()
            raise


def _started(
    command: Sequence[str], connection: Any, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command, with the number of the connection in the child appended."""
    nowhere = subprocess.DEVNULL
    options: dict[str, Any] = {"stdin": nowhere, "stdout": nowhere, "stderr": nowhere}
    if _startup_info is None:
        # 0 to 2 are the standard streams.
        given = _fcntl(connection.fileno(), _COPY, 3) if _fcntl else os.dup(connection.fileno())
        options |= {"pass_fds": [given], "process_group": 0}
    else:
        given = connection.fileno()
        offered("os", "set_handle_inheritable")(given, True)  # noqa: FBT003 - takes no keyword
        options["startupinfo"] = _startup_info(lpAttributeList={"handle_list": [given]})
        options["creationflags"] = _NEW_GROUP | _NO_WINDOW
    try:
        command = [*command, str(given)]
        return subprocess.Popen(command, env=environment, **options)  # noqa: S603 - given
    finally:
        if _startup_info is None:
            os.close(given)


def connection_of(number: int) -> Any:
    """Return the connection that `start` gave to this process."""
    name = "multiprocessing.connection"
    return (offered(name, "PipeConnection") or offered(name, "Connection"))(number)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its forks."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            if _killpg is None:
                process.kill()
            else:
                _killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Let imports of libraries fail in this context, unless they were imported before."""
    hidden: dict[str, Any] = {name: None for name in names if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
