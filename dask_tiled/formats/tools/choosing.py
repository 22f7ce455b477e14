"""Choice among the pictures of a file, and the doubt that another one is meant."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dask_tiled.errors import choose_dataset
from dask_tiled.model.doubts import Doubt, by_size_only, may_be_meant


class Chosen(NamedTuple):
    """The number of a picture, and the doubt that another one is meant."""

    number: int
    doubts: tuple[Doubt, ...]


def choose_picture(
    path: str | os.PathLike[str],
    names: Sequence[str],
    dataset: int | str | None,
    sizes: Sequence[int],
    default: int = 0,
    *,
    more: bool = False,
) -> Chosen:
    """Select a picture of a file: the one that the user asks for, or the default.

    The default is in doubt if others may be meant by their size.

    Parameters
    ----------
    path : path
    names : sequence of str
        Names of the pictures; they may be empty, or occur more than once.
    dataset : int or str, optional
        Number or name that the user passed.
    sizes : sequence of int
        Size of each picture, in pixels or bytes.
    default : int
        Number of the picture to choose without ``dataset``.
    more : bool
        Whether there may be more pictures than these.

    Raises
    ------
    DatasetError
        There is no such picture.
    """
    number = choose_dataset(path, names, default if dataset is None else dataset)
    if dataset is not None:
        return Chosen(number, ())
    others = (k for k in range(len(sizes)) if k != number)
    alike = [k for k in others if may_be_meant(sizes[k], sizes[number])]
    times = Counter(names)
    labels = (names[k] if names[k] and times[names[k]] == 1 else k for k in (number, *alike))
    first, *rivals = labels
    where = "the first in the file" if number == 0 else f"number {number} in the file"
    return Chosen(number, by_size_only(first, rivals, where, more=more))
