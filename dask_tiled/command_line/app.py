"""The command group, and the reporting of errors: one line and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from dask_tiled.command_line.catalogue import catalogue
from dask_tiled.command_line.convert import convert
from dask_tiled.command_line.doctor import doctor
from dask_tiled.command_line.explore import explore
from dask_tiled.command_line.failures import INTERRUPTED, failure_of
from dask_tiled.command_line.formats import formats
from dask_tiled.command_line.info import info
from dask_tiled.command_line.preview import preview
from dask_tiled.command_line.record import record
from dask_tiled.command_line.thumbnail import thumbnail
from dask_tiled.command_line.verify import verify
from dask_tiled.command_line.wording import as_typed
from dask_tiled.system.pipes import discard_output, is_broken_pipe


class _App(click.Group):
    """A group whose commands report errors as one line on standard error."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the commands in the order of the help."""
        return list(self.commands)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line, and exit the process; every error is one line."""
        extra["standalone_mode"] = False  # click would print several lines
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # Escape unprintable characters instead of failing.
                stream.reconfigure(errors="backslashreplace")
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warned, set())
            try:
                code = super().main(args, prog_name, **extra)
            except click.exceptions.NoArgsIsHelpError as error:
                error.show()
                _end(None, 2)
            except click.UsageError as error:
                where = error.ctx.command_path if error.ctx else "dask-tiled"
                text = error.format_message().removesuffix(".")
                _end(f"{text}{'' if text[-1] in '?)' else '.'} Try: {where} --help", 2)
            except click.ClickException as error:
                _end(error.format_message(), error.exit_code)
            except click.Abort:
                _end("interrupted", INTERRUPTED)
            except OSError as error:  # of the output: click handles only EPIPE
                if not is_broken_pipe(error):
                    raise
                discard_output()
                _end(None, 1)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; with ``--traceback``, exceptions propagate."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            known = isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort))
            if known or is_broken_pipe(error) or ctx.params["traceback"]:
                raise
            raise failure_of(error) from error


def _end(message: str | None, code: int) -> NoReturn:
    if message is not None:
        click.echo(f"dask-tiled: {as_typed(message)}", err=True)
    sys.exit(code)


def _warned(before: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    text = as_typed(str(message))
    if text not in before:
        before.add(text)
        click.echo(f"dask-tiled: warning: {text}", err=True)


@click.group("dask-tiled", cls=_App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dask-tiled", prog_name="dask-tiled")
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
def app(*, traceback: bool) -> None:
    """Inspect and export files of detectors and microscopes.

    A FILE is a path, a URL, or a pattern in quotes, such as 'scan_*.tif'. Several files are one
    scan, in this order.
    """
    del traceback  # used in invoke


for command in (
    info,
    catalogue,
    preview,
    thumbnail,
    explore,
    formats,
    convert,
    verify,
    record,
    doctor,
):
    app.add_command(command)
