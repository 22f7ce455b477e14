"""Session of a page: its state, running computations and results."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.arriving.computation import Arriving
from dask_tiled.arriving.following import Following
from dask_tiled.converting.convert import convert
from dask_tiled.errors import DatasetError, format_bytes
from dask_tiled.exploring.detectors import DetectorJob, Mask, SizedDisk
from dask_tiled.exploring.estimates import (
    RATE,
    REMOTE_RATE,
    Estimate,
    Pace,
    coarse_estimate,
    estimates,
    mean_estimates,
)
from dask_tiled.exploring.filling import LOOK, awaited_frame, filling_images, rows_there, told_of
from dask_tiled.exploring.messages import Message, picture_message
from dask_tiled.exploring.pictures import Pictures
from dask_tiled.exploring.running import Check, Computing, Newest, message_of
from dask_tiled.exploring.scene import Scene
from dask_tiled.exploring.state import Bounds, State, bounds, check_message, whole
from dask_tiled.exploring.zooming import part_of, scenes_of
from dask_tiled.measuring.disk_fits import bright_circle
from dask_tiled.measuring.sampling import is_remote
from dask_tiled.model.doubts import Suggestion
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.growing import refreshed
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.scan_lines import ScanCandidate, in_shape, scan_candidates

MOST_ASKED = 1 << 30
"""Upper limit of request ids."""
RESTS = 0.06
"""Seconds without requests before estimates are refined: cores stay free during a drag."""
MOST_SAVED = 1 << 28
"""Maximum number of bytes of an image that is sent to the page as a file: it is held in memory."""
TELLS = 0.2
"""Least seconds between two messages about the frames that have arrived."""


class PageSession:
    """Session of a page: it receives requests as messages, and sends pictures.

    One thread computes images, another one frames. Outdated computations are cancelled.

    Parameters
    ----------
    pictures : Pictures
    send : callable
        Called with each :class:`Message` to the page, in any thread.
    source : str
        Code that opens the array, for the copyable code; empty if unknown.
    follow : bool
        Follow frames that are added to the files.
    """

    def __init__(
        self,
        pictures: Pictures,
        send: Callable[[Message], None],
        source: str = "",
        *,
        follow: bool = False,
    ) -> None:
        self.send = send
        self._pictures = pictures
        self._source = source
        self._follow = follow
        self._compute = Computing()
        self._image_jobs = Newest("image", self._failed)
        self._frame_jobs = Newest("frame", self._failed)
        self._detail_jobs = Newest("frame detail", self._failed)
        self._shape_jobs = Newest("frame shapes", self._failed)
        self._jobs = self._image_jobs, self._frame_jobs, self._detail_jobs, self._shape_jobs
        self._asked = threading.RLock()
        self._ended = threading.Event()
        self._settled = threading.Event()
        self._watcher: threading.Thread | None = None
        self._files: Following | None = None
        self._revisions = 0
        self._frame_waits: int | None = None
        """Number of the shown frame if it has not arrived; None if it has."""
        self._show_picture(pictures.begins_with)

    def _show_picture(self, number: int) -> None:
        self._number = number
        self._shape: Suggestion | None = None
        self._disk: SizedDisk | None = None
        self._candidates: list[ScanCandidate] | None = None
        self._show_array(self._pictures[number])

    def _show_array(self, arr: da.Array) -> None:
        self._set_scene(arr)
        self._files = Following.of(arr) if self._follow else None
        self._revisions = 0
        self._pace = Pace(REMOTE_RATE if is_remote(arr) else RATE)
        self.state = State.first(self.scene)
        self._image: Array | None = None
        self._image_shown: object = None
        self._frame_shown: object = None
        self._begun = False
        self._settled.clear()

    def _set_scene(self, arr: da.Array) -> None:
        disk, lines = self._disk, self._reshaping()
        if disk is not None:
            arr = disk.calibrated(arr)
            lines.append(disk.code)
        first, *lower = scenes_of(arr)
        prepared = "\n".join(filter(None, [*lines, first.prepared]))
        self._arr, self.scene = arr, first._replace(prepared=prepared)
        self._levels = [self.scene, *lower]

    def begin(self) -> None:
        """Send the initial messages of a page, and start the pictures."""
        with self._asked:
            self._send_scene()
            if not self._begun:
                self._begun = True
                self._frame_jobs.hand(partial(self._first_frames, self.scene))
            else:
                self._show(self.state, anew=True)
            self._shape_jobs.hand(None if self._follow else self._shapes)
            if self._follow and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="growing", daemon=True)
                self._watcher.start()

    def receive(self, message: object) -> None:
        """Handle a message of the page; errors are sent back as messages."""
        try:
            asked = check_message(message)
            with self._asked:
                self._answer(asked)
        except Exception as error:  # noqa: BLE001 - shown on the page
            self._failed(message_of(error))

    def _answer(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "begin":
            self.begin()
        elif kind == "show":
            number = whole("id", message.get("id", 0), MOST_ASKED)
            self._show(State.read(self.scene, message), number)
        elif kind == "detail":
            self._show_detail(message)
        elif kind == "picture":
            number = whole("picture", message.get("number"), len(self._pictures.names))
            self.rest()
            self._show_picture(number)
            self.begin()
        elif kind == "shape":
            self.rest()
            self._show_shape(message.get("number"))
            self.begin()
        elif kind == "calibrate":
            self._calibrate(message.get("size"))
        elif kind == "save":
            self._save()
        elif kind == "rest":  # the page was closed
            self.rest()
        else:
            raise DatasetError("unknown request of the page", found=repr(kind))

    def settle(self) -> None:
        """Wait for the initial detector, even if the page has not requested it yet."""
        with self._asked:
            if not self._begun:
                self.begin()
        self._settled.wait()

    def rest(self) -> None:
        """Cancel all computations until the next request."""
        self._settled.set()
        for jobs in self._jobs:
            jobs.hand(None)
        self._image_shown = self._frame_shown = None  # later requests compute both again

    def close(self) -> None:
        """Stop all threads."""
        self._ended.set()
        self._settled.set()
        for jobs in self._jobs:
            jobs.close()
        self._compute.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    @property
    def job(self) -> DetectorJob:
        """Computation of the current image."""
        return DetectorJob.of(self.scene, self.state.places, self.state.detector)

    @property
    def mask(self) -> Mask:
        """Mask of the pixels of a frame that the detector covers."""
        return self.job.covered

    def lazy_image(self) -> da.Array:
        """Return the image as a lazy array."""
        return self.job.expression(self.scene.view(self.state.places))

    def image(self) -> Array:
        """Return the exact image, computed now if necessary."""
        found = self._image
        if found is None:
            found = self._compute(self.lazy_image())
        return found.copy()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all pictures are exact."""
        return all(jobs.wait(seconds) for jobs in self._jobs)

    def code(self) -> str:
        """Return code that computes the image."""
        return self.job.code(self._told())

    def _told(self) -> str:
        """Return the code that opens the current picture."""
        chosen = self._pictures.chosen[self._number] + self._told_shape()
        return f"{self._source[:-1]}{chosen})" if self._source and chosen else self._source

    def _told_shape(self) -> str:
        """Return the options that open the chosen shape of the scan; empty without one."""
        if self._shape is None:
            return ""
        first = f", sync_offset={self._shape.first}" if self._shape.first else ""
        return f", nav_shape={self._shape.shape}{first}"

    def _show(self, state: State, number: int = 0, *, anew: bool = False) -> None:
        """Show a state, and compute what changed; ``number`` identifies the answers."""
        self._settled.set()
        self._catch_up()
        self.state, known = state, []
        image = state.places, state.detector
        if self.scene.scan and (anew or image != self._image_shown):
            self._image_shown, self._image = image, None
            self._image_jobs.hand(partial(self._images, self.scene, state, number))
        else:
            known.append("image")
        frame = state.places, state.region or state.position
        if anew or frame != self._frame_shown:
            self._frame_shown = frame
            self._frame_jobs.hand(partial(self._frames, self._levels, state, number))
        else:
            known.append("frame")
        if known:
            self.send(Message({"type": "known", "kinds": known, "id": number}))

    def _images(self, scene: Scene, state: State, number: int, check: Check) -> Iterator[None]:
        """Compute and send the image of a detector, in estimates."""
        job = DetectorJob.of(scene, state.places, state.detector)
        view, ndim = scene.view(state.places), len(scene.scan)
        pixels = int(np.count_nonzero(job.covered))
        told: dict[str, Any] = {"code": job.code(self._told()), "pixels": pixels, "id": number}
        told["together"] = scene.are_together(state.places)
        is_first = True
        for found in self._image_estimates(view, job, ndim, check):
            with self._asked:  # keep the state unchanged meanwhile
                check()
                self._image = found.values if found.exact else None
            told |= {"share": found.share, "exact": found.exact}
            self.send(picture_message("image", job.picture(found.values), ndim, **told))
            yield
            if is_first and not found.exact:
                self._image_jobs.pause(RESTS)
            is_first = False

    def _image_estimates(
        self, view: da.Array, job: DetectorJob, ndim: int, check: Check
    ) -> Iterator[Estimate]:
        """Yield images of a scan, the last of which is exact."""
        compute, files = partial(self._compute, check=check), self._files
        given = job.expression, ndim, compute, self._pace
        if files is None or not files.may_change:
            return estimates(view, *given, by_rows=job.adds_whole_numbers)
        rows = rows_there(view)
        coarse = coarse_estimate(view[:rows], *given) if rows else None
        return self._filling(job.expression(view), files, self._image_jobs, check, coarse)

    def _filling(
        self,
        arr: da.Array,
        files: Following,
        jobs: Newest,
        check: Check,
        coarse: Estimate | None = None,
    ) -> Iterator[Estimate]:
        """Yield an array while its frames arrive; ``jobs`` is the thread that calls this."""

        def wait(seconds: float) -> None:
            jobs.pause(seconds)
            check()

        arriving = Arriving([arr], partial(self._compute.tasks, check), files)
        return filling_images(arriving, coarse, wait)

    def _frames(
        self, levels: Sequence[Scene], state: State, number: int, check: Check
    ) -> Iterator[None]:
        """Compute and send the frame at a position, or the mean of a region."""
        scene = levels[0]
        ndim, sizes = len(scene.scan), len(scene.frame)
        compute = partial(self._compute, check=check)
        told: dict[str, Any] = {"position": state.position, "region": state.region, "id": number}
        told["together"] = scene.are_together(state.places)
        part = part_of(levels, state, tuple((0, n) for n in scene.frame_shape))
        if state.region is None or not ndim:
            if not ndim:
                told["code"] = DetectorJob.of(scene, state.places, state.detector).code(
                    self._told()
                )
            frame, files = scene.picture(compute(part.pixels)), self._files
            ends = files is None or files.ended
            self._frame_waits = None if ends else awaited_frame(part.pixels)
            waits = self._frame_waits is not None
            if waits:
                frame = np.full(frame.shape, np.nan, np.float32)
            told |= {"share": float(not waits), "exact": not waits}
            self.send(picture_message("frame", frame, sizes, part.steps, **told))
            return
        self._frame_waits, files = None, self._files
        if files is None or not files.may_change:
            means = mean_estimates(part.pixels, ndim, compute, self._pace)
        else:
            mean = part.pixels.mean(axis=tuple(range(ndim)))
            means = self._filling(mean, files, self._frame_jobs, check)
        for found in means:
            check()
            told |= {"share": found.share, "exact": found.exact}
            self.send(picture_message("frame", found.values, sizes, part.steps, **told))
            yield

    def _show_detail(self, message: Mapping[str, Any]) -> None:
        """Send a part of a picture that is shown with fewer pixels than it has."""
        scene, number = self.scene, whole("id", message.get("id", 0), MOST_ASKED)
        if message.get("plot") == "scan":
            window = bounds("window", message.get("window"), scene.scan_shape)
            if self._image is not None:
                image = self.job.picture(self._image)
                index: tuple[Any, ...] = (..., *(slice(*ends) for ends in window))
                part, sizes = image[index], len(window)
                self.send(picture_message("scan detail", part, sizes, window=window, id=number))
        else:
            window = bounds("window", message.get("window"), scene.frame_shape)
            job = partial(self._details, self._levels, self.state, window, number)
            self._detail_jobs.hand(job)

    def _details(
        self, levels: Sequence[Scene], state: State, window: Bounds, number: int, check: Check
    ) -> Iterator[None]:
        """Compute and send a part of the frame."""
        scene, part = levels[0], part_of(levels, state, window)
        lazy, shown = part.pixels, {"window": part.window, "id": number}
        if state.region is not None and scene.scan:
            lazy = lazy.mean(axis=tuple(range(len(scene.scan))))
        pixels = scene.picture(self._compute(lazy, check))
        check()
        self.send(picture_message("frame detail", pixels, len(window), part.steps, **shown))
        yield

    def _first_frames(self, scene: Scene, check: Check) -> Iterator[None]:
        """Find the bright disk in the mean of a few frames, for the initial detector."""
        disk = None
        try:
            if scene.scan and len(scene.frame) == 2:
                view, compute = scene.view(self.state.places), partial(self._compute, check=check)
                if self._files is not None:
                    view = view[: max(1, rows_there(view))]
                found = next(mean_estimates(view, len(scene.scan), compute, self._pace))
                frames = np.reshape(found.values, (-1, *scene.frame_shape))
                disk = bright_circle(frames.mean(axis=0))
            with self._asked:
                check()
                self.state = State.first(scene, disk)
                self.send(Message({"type": "state", "state": self.state.as_json()}))
                self._show(self.state, anew=True)
        finally:
            self._settled.set()
        yield

    def _shapes(self, check: Check) -> Iterator[None]:
        """Send pictures of the scan in each shape that it may have, if its shape is open."""
        if self._candidates is None:
            candidates = scan_candidates(self._arr)
            with self._asked:
                check()
                self._candidates = candidates
        names = [one.name for one in self._candidates]
        shown = [one.suggestion == self._shape for one in self._candidates]
        told = {
            "shapes": [one.suggestion.shape for one in self._candidates],
            "names": names,
            "reasons": [one.suggestion.why for one in self._candidates],
            "chosen": shown.index(True) if True in shown else None,
        }
        images = [one.image.astype("<f4").tobytes() for one in self._candidates]
        self.send(Message({"type": "shapes", **told}, b"".join(images)))
        yield

    def _show_shape(self, number: object) -> None:
        """Show the scan in a shape that it may have; None shows its frames in a row again.

        Raise a DatasetError if there is no such shape.
        """
        row = self._pictures[self._number]
        if number is None:
            self._shape = None
            self._show_array(row)
            return
        candidates, desc = self._candidates, description_of(row)
        if not candidates or desc is None:
            raise DatasetError("the shape of the scan is not open", found=f"shape {number}")
        self._shape = candidates[whole("shape", number, len(candidates))].suggestion
        self._show_array(in_shape(desc, self._shape))

    def _reshaping(self) -> list[str]:
        """Return code that gives an array without files the chosen shape of the scan."""
        desc = description_of(self._pictures[self._number])
        if self._shape is None or self._source or desc is None:
            return []
        shape, first = self._shape.shape, self._shape.first
        frames = f"{first}:{first + math.prod(shape)}"
        return [f"arr = arr[{frames}].reshape({shape + desc.sig_shape})"]

    def _calibrate(self, size: object) -> None:
        """Calibrate the frame by the size of the disk that the detector covers."""
        before, state = self._disk, self.state
        self._disk = SizedDisk.of(self.scene, state.detector, size)
        try:
            self._set_scene(self._arr)
        except Exception:
            self._disk = before
            raise
        self._send_scene()
        self._show(state, anew=True)

    def _send_scene(self) -> None:
        told = {"pictures": self._pictures.names, "picture": self._number}
        self.send(
            Message(
                {"type": "scene", **self.scene.as_json(), **told, "state": self.state.as_json()}
            )
        )

    def _failed(self, text: str) -> None:
        self._image_shown = self._frame_shown = None  # the page may ask again
        self.send(Message({"type": "error", "text": text}))

    def _save(self) -> None:
        """Send the image, with its axes, as a zipped zarr store.

        Raise a DatasetError if the image is large, or still an estimate.
        """
        values = self.lazy_image()
        if values.nbytes > MOST_SAVED:
            raise DatasetError(
                "the image is too large for a page",
                expected=f"{format_bytes(MOST_SAVED)} at most",
                found=format_bytes(values.nbytes),
                hint="Run the code of the page with to_zarr in place of compute.",
            )
        known = shown_of(values)
        if self.scene.scan:
            if self._image is None:
                hint = "Save when the corner shows no percentage any more."
                raise DatasetError("the image is still an estimate", hint=hint)
            values = da.from_array(self.image(), chunks=-1)
        with TemporaryDirectory() as folder:
            path = os.path.join(folder, "image.zarr.zip")
            convert(labelled(values, known.axes, known.units), path, progress=False)
            with open(path, "rb") as file:
                data = file.read()
        self.send(Message({"type": "file", "name": "image.zarr.zip"}, data))

    def _catch_up(self) -> None:
        """Show the frames that have arrived, or changed, since the array was opened."""
        desc, files = description_of(self._arr), self._files
        if desc is None or files is None:
            return
        grew = files.layout.n_frames > desc.layout.n_frames
        if not grew and files.revisions == self._revisions:
            return
        self._revisions = files.revisions
        new, _ = refreshed(self._arr)
        same = new.shape == self._arr.shape
        self._set_scene(new)
        if not same:
            self.state = State.first(self.scene)._replace(detector=self.state.detector)
            self._send_scene()

    def _watch(self) -> None:
        """Look at growing files, until the session ends."""
        told, due, problem = dict[str, Any](), 0.0, ""
        seen: tuple[object, ...] = ()
        while not self._ended.wait(LOOK):
            files = self._files
            if files is None:
                continue
            try:
                files.look()
                there, waits = files.layout.n_frames, self._frame_waits
                now_there = files, there, files.ended, files.revisions
                if seen != now_there or (waits is not None and there > waits):
                    seen = now_there
                    self._grow(files)
            except Exception as error:  # noqa: BLE001 - shown on the page
                if problem != message_of(error):
                    problem = message_of(error)
                    self._failed(problem)
            if told != (now := told_of(files)) and time.monotonic() >= due:
                told, due = now, time.monotonic() + TELLS
                self.send(Message({"type": "growth", **now}))

    def _grow(self, files: Following) -> None:
        """Show a longer scan, or the frame that was missing; images that fill look themselves."""
        with self._asked:
            if self._files is not files:
                return
            is_revised = files.revisions != self._revisions
            if is_revised or files.description.shape != self._arr.shape:
                self._catch_up()
                self._show(self.state, anew=True)
                return
            waits = self._frame_waits
            if waits is not None and (files.ended or files.layout.n_frames > waits):
                self._frame_waits = self._frame_shown = None
                self._show(self.state)
