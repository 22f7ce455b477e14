"""Machine code on disk: a file for each function and its types, with a checksum of what it holds.

numba loads what it finds in its cache, and one flipped bit of that ends the process. What differs
from its checksum is not loaded here: it is compiled and written again. Files appear whole or not at
all, and no two kernels share one, so that any number of processes can read and write at once.
"""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.foreign import Use, find
from dask_tiled.kernels.compiling import NOTICE
from dask_tiled.model.files import read_head

IN_MEMORY = "kernels are compiled in every process"
NAMES = {
    "numba.core.caching": {
        "FunctionCache": Use("where the machine code of a function is", IN_MEMORY),
        "IndexDataCacheFile": Use("the files of the machine code of a function", IN_MEMORY),
    },
}
"""By the module of numba: the names, their use, and what happens without them."""
FunctionCache: Any = find("numba.core.caching", "FunctionCache")
IndexDataCacheFile: Any = find("numba.core.caching", "IndexDataCacheFile")
CHANGED = (AttributeError, NotImplementedError, TypeError)
"""What is raised where numba keeps machine code in another way."""

MOST_BYTES = 1 << 26
"""No function has more."""
DIGEST_BYTES = hashlib.sha256().digest_size


def digest_of(folder: Path) -> str:
    """Return a digest of all modules in a folder: their functions call each other."""
    modules = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(module.read_bytes() for module in modules)).hexdigest()


SOURCES = digest_of(Path(__file__).parent)
"""Of what this process compiles: taken early, before anybody changes a module."""


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Where numba looks for a function's machine code, and leaves it.

    ``options`` tell with what it is compiled, beside its types.
    """

    def __init__(self, function: Any, options: object) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), SOURCES, options
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code; where it is not there, say that it is compiled."""
        found = super().load_overload(sig, target_context)
        if found is None:
            NOTICE.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write machine code, if there is a place for it."""
        with suppress(OSError):
            super().save_overload(sig, data)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one function, without numba's index, in which processes overwrite each other."""

    def load(self, key: Any) -> Any:
        """Return what was saved; None where that is not there, or not as it was written."""
        content = _content(self._path(key))
        code = content[2 * DIGEST_BYTES :]
        if content != _sealed(self._made_from(key), code):
            return None
        try:
            return pickle.loads(code)  # noqa: S301 - it is what was written
        except Exception:  # noqa: BLE001 - for a library that is another one now
            return None

    def save(self, key: Any, data: Any) -> None:
        """Write what numba made."""
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
    """Read a file, whatever has been put in its place; nothing where that cannot be."""
    try:
        return read_head(path, MOST_BYTES)
    except (OSError, DatasetError):
        return b""


def _sealed(made_from: bytes, code: bytes) -> bytes:
    return made_from + hashlib.sha256(made_from + code).digest() + code


class CacheState(NamedTuple):
    """What the folder with the machine code of this package is like."""

    folder: str | None
    """None where no folder can be written to: everything is compiled in every process."""
    files: int
    nbytes: int
    damaged: tuple[str, ...]
    """Files that are not as they were written. They are compiled again when they are needed."""


def look() -> CacheState:
    """Read all machine code of this package that is on disk, and load none of it."""
    try:
        folder = Path(CodeCache(digest_of, None).cache_path)
    except (RuntimeError, *CHANGED):  # of numba
        return CacheState(None, 0, 0, ())
    contents = {path.name: _content(path) for path in sorted(folder.glob("*.nbc"))}
    damaged = [
        name
        for name, content in contents.items()
        if content != _sealed(content[:DIGEST_BYTES], content[2 * DIGEST_BYTES :])
    ]
    return CacheState(str(folder), len(contents), sum(map(len, contents.values())), tuple(damaged))
