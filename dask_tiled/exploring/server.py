"""Local HTTP server of the page; access requires a secret token."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dask_tiled.errors import DatasetError, require_extra
from dask_tiled.exploring.messages import Message
from dask_tiled.exploring.page import DOCUMENT, MODULE, START, STYLE, text_of
from dask_tiled.exploring.pictures import pictures_shown
from dask_tiled.exploring.running import message_of
from dask_tiled.exploring.session import PageSession
from dask_tiled.exploring.state import MOST_LETTERS, read_message

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

HOST = "127.0.0.1"
NAMES = HOST, "localhost"
"""Accepted host names; other names may be rebound to this machine (DNS rebinding)."""
MOST_PAGES = 8
"""Maximum number of simultaneous pages."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Outbox:
    """Queue of messages, which keeps only the last of each kind."""

    def __init__(self) -> None:
        self._waiting: dict[str, Message] = {}
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()

    def put(self, message: Message) -> None:
        """Enqueue a message; thread-safe."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: Message) -> None:
        self._waiting.pop(message.kind, None)
        self._waiting[message.kind] = message
        self._some.set()

    async def get(self) -> Message:
        """Wait for the next message."""
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        return self._waiting.pop(next(iter(self._waiting)))


def app_of(make: Callable[[Callable[[Message], None]], PageSession], token: str) -> Starlette:
    """Build the application: the page below the token, with a session for each connection.

    Parameters
    ----------
    make : callable
        Creates the session of a page, from a function that sends messages.
    token : str
    """
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute

    kinds = {
        "": (DOCUMENT, "text/html"),
        MODULE: (text_of(MODULE), "text/javascript"),
        START: (text_of(START), "text/javascript"),
        STYLE: (text_of(STYLE), "text/css"),
    }
    pages: set[WebSocket] = set()

    def may_see(connection: HTTPConnection) -> bool:
        given = str(connection.path_params.get("token", ""))
        known = secrets.compare_digest(given.encode(), token.encode())
        return known and _host(connection) in NAMES

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if not may_see(request) or name not in kinds:
            return PlainTextResponse("not found", 404, HEADERS)
        text, kind = kinds[name]
        return Response(text, media_type=kind, headers=HEADERS)

    async def talk(websocket: WebSocket) -> None:
        if not may_see(websocket) or not _is_of_page(websocket) or len(pages) >= MOST_PAGES:
            await websocket.close(1008)
            return
        await websocket.accept()
        pages.add(websocket)
        try:
            await _talk(websocket, make)
        finally:
            pages.discard(websocket)

    return Starlette(
        routes=[
            Route("/{token}/", page),
            Route("/{token}/{name}", page),
            WebSocketRoute("/{token}/socket", talk),
        ]
    )


async def _talk(
    websocket: WebSocket, make: Callable[[Callable[[Message], None]], PageSession]
) -> None:
    """Exchange messages until the page is closed."""
    from starlette.websockets import WebSocketDisconnect

    outbox = Outbox()
    try:
        session = await asyncio.to_thread(make, outbox.put)
    except Exception as error:  # noqa: BLE001 - shown on the page
        await websocket.send_bytes(_error(error).packed())
        await websocket.close(1011)
        return
    sender = asyncio.create_task(_send(websocket, outbox))
    try:
        while True:
            received = await websocket.receive()
            if received["type"] == "websocket.disconnect":
                return
            try:
                message = read_message(received.get("text"))
            except DatasetError as error:
                outbox.put(_error(error))
                continue
            await asyncio.to_thread(session.receive, message)
    except WebSocketDisconnect:
        pass
    finally:
        sender.cancel()
        threading.Thread(target=session.close, name="closing").start()  # closing waits for tasks


async def _send(websocket: WebSocket, outbox: Outbox) -> None:
    while True:
        await websocket.send_bytes((await outbox.get()).packed())


def _error(error: Exception) -> Message:
    return Message({"type": "error", "text": message_of(error)})


def _is_of_page(connection: HTTPConnection) -> bool:
    """Return whether the connecting page was served by this server."""
    origin, host = connection.headers.get("origin", ""), connection.headers.get("host", "")
    return origin == f"http://{host}"


def _host(connection: HTTPConnection) -> str:
    """Return the host that a request names, without the port."""
    host: str = connection.headers.get("host", "")
    name, _, port = host.rpartition(":")
    return name if port.isdigit() else host


def serve(
    data: Any, options: dict[str, Any], source: str = "", *, port: int = 0, browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Serve the page of an array or of files until the process is interrupted.

    Parameters
    ----------
    data, options
        An array, files with options of :func:`open_dataset`, or a recording.
    source : str
        Code that opens the array.
    port : int
        Port; by default any free one.
    browser : bool
        Open a browser. The secret address is passed in a file that only the user can read.
    say : callable
        Called with the address.

    Raises
    ------
    ImportError
        The extra ``explore`` is not installed.
    DatasetError
        As for :func:`open_dataset`; or the port is taken.
    """
    uvicorn = require_extra("explore", "starlette", "websockets", "uvicorn")
    follow = bool(options.get("follow"))
    pictures, follow = pictures_shown(data, options, follow=follow)
    PageSession(pictures, lambda _: None).close()  # raise early if nothing can be drawn

    def make(send: Callable[[Message], None]) -> PageSession:
        return PageSession(pictures, send, source, follow=follow)

    token = secrets.token_urlsafe(24)
    app = app_of(make, token)
    with _listening(port) as sock, TemporaryDirectory(prefix="dask-tiled-") as folder:
        address = f"http://{HOST}:{sock.getsockname()[1]}/{token}/"
        say(address)  # connections wait until the server runs
        if browser:
            webbrowser.open(f"file://{_redirect(folder, address)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(configured(app)).run(sockets=[sock])


def configured(app: Starlette) -> Any:
    """Return the server's configuration: small messages, no logs, immediate shutdown."""
    import uvicorn

    return uvicorn.Config(
        app, log_level="error", access_log=False, ws="websockets-sansio",
        ws_max_size=4 * MOST_LETTERS, ws_per_message_deflate=False,
        server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip


def _listening(port: int) -> socket.socket:
    # With an explicit protocol, asyncio disables Nagle's algorithm.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen()
    except (OSError, OverflowError) as error:
        sock.close()
        problem, hint = f"port {port} cannot be used", "Leave out the port to use any free one."
        raise DatasetError(problem, found=str(error), hint=hint) from error
    return sock


def _redirect(folder: str, address: str) -> str:
    """Write a document that redirects to the page, as command lines are visible to all users.

    Only the user can read the folder.
    """
    path = os.path.join(folder, "explore.html")
    with open(path, "w", encoding="utf8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    return path
