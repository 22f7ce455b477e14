"""Response times of `explore`: opening, dragging a detector, moving the position.

Run ``python benchmarks/exploring.py``. It times a session by itself and, if Chromium is installed,
the page in a browser, from the pointer event to the picture. The file is in the page cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

MOVES = 40
TESTS = Path(__file__).parents[1] / "tests"

MOVE = """
new Promise((done) => {
  const page = document.querySelector(".dask-tiled-explore"), start = performance.now();
  const canvas = document.querySelector("[data-plot=%(plot)s] canvas");
  const box = canvas.getBoundingClientRect();
  canvas.setPointerCapture = () => {};
  canvas.dispatchEvent(new PointerEvent("%(event)s", {
    clientX: box.left + %(x)f * box.width, clientY: box.top + %(y)f * box.height,
    pointerId: 1, button: 0, buttons: 1, bubbles: true,
  }));
  const look = () => {
    if (page.ariaBusy === "true") return false;
    requestAnimationFrame(() => done(performance.now() - start));
    return true;
  };
  const observer = new MutationObserver(() => look() && observer.disconnect());
  if (!look()) observer.observe(page, { attributes: true });
})
"""


def told(name: str, seconds: list[float]) -> None:
    """Print the median and the 95th percentile."""
    middle, late = statistics.median(seconds), sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    print(f"{name:<44}{1e3 * middle:9.1f} ms{1e3 * late:9.1f} ms")


class Timed:
    """Records the messages of a session with their times."""

    def __init__(self, arr: Any) -> None:
        from dask_tiled.exploring.pictures import Pictures
        from dask_tiled.exploring.session import PageSession

        self.came = threading.Condition()
        self.messages: list[tuple[float, Any]] = []
        self.session = PageSession(Pictures.of(arr, {}), self._take)

    def _take(self, message: Any) -> None:
        with self.came:
            self.messages.append((time.perf_counter(), message))
            self.came.notify_all()

    def first(self, kind: str, act: Any) -> float:
        """Act, and return the seconds until the first message of a kind."""
        with self.came:
            self.messages.clear()
        start = time.perf_counter()
        act()
        with self.came:
            self.came.wait_for(lambda: any(m.kind == kind for _, m in self.messages), 30)
            return next(at for at, m in self.messages if m.kind == kind) - start


def of_session(path: str, options: dict[str, Any], patience: float) -> None:
    """Time a session by itself; wait up to `patience` seconds for exact images."""
    import dask_tiled

    opening = []
    for _ in range(3):
        start = time.perf_counter()
        one = Timed(dask_tiled.open_dataset(path, **options))
        one.first("image", one.session.begin)
        opening.append(time.perf_counter() - start)
        one.session.wait(patience)
        one.session.wait(patience)
        one.session.close()
    told("open to first image", opening)
    one = Timed(dask_tiled.open_dataset(path, **options))
    one.session.begin()
    one.session.wait(patience)
    one.session.wait(patience)
    state, rng = one.session.state, np.random.default_rng(0)
    drags, frames = [], []
    for k in range(1, MOVES + 1):
        moved = state.detector._replace(radius=state.detector.radius * (1 + k / 100))
        drags.append(
            one.first("image", lambda m=moved: one.session._show(state._replace(detector=m)))  # noqa: SLF001
        )
    one.session.wait(patience)
    start = time.perf_counter()
    one.session._show(state._replace(detector=state.detector._replace(radius=9.5)))  # noqa: SLF001
    one.session.wait(patience)
    exact = time.perf_counter() - start
    state = one.session.state
    for _ in range(MOVES):
        position = tuple(int(rng.integers(n)) for n in one.session.scene.scan_shape)
        frames.append(
            one.first("frame", lambda p=position: one.session._show(state._replace(position=p)))  # noqa: SLF001
        )
    told("drag to first estimate", drags)
    told("frame at a position", frames)
    told("drag to exact", [exact])
    one.session.close()


def of_page(path: str, options: dict[str, Any]) -> None:
    """Time the page in a browser."""
    sys.path.insert(0, str(TESTS))
    chromium = import_module("chromium")
    if chromium.path_of_browser() is None:
        print("Chromium is not installed: the page is not timed")
        return
    import uvicorn

    from dask_tiled.exploring import server
    from dask_tiled.exploring.pictures import Pictures
    from dask_tiled.exploring.session import PageSession

    pictures = Pictures.of(path, options)
    sock = server._listening(0)  # noqa: SLF001
    app = server.app_of(lambda send: PageSession(pictures, send), "token")
    one = uvicorn.Server(server.configured(app))
    thread = threading.Thread(target=one.run, kwargs={"sockets": [sock]})
    thread.start()
    with tempfile.TemporaryDirectory() as folder, chromium.browser(folder) as found:
        start = time.perf_counter()
        tab = found.open(f"http://127.0.0.1:{sock.getsockname()[1]}/token/")
        tab.wait("Number(document.querySelector('[data-plot=scan]')?.dataset.pictures) > 0")
        told("page: opened to first image", [time.perf_counter() - start])
        for name, plot in (
            ("page: drag to first estimate", "frame"),
            ("page: frame at a position", "scan"),
        ):
            tab.wait("document.querySelector('[data-plot=scan]').dataset.exact === 'true'", 60)
            times = []
            for k in range(MOVES + 1):
                event = "pointermove" if k else "pointerdown"
                at = {"x": 0.48 + 0.004 * k, "y": 0.46 + 0.003 * k}
                taken = tab.run(MOVE % {"plot": plot, "event": event, **at}) / 1e3
                times += [taken] if k else []
            tab.run(MOVE % {"plot": plot, "event": "pointerup", **at})
            told(name, times)
    one.should_exit = True
    thread.join()
    sock.close()


def of_others(path: str, options: dict[str, Any]) -> None:
    """Time LiberTEM with an equal disk, and HyperSpy's navigator."""
    nav, sig = options["nav_shape"], options["sig_shape"]
    api = import_module("libertem.api")
    with api.Context.make_with("threads") as context:
        data = context.load("raw", path=path, dtype="u2", nav_shape=nav, sig_shape=sig)
        disk = {"cx": sig[1] / 2, "cy": sig[0] / 2, "r": 20}
        first, whole = [], []
        for _ in range(4):
            analysis = context.create_disk_analysis(data, **disk)
            start = time.perf_counter()
            parts = context.run_udf_iter(dataset=data, udf=analysis.get_udf())
            next(parts)
            first.append(time.perf_counter() - start)
            for _ in parts:
                pass
            whole.append(time.perf_counter() - start)
        told("LiberTEM: disk to first part", first[1:])
        told("LiberTEM: disk to exact", whole[1:])
    signals = import_module("hyperspy.signals")
    array = import_module("dask.array")
    arr = array.from_array(np.memmap(path, "u2", "r", shape=(*nav, *sig)), chunks=(16, 16, -1, -1))
    lazy = signals.Signal2D(arr).as_lazy()
    start = time.perf_counter()
    lazy.compute_navigator(show_progressbar=False)
    told("HyperSpy: navigator", [time.perf_counter() - start])
    frames = []
    for k in range(9):
        start = time.perf_counter()
        lazy.inav[k, k].compute(show_progressbar=False)
        frames.append(time.perf_counter() - start)
    told("HyperSpy: frame at a position", frames[1:])


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--sparse", action="store_true", help="a sparse file of any size")
    parser.add_argument("--others", action="store_true", help="LiberTEM and HyperSpy, too")
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    side = 128
    rows = max(1, round((args.gigabytes * 1e9 / 2 / side**2) ** 0.5))
    options: dict[str, Any] = {"format": "raw", "dtype": "u2"}
    options |= {"nav_shape": (rows, rows), "sig_shape": (side, side)}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = os.path.join(folder, "scan.raw")
        size = rows * rows * side**2 * 2
        with open(path, "wb") as file:
            if args.sparse:
                file.truncate(size)
            else:
                y, x = np.indices((side, side)) - side / 2
                rates = np.where(np.hypot(y, x) < 20, 20, 1)
                row = np.random.default_rng(0).poisson(rates, (rows, side, side)).astype("u2")
                for _ in range(rows):
                    row.tofile(file)
        print(f"{rows} x {rows} x {side} x {side} uint16, {size / 1e9:.2f} GB")
        print(f"{'':<44}{'median':>12}{'p95':>12}")
        of_session(path, options, 0.5 if args.sparse else 60)
        if not args.sparse:
            of_page(path, options)
        if args.others:
            of_others(path, options)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory of the process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
