"""A local HTTP server of byte ranges that counts requests and bytes, and fails on demand."""

import os
import re
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from urllib.parse import quote, unquote


class RangeServer(ThreadingHTTPServer):
    """Server of the files below a folder.

    ``fault(number, path)`` is called for each request of a file, and returns its fault: an HTTP
    status, "drop", "cut", "slow", "whole", "short", "endless", or None.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = str(folder)
        self.counting = Condition()
        self.lists = True
        self.listing_status = 200
        self.tags = True
        self.query = ""
        self.elsewhere = ""
        self.slowness = 0.0
        self.fault = lambda _number, _path: None
        self.reset()

    def reset(self):
        self.asked = []
        self.headers = []
        self.sent = 0
        self.at_once = 0
        self.together = 0
        """Number of concurrent requests that the first answers wait for, at most for 20 s."""
        self.most_at_once = 0

    def url(self, path=""):
        relative = os.path.relpath(path, self.folder) if path else ""
        return f"http://127.0.0.1:{self.server_port}/{quote(relative)}"

    def handle_error(self, request, client_address):
        """Ignore clients that hang up, as some tests do."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, *args):
        """Log nothing."""

    def do_GET(self):
        server = self.server
        path, _, query = self.path.partition("?")
        file = server.folder + unquote(path)
        if query != server.query:
            return self.send_error(403)
        if path.endswith("/"):
            return self.send_page(file)
        with server.counting:
            server.asked.append((path, self.headers.get("Range")))
            server.headers.append(dict(self.headers))
            number = len(server.asked)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            server.counting.notify_all()
            server.counting.wait_for(lambda: server.most_at_once >= server.together, 20)
        time.sleep(server.slowness)
        with server.counting:  # before the answer, after which the client may send a request
            server.at_once -= 1
        if server.elsewhere:
            return self.answer(302, b"", {"Location": server.elsewhere + path})
        self.send_file(file, server.fault(number, path))
        return None

    def send_page(self, folder):
        if not self.server.lists or not os.path.isdir(folder):
            return self.send_error(404)
        if self.server.listing_status != 200:
            return self.send_error(self.server.listing_status)
        found = sorted(os.scandir(folder), key=lambda one: one.name)
        names = [one.name + "/" * one.is_dir() for one in found]
        links = (f'<li><a href="{quote(n)}">{n}</a></li>' for n in names)
        page = f'<html><a href="../">..</a><ul>{"".join(links)}</ul></html>'.encode()
        return self.answer(200, page, {"Content-Type": "text/html; charset=utf-8"})

    def send_file(self, file, fault):
        if isinstance(fault, int):
            return self.send_error(fault)
        if fault == "slow":
            time.sleep(30)
        if fault in {"drop", "slow"}:
            self.close_connection = True
            return None
        if not os.path.isfile(file):
            return self.send_error(404)
        with open(file, "rb") as stream:
            found = os.fstat(stream.fileno())
            headers = {}
            if self.server.tags:
                headers["ETag"] = f'"{found.st_mtime_ns:x}-{found.st_ino:x}"'
                headers["Last-Modified"] = formatdate(found.st_mtime, usegmt=True)
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if match is None or fault == "whole":
                return self.answer(200, stream.read(), headers)
            start, stop = int(match[1]), min(int(match[2]) + 1, found.st_size)
            if start >= found.st_size:
                return self.answer(416, b"", {"Content-Range": f"bytes */{found.st_size}"})
            stream.seek(start)
            data = stream.read(stop - start)
        if fault == "short":
            data = data[: len(data) // 2]
            stop = start + len(data)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.st_size}"
        if fault == "endless":
            data += bytes(64 << 20)
        return self.answer(206, data, headers, cut=fault == "cut")

    def answer(self, status, body, headers, *, cut=False):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if cut:
            body = body[: len(body) // 2]
            self.close_connection = True
        for at in range(0, len(body), 1 << 16):
            part = body[at : at + (1 << 16)]
            with self.server.counting:
                self.server.sent += len(part)
            self.wfile.write(part)


@contextmanager
def serving(folder):
    """Serve a folder in a thread, and yield the server."""
    with RangeServer(folder) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
