"""The command, its subcommands and its exit status."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import click

from regard.cli.errors import MisuseError
from regard.cli.parameters import make_command

__all__ = ["app", "run"]

_COMMANDS: dict[str, dict[str, Any]] = {
    "explain": {},
    "effects": {},
    "trace": {},
    "atlas": {},
    "explore": {},
    "report": {},
    "prepare": {},
    "train": {},
    "generate": {},
    "doctor": {},
    "check": {"ignore_unknown_options": True},  # for -1
}
"""Each is a function in the module of its name; with click's settings of it."""


class _Commands(click.Group):
    """Makes the one command that is called, since to make them all takes long."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - likewise
        return _command(cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - likewise
        rows = [(name, _about(name).partition("\n")[0]) for name in _COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _function(name: str) -> Callable[..., None]:
    return getattr(import_module(f"regard.cli.{name}"), name)


def _about(name: str) -> str:
    return inspect.getdoc(_function(name)) or ""


@cache
def _command(name: str) -> click.Command:
    """Make the command of a function, whose docstring is the help, in which click wraps paragraphs.

    Examples keep their lines, after click's sign for it.
    """
    about, _, examples = _about(name).partition("\n\nExample")
    heading, _, lines = examples.partition(":")
    shown = [f"  {line.strip()}" for line in lines.splitlines() if line.strip()]
    text = "\n".join([about, "", "\b", f"Example{heading}:", *shown])
    return make_command(name, _function(name), text, _COMMANDS[name])


@click.group(
    cls=_Commands,
    epilog='Start with:  regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(
    package_name="regard", message="%(prog)s %(version)s", help="Show the version and exit."
)
def app() -> None:
    """Causal self-attention that you can see inside."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        arguments: the arguments after the program's name; None takes them from `sys.argv`.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # characters that the encoding lacks become "?"
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = _call(words or ["--help"])
        if sys.stdout is not None:
            sys.stdout.flush()
    except MisuseError as error:
        return _fail(str(error), 2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "regard"
        return _fail(f"{error.format_message().rstrip('.')} (see {command} --help)", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed it
        _discard_output()
        return 1
    except OSError as error:  # such as a full disk
        _discard_output()
        return _fail(str(error), 1)
    return status


def _call(arguments: list[str]) -> int:
    try:
        with app.make_context("regard", arguments) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _fail(message: str, status: int) -> int:
    _echo(message)
    return status


def _show_warning(message: Warning | str, *_: object, **_options: object) -> None:
    """Print a warning in the format of errors, without Python's line of code."""
    _echo(str(message))


def _echo(message: str) -> None:
    click.echo(f"regard: {' '.join(message.split())}", err=True)


def _discard_output() -> None:
    """Redirect standard output, so that Python's flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
