"""The verb: two linked pictures of an array in a notebook."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_tiled.exploring.pictures import Pictures

if TYPE_CHECKING:
    from dask_tiled.exploring.widget import Explorer


def explore(data: Any, *, follow: bool = False, **options: Any) -> Explorer:
    """Show an array in a notebook: the scan, the frame, and a detector to drag.

    While something is dragged, the image of the scan is an estimate from some of the frames, and
    says so. At rest it is exact: that of the code below the pictures, bit for bit. The kernel
    stays free, since threads compute. ``dask-tiled explore FILE`` shows the same in a browser.

    Parameters
    ----------
    data : dask.array.Array, numpy.ndarray, DataArray of xarray, path-like or sequence of path-like
        An array, opened or computed; or files, as for :func:`open_dataset`: all pictures that these
        list can be chosen.
    follow : bool
        The files are still being written: frames are shown as they come.
    **options
        Those of :func:`open_dataset`, for what is not open yet.

    Returns
    -------
    Explorer
        A widget. ``image`` and ``mask`` are the exact image and the detector as arrays of NumPy,
        ``to_xarray()`` is the image with its axes, ``code`` what computes it. ``close()`` ends it.

    Raises
    ------
    ImportError
        The extra ``explore`` is not installed.
    DatasetError
        There is nothing that can be shown; or as for :func:`open_dataset`.
    """
    try:
        import_module("anywidget")
    except ImportError as error:
        hint = 'exploring needs anywidget. Run: pip install "dask-tiled[explore]"'
        raise ImportError(hint, name="anywidget") from error
    from dask_tiled.exploring.widget import Explorer

    return Explorer(Pictures.of(data, options, follow=follow), follow=follow)
