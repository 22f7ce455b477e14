"""A headless Chromium, driven through the DevTools protocol."""

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from pathlib import Path

from checks import wait_for

HERE = Path(__file__).parent
UNPACKED = HERE / "node_modules" / "unpacked"
INSTALLED = UNPACKED / "chromium"
NAMES = "chromium", "chromium-browser", "google-chrome", "chrome"
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--remote-debugging-port=0", "--window-size=1280,900", "--force-color-profile=srgb",
)  # fmt: skip


def path_of_browser():
    """Return the path of the browser installed by `make test` or of the system's; or None."""
    if (sys.platform, platform.machine()) == ("linux", "x86_64") and INSTALLED.is_file():
        return str(INSTALLED)
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(folder):
    """Run a browser with its profile in a folder, and yield the connection."""
    from websockets.sync.client import connect

    path, env = path_of_browser(), os.environ | {"XDG_CACHE_HOME": str(folder)}
    if path == str(INSTALLED):
        env["LD_LIBRARY_PATH"] = str(UNPACKED / "al2023" / "lib")
        env["FONTCONFIG_FILE"] = str(HERE / "fonts.conf")
    command = [path, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    try:
        told = Path(folder) / "DevToolsActivePort"
        wait_for(lambda: told.is_file() and told.read_text().count("\n") == 1)
        port, path = told.read_text().split("\n")
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(60)


class Browser:
    """A connection to a browser."""

    def __init__(self, socket):
        self.socket = socket
        self.events = deque()
        self.number = 0

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self.socket.recv(300))
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url, **media):
        """Open a page in a tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        features = [{"name": name, "value": value} for name, value in media.items()]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.call("Page.navigate", url=url)
        return tab


class Tab:
    """A page in a browser."""

    def __init__(self, browser, session, target):
        self.browser = browser
        self.session = session
        self.target = target

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def run(self, code):
        """Return the value of an expression."""
        found = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, code, seconds=300):
        return wait_for(lambda: self.run(code), seconds)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, *places, modifiers=0):
        """Press the mouse at the first place, move along, and release it at the last."""
        held = {"button": "left", "modifiers": modifiers, "clickCount": 1}
        self.mouse("mousePressed", *places[0], **held)
        for place in places[1:]:
            self.mouse("mouseMoved", *place, buttons=1, **held)
        self.mouse("mouseReleased", *places[-1], **held)

    def wheel(self, x, y, by):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=by)

    def key(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self):
        """Return the page as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def errors(self):
        """Return the page's exceptions and log entries."""
        self.run("0")
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded"}
        return [event["params"] for event in self.browser.events if event.get("method") in kinds]

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
