"""Addresses of detectors: a protocol, a host and a port."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from dask_tiled.errors import DatasetError, nearest

LISTEN = "listen"
"""User name in a URL that makes this side wait for the connection, as in SERVAL's own URLs."""


class Protocol(NamedTuple):
    """A protocol of detectors."""

    port: int
    """Port without one in the URL."""
    suffix: str
    """Suffix of the recorded file."""
    most_memory: int
    """Bytes that its receiver may take: buffers, and messages that wait."""
    beside: str = ""
    """Suffix of another file beside it."""
    listens: bool = False
    """Whether the detector may connect to this side."""
    frames_by: str = ""
    """Option of the format without which its files are not followed; empty if they always are."""
    is_series: bool = False
    """Whether the format reads numbered files as one recording."""
    is_late: bool = False
    """Whether the file is written at the first frame."""


PROTOCOLS = {
    "merlin": Protocol(6342, ".mib", 256 << 20, ".hdr", is_series=True),
    "tpx3": Protocol(8283, ".tpx3", 256 << 20, listens=True, frames_by="frame_time"),
    "dectris": Protocol(31001, ".h5", 5 << 29, is_late=True),
}


def is_address(text: object) -> bool:
    """Return whether a text begins like the address of a detector."""
    return isinstance(text, str) and "://" in text and _protocol(text) in PROTOCOLS


def _protocol(url: str) -> str:
    """Return the protocol of a URL, which may be in capitals."""
    return url.partition("://")[0].lower()


class Address(NamedTuple):
    """Where a detector sends its stream."""

    protocol: str
    host: str
    port: int
    listens: bool = False
    """Whether the detector connects to this address."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a URL.

        Raises
        ------
        DatasetError
            The URL has no known protocol, no host, an invalid port, or more than these.
        """
        known = ", ".join(f"{name}://HOST[:PORT]" for name in PROTOCOLS)
        protocol = _protocol(url) if isinstance(url, str) else ""
        if protocol not in PROTOCOLS or not url.partition("://")[2]:
            problem, hint = "no address of a detector", nearest(protocol, PROTOCOLS)
            raise DatasetError(problem, expected=known, found=repr(url), hint=hint)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            problem = "invalid address of a detector"
            raise DatasetError(problem, path=url, expected=known, found=str(error)) from error
        listens = parts.username == LISTEN and PROTOCOLS[protocol].listens
        user = parts.username if not listens else None
        path, rest = parts.path.strip("/"), (parts.query, parts.fragment)
        others = [one for one in (user, parts.password, path, *rest) if one]
        if not host or others:
            found = ", ".join(others) or "no host"
            problem = "invalid address of a detector"
            raise DatasetError(problem, path=url, expected=known, found=found)
        return cls(protocol, host, PROTOCOLS[protocol].port if port is None else port, listens)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{LISTEN + '@' if self.listens else ''}{host}:{self.port}"
