"""Interactive exploration of an array in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_tiled.errors import require_extra
from dask_tiled.exploring.pictures import pictures_shown, source_of

if TYPE_CHECKING:
    from dask_tiled.exploring.widget import Explorer


def explore(data: Any, *, follow: bool = False, **options: Any) -> Explorer:
    """Show an array in a notebook: the scan, the frame, and a detector to drag.

    During a drag, the image of the scan is an estimate from some of the frames, and marked as one.
    Afterwards it becomes exact: equal to the result of the code below the pictures, bit for bit.
    Threads compute, so the kernel stays free. ``dask-tiled explore FILE`` shows the same in a
    browser.

    Parameters
    ----------
    data : dask.array.Array, numpy.ndarray, DataArray of xarray, path-like, or sequence of these
        An array, opened or computed; or files, as for :func:`open_dataset`, with a menu of all
        their pictures; or a :class:`Recording`, whose first frame is waited for.
    follow : bool
        The files are still being written: the scan fills as frames arrive. An array has to be
        opened with ``follow=True``, too. Recordings are followed.
    **options
        Options of :func:`open_dataset`, if ``data`` are files.

    Returns
    -------
    Explorer
        A widget. ``image`` and ``mask`` are the exact image and the detector as arrays of NumPy,
        ``to_xarray()`` returns the image with its axes, ``code`` is code that computes it, and
        ``close()`` stops all computations.

    Raises
    ------
    ImportError
        The extra ``explore`` is not installed.
    DatasetError
        The array cannot be shown; or as for :func:`open_dataset`.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> dask_tiled.explore(arr)  # doctest: +SKIP
    """
    require_extra("explore", "anywidget")
    from dask_tiled.exploring.widget import Explorer

    pictures, follow = pictures_shown(data, options, follow=follow)
    return Explorer(pictures, source_of(data, options), follow=follow)
