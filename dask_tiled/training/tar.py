"""Samples in tar files."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from typing import Any

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.files.file import read_exactly, read_head

Path = str | os.PathLike[str]


class TarSamples:
    """Samples in tar files, as WebDataset stores them: members with one name before the first dot.

    A data set: ``samples[i]`` is a dict of bytes by extension, such as ``"jpg"`` and ``"cls"``,
    with the common name as ``"__key__"``.

    Parameters
    ----------
    paths : path or sequence of paths
        Tar files, not compressed.

    Raises
    ------
    DatasetError
        A file is not a tar file, is compressed, is damaged, or has a member twice.

    Examples
    --------
    >>> import io, tarfile
    >>> import dask_tiled
    >>> with tarfile.open("shard.tar", "w") as tar:
    ...     member = tarfile.TarInfo("0.cls")
    ...     member.size = 1
    ...     tar.addfile(member, io.BytesIO(b"3"))
    >>> dask_tiled.TarSamples("shard.tar")[0]
    {'__key__': '0', 'cls': b'3'}
    """

    def __init__(self, paths: Path | Sequence[Path]) -> None:
        self._samples: list[tuple[str, str, dict[str, tuple[int, int]]]] = []
        for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
            self._index(os.fspath(path))

    def _index(self, path: str) -> None:
        """List the members of a file, without reading their content."""
        last = None
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    folder, name = os.path.split(member.name)
                    stem, dot, ending = name.partition(".")
                    if not member.isreg() or not dot or not stem:
                        continue
                    key = os.path.join(folder, stem)
                    if key != last:
                        self._samples.append((path, key, {}))
                        last = key
                    members, ending = self._samples[-1][2], ending.lower()
                    if ending in members or member.issparse():
                        problem = "a duplicate" if ending in members else "a sparse"
                        raise DatasetError(f"{problem} member", path=path, where=member.name)
                    members[ending] = member.offset_data, member.size
                # tarfile stops at the first invalid header, but only zeros are a valid end.
                if any(read_head(path, tarfile.BLOCKSIZE, tar.offset)):
                    expected = "a header, or zeros"
                    where = f"byte {tar.offset}"
                    raise CorruptFileError(
                        "the tar file is damaged", path=path, where=where, expected=expected
                    )
        except tarfile.TarError as error:
            hint = "Decompress the file if it is compressed."
            raise DatasetError("not a tar file", path=path, found=str(error), hint=hint) from error

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        path, key, members = self._samples[number]
        found = {
            ending: read_exactly(path, size, at, f"the member {key}.{ending}") if size else b""
            for ending, (at, size) in members.items()
        }
        return {"__key__": key, **found}
