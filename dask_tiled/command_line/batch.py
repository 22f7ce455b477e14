"""Print a batch of conversions: a line for each, one for all, and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from dask_tiled.command_line.failures import DOUBTFUL, FAILED, INTERRUPTED, UNFINISHED, Failure
from dask_tiled.command_line.wording import as_typed

if TYPE_CHECKING:
    from dask_tiled.batch.one import ConversionRow
    from dask_tiled.batch.progress import BatchProgress

LOG_SECONDS = 60.0
"""Time between two lines about the whole batch in a log."""
MOST_LISTED = 20
"""Failures to list at the end."""
TERMINATED = 128 + 15


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, as batch systems send it."""


def is_folder(target: str) -> bool:
    """Return whether a target is the folder of a batch: a name without the suffix of a format."""
    from dask_tiled.converting.convert import is_known

    if is_known(target):
        return False
    return target.endswith(("/", os.sep)) or os.path.isdir(target)


def check_no_batch(ctx: click.Context, options: Sequence[click.Option]) -> None:
    """Refuse options of batches for a target that is no folder."""
    default = click.core.ParameterSource.DEFAULT
    for option in options:
        if ctx.get_parameter_source(str(option.name)) is not default:
            text = f"{max(option.opts, key=len)} needs a folder as OUT, such as OUT/, without"
            raise click.UsageError(f"{text} the suffix of a format.", ctx)


def run_batch(
    run: Callable[..., list[ConversionRow]],
    sources: Sequence[str],
    target: str,
    *,
    progress: bool | None,
    pattern: Sequence[str],
    opening: dict[str, Any],
    scheduler: str | None,
    cluster: tuple[str, int] | None,
    **given: Any,
) -> None:
    """Convert sources to a folder, or compare them; end with the exit code of the batch.

    ``run`` is ``convert_all`` or ``verify_all``.
    """
    from dask_tiled.batch.one import ABSENT, DIFFERENT, DIFFERS, IN_DOUBT, LOST, STOPPED, WAITING

    printer = _Printer(target, show=progress)
    try:
        with _terminable(), _on(scheduler, cluster):
            rows = run(
                _expanded(sources),
                target,
                pattern=pattern or None,
                opening=opening,
                told=printer.told,
                **given,
            )
    except KeyboardInterrupt as error:
        code = TERMINATED if isinstance(error, _TerminatedError) else INTERRUPTED
        raise Failure("interrupted. Run the same command to resume.", code) from None
    finally:
        printer.close()
    counts = Counter(row.state for row in rows)
    click.echo(f"{target}: {', '.join(f'{n} {state}' for state, n in counts.items()) or 'nothing'}")
    failed = [row for row in rows if row.state in {LOST, DIFFERS, DIFFERENT, ABSENT}]
    for row in failed[:MOST_LISTED]:
        click.echo(f"dask-tiled: {_line(row)}", err=True)
    if counts[STOPPED] or counts[WAITING]:
        count = counts[STOPPED] + counts[WAITING]
        text = f"{count} of {len(rows)} are left. Run the same command to resume."
        raise Failure(text, UNFINISHED)
    if failed:
        hint = ". Pass --update to replace those that changed" if counts[DIFFERS] else ""
        raise Failure(f"{len(failed)} of {len(rows)} failed{hint}", FAILED)
    doubtful = counts[IN_DOUBT] + sum(bool(row.lacking) for row in rows)
    if opening.get("doubts") == "raise" and doubtful:
        raise Failure(f"{doubtful} of {len(rows)} are doubtful or not complete", DOUBTFUL)


def _expanded(sources: Sequence[str]) -> list[str]:
    """Expand patterns; a path that exists is none."""
    from dask_tiled.formats.describing import expanded

    found: list[str] = []
    for source in sources:
        with expanded(source) as (paths, _):
            found += paths
    return found


def _line(row: ConversionRow) -> str:
    """Return an outcome as one line."""
    from dask_tiled.errors import format_bytes, printable

    name = printable(row.target or row.source)
    if row.problem:
        source = printable(row.source)
        told = "" if source in row.problem else f"{source}: "
        return as_typed(f"{name}: {row.state}: {told}{row.problem}")
    text = f"{name}: {row.state}"
    if row.stored:
        text += f", {format_bytes(row.nbytes)} of pixels as {format_bytes(row.stored)}"
        text += f", in {row.seconds:.1f} s" if row.state == "done" else ""
    text += ", verified" if row.verified else ""
    return text + (f"; not complete: {row.lacking}" if row.lacking else "")


class _Printer:
    """Prints outcomes as they come; progress as a bar in a terminal, else a line a minute."""

    def __init__(self, target: str, *, show: bool | None) -> None:
        self._target, self._show = target, show
        self._next = monotonic() + LOG_SECONDS
        self._bar: Any = None

    def told(self, row: ConversionRow | None, progress: BatchProgress) -> None:
        """Print an outcome, and how far the batch is."""
        from dask_tiled.blocks.bars import progress_bar
        from dask_tiled.errors import warn

        is_terminal = sys.stderr.isatty()
        if self._bar is None:
            show = False if self._show is False or not is_terminal else None
            self._bar = progress_bar(show=show, total=progress.total_nbytes, desc=self._target)
        if row is not None:
            for text in row.doubts if row.state == "done" else ():
                warn(text)
            self._bar.write(f"[{progress.done}/{progress.total}] {_line(row)}")
        self._bar.update(progress.nbytes - self._bar.n)
        if not is_terminal and self._show is not False and monotonic() >= self._next:
            self._next = monotonic() + LOG_SECONDS
            click.echo(f"{self._target}: {progress}", err=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def _on(scheduler: str | None, jobs: tuple[str, int] | None) -> Iterator[None]:
    """Compute on a cluster in this context: that of an address, or jobs of a batch system."""
    if scheduler is None and jobs is None:
        yield
        return
    from dask_tiled.command_line.cluster import client_of, job_cluster

    place = nullcontext(scheduler) if jobs is None else job_cluster(*jobs)
    with place as cluster, client_of(cluster):
        yield


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as an interruption."""

    def end(*_: object) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
