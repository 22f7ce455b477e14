"""The page of `explore` in a browser: fixtures, and what a user does there."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from checks import wait_for

from chromium import browser, path_of_browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if path_of_browser() is None:
        reason = "Chromium is not installed; `make test` installs it by npm on Linux on x86-64"
        if os.environ.get("DASK_TILED_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def served():
    """Return a function that serves data in a new thread."""
    uvicorn = pytest.importorskip("uvicorn")
    from dask_tiled.exploring import server
    from dask_tiled.exploring.pictures import pictures_shown, source_of
    from dask_tiled.exploring.session import PageSession

    running = []

    def serve(data, **options):
        sessions, source = [], source_of(data, options)
        pictures, follow = pictures_shown(data, options, follow=False)

        def make(send):
            sessions.append(PageSession(pictures, send, source, follow=follow))
            return sessions[-1]

        app = server.app_of(make, "token")
        sock = server._listening(0)
        config = server.configured(app)
        one = uvicorn.Server(config)
        thread = threading.Thread(target=one.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        running.append((one, thread, sock))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/token/"
        return SimpleNamespace(url=url, sessions=sessions)

    yield serve
    for one, thread, sock in running:
        one.should_exit = True
        thread.join(60)
        sock.close()


def shown(tab):
    """Wait until the page is idle and shows exact pictures."""
    tab.wait("document.querySelector('.dask-tiled-explore')?.ariaBusy === 'false'")
    tab.wait(
        "[...document.querySelectorAll('[data-plot]')].every("
        "(plot) => plot.hidden || plot.dataset.exact === 'true')"
    )


def place(tab, plot, down=0.5, across=0.5):
    """Return screen coordinates of a point in a canvas."""
    box = tab.run(
        f"(() => {{ const b = document.querySelector('[data-plot={plot}] canvas')"
        ".getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )
    return box[0] + across * box[2], box[1] + down * box[3]


def drag_while_filling(chromium, page, go_on, count):
    """Drag the detector of a page while a recorded scan waits; return the session at the end.

    The image is that of the finished file, bit for bit. ``go_on`` lets the other frames come.
    """
    tab = chromium.open(page.url)
    note = "document.querySelector('[data-plot=scan] .note')?.textContent"
    is_part = f"/^[1-9]\\d? % of frames$/.test({note})"
    tab.wait(is_part)
    told = "document.querySelector('.growth').textContent"
    tab.wait(f"/^[1-9]\\d* of {count} frames have arrived; receiving$/.test({told})")
    session = page.sessions[0]
    before = session.state.detector
    start = place(tab, "frame", 0.46, 0.48)
    tab.drag(start, *[(start[0] + k, start[1] + k) for k in range(0, 40, 4)])
    wait_for(lambda: session.state.detector.center[1] > before.center[1] + 2)
    tab.wait(is_part)
    go_on()
    shown(tab)
    tab.wait(f"{told} === 'all {count} frames have arrived; complete'")
    finished = {}
    exec(session.code(), finished)  # noqa: S102 - opens the file that was recorded
    assert session.image().tobytes() == finished["image"].tobytes()
    assert np.any(finished["image"])
    assert not tab.run("document.querySelector('.error').offsetParent")
    assert tab.errors() == []
    tab.close()
    return session
