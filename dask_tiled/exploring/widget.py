"""Notebook widget of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anywidget

from dask_tiled.bridges.xarray import to_xarray
from dask_tiled.exploring.detectors import Mask
from dask_tiled.exploring.messages import Message
from dask_tiled.exploring.page import MODULE, STYLE, text_of
from dask_tiled.exploring.pictures import Pictures
from dask_tiled.exploring.session import PageSession
from dask_tiled.model.indexing import Array

if TYPE_CHECKING:
    import xarray as xr


class Explorer(anywidget.AnyWidget):
    """Interactive widget with two linked pictures of an array: see :func:`explore`."""

    _esm = text_of(MODULE)
    _css = text_of(STYLE)

    def __init__(self, pictures: Pictures, source: str, *, follow: bool = False) -> None:
        super().__init__()
        self._session = PageSession(pictures, self._send_message, source, follow=follow)
        self.on_msg(self._receive)

    @property
    def image(self) -> Array:
        """The exact image of the scan; computed now if necessary."""
        return self._settled.image()

    @property
    def mask(self) -> Mask:
        """Mask of the pixels of a frame that the detector covers."""
        return self._settled.mask

    @property
    def code(self) -> str:
        """Code that computes the image, from the array ``arr`` or from files."""
        return self._settled.code()

    def to_xarray(self) -> xr.DataArray:
        """Return the image, with its axes, as a DataArray."""
        session = self._settled
        return to_xarray(session.lazy_image()).copy(data=session.image())

    def close(self) -> None:
        """Cancel all computations, and close the widget."""
        session = self.__dict__.get("_session")
        if session is not None:
            session.close()
        super().close()

    @property
    def _settled(self) -> PageSession:
        self._session.settle()
        return self._session

    def _send_message(self, message: Message) -> None:
        self.send(dict(message.head), [message.data] if message.data else [])

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        self._session.receive(content)
