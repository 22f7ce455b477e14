"""Machine code on disk: one file for each function and its types, with a checksum.

One flipped bit in numba's own cache ends the process. Here a file that does not match its checksum
is not loaded: its function is compiled and saved again. Files are replaced atomically, and kernels
share none, so any number of processes can read and write at once.
"""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import read_head
from dask_tiled.files.paths import within
from dask_tiled.foreign import Use, find
from dask_tiled.kernels.compiling import NOTICE
from dask_tiled.kernels.limits import MOST_CODE_BYTES
from dask_tiled.model import requests
from dask_tiled.system.forks import held_at_fork

IN_MEMORY = "kernels are compiled in every process"
WAITS = "a fork while another thread compiles may wait forever to compile"
NAMES = {
    "llvmlite.binding.ffi": {"lib": Use("forks while another thread compiles", WAITS)},
    "numba.core.caching": {
        "FunctionCache": Use("the location of the machine code of a function", IN_MEMORY),
        "IndexDataCacheFile": Use("the files of the machine code of a function", IN_MEMORY),
    },
    "numba.core.compiler_lock": {
        "global_compiler_lock": Use("forks while another thread compiles", WAITS),
    },
    "numba.core.runtime": {"rtsys": Use("the symbols that machine code refers to", IN_MEMORY)},
}
"""By numba module: the private names, their use, and what happens without them."""
FunctionCache: Any = find("numba.core.caching", "FunctionCache")
IndexDataCacheFile: Any = find("numba.core.caching", "IndexDataCacheFile")
rtsys: Any = find("numba.core.runtime", "rtsys")
_llvm: Any = getattr(find("llvmlite.binding.ffi", "lib"), "_lock", None)
for _lock in (_llvm, find("numba.core.compiler_lock", "global_compiler_lock")):
    held_at_fork(getattr(_lock, "_lock", None))
CHANGED = (AttributeError, NotImplementedError, TypeError)
"""Errors raised if another release of numba stores machine code differently."""

DIGEST_BYTES = hashlib.sha256().digest_size


def digest_of(folder: Path) -> str:
    """Return a digest of all modules of a folder, as their functions call each other.

    The numbers of requests are part of the code, too.
    """
    modules = [*sorted(folder.glob("*.py")), Path(requests.__file__)]
    return hashlib.sha256(b"".join(module.read_bytes() for module in modules)).hexdigest()


SOURCES = digest_of(Path(__file__).parent)
"""Digest of the sources of this process, taken at import: a module may change on disk later."""


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Load and save the machine code of one function.

    ``options`` are the compiler options; like the types, they are part of the key.
    """

    def __init__(self, function: Any, options: object) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, (SOURCES, options))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code; announce a compilation if there is none.

        Code needs symbols only. numba's own method imports all that a compiler needs: 0.25 s.
        """
        rtsys.initialize(target_context)
        found = self._load_overload(sig, target_context)
        if found is None:
            NOTICE.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save machine code, if the folder can be written to."""
        with suppress(OSError):
            super().save_overload(sig, data)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """Files of one function, without numba's index, which concurrent processes overwrite."""

    def load(self, key: Any) -> Any:
        """Return the saved code, or None if it is missing or damaged."""
        content = _content(self._path(key))
        code = content[2 * DIGEST_BYTES :]
        if content != _sealed(self._made_from(key), code):
            return None
        try:
            return pickle.loads(code)  # noqa: S301 - the checksum matches
        except Exception:  # noqa: BLE001 - saved by another version of a library
            return None

    def save(self, key: Any, data: Any) -> None:
        """Save code compiled by numba, with its key and checksum."""
        content = _sealed(self._made_from(key), self._dump(data))
        with self._open_for_write(self._path(key)) as file:
            file.write(content)

    def _path(self, key: Any) -> str:
        types = hashlib.sha256(repr(key).encode()).digest()
        return str(self._data_path(self._data_name(int.from_bytes(types[:8]))))

    def _made_from(self, key: Any) -> bytes:
        made_from = repr((self._version, self._source_stamp, key)).encode()
        return hashlib.sha256(made_from).digest()


def _content(path: str | Path) -> bytes:
    """Read a file of any kind; return no bytes if it cannot be read."""
    try:
        with within(None):  # while a scan is opened, only its folders may be read
            return read_head(path, MOST_CODE_BYTES)
    except (OSError, DatasetError):
        return b""


def _sealed(made_from: bytes, code: bytes) -> bytes:
    return made_from + hashlib.sha256(made_from + code).digest() + code


class CacheState(NamedTuple):
    """State of the folder that holds the machine code of this package."""

    folder: str | None
    """None if no folder is writable: each process compiles everything."""
    files: int
    nbytes: int
    damaged: tuple[str, ...]
    """Files that do not match their checksum; compiled again when needed."""


def look() -> CacheState:
    """Check the checksums of all machine code on disk, loading none."""
    try:
        folder = Path(CodeCache(digest_of, None).cache_path)
    except (RuntimeError, *CHANGED):  # raised by numba
        return CacheState(None, 0, 0, ())
    contents = {path.name: _content(path) for path in sorted(folder.glob("*.nbc"))}
    damaged = [
        name
        for name, content in contents.items()
        if content != _sealed(content[:DIGEST_BYTES], content[2 * DIGEST_BYTES :])
    ]
    return CacheState(str(folder), len(contents), sum(map(len, contents.values())), tuple(damaged))
