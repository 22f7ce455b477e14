"""Redirects to other hosts, which must not receive the secrets of the first host.

The HTTP client of obstore follows redirects automatically. For another host it removes credentials
from the headers, but sends all other headers, and the whole previous URL as ``Referer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from dask_tiled.errors import RemoteError

TAKEN_OUT = {"authorization", "cookie", "proxy-authorization", "user-agent"}
"""Headers that are not secret, or that the client removes for other hosts."""
SECONDS = 30
MOST_REDIRECTS = 10
REDIRECTIONS = {301, 302, 303, 307, 308}


def has_secrets(query: str, client: Mapping[str, Any]) -> bool:
    """Return whether the HTTP client would send possible secrets to another host."""
    return bool(query) or any(name.lower() not in TAKEN_OUT for name in headers_of(client))


def headers_of(client: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers of every request."""
    return client.get("default_headers") or {}


def redirected(url: str, client: Mapping[str, Any]) -> str | None:
    """Return the URL on another host that a URL redirects to; None if the host stays the same.

    Raise an OSError if the server does not respond, and a RemoteError if there are too many
    redirects.
    """
    from urllib.error import HTTPError
    from urllib.request import Request

    opener, first = _opener(client), urlsplit(url)
    place = url
    for _ in range(MOST_REDIRECTS):
        request = Request(place, headers={**headers_of(client), "Range": "bytes=0-0"})  # noqa: S310
        try:
            opener.open(request, timeout=SECONDS).close()
        except HTTPError as error:
            with error:
                target = error.headers.get("Location")
            if target and error.code in REDIRECTIONS:
                place = urljoin(place, target)
                if urlsplit(place)[:2] != first[:2]:
                    return place
                continue
        return None
    raise RemoteError("the server redirects too often", path=url.partition("?")[0])


def _opener(client: Mapping[str, Any]) -> Any:
    """Return an HTTP client that follows no redirects, with the options of obstore's client."""
    import ssl
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    trust = ssl.create_default_context()
    if client.get("root_certificate"):
        given = client["root_certificate"]
        trust.load_verify_locations(cadata=given if isinstance(given, str) else given.decode())
    if client.get("allow_invalid_certificates"):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    proxy = client.get("proxy_url")
    proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    return build_opener(Stay, HTTPSHandler(context=trust), proxies)
