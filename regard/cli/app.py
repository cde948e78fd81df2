"""The command, its subcommands and its exit status."""

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any, cast

import typer

from regard.cli.atlas import atlas
from regard.cli.check import check
from regard.cli.doctor import doctor
from regard.cli.effects import effects
from regard.cli.errors import MisuseError
from regard.cli.explain import explain
from regard.cli.explore import explore
from regard.cli.generate import generate
from regard.cli.passages import passages
from regard.cli.prepare import prepare
from regard.cli.report import report
from regard.cli.train import train

__all__ = ["app", "run"]

# click's UsageError: typer has its own copy of click since 0.26, and exports only this subclass.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

app = typer.Typer(
    name="regard",
    help="Causal self-attention that you can see inside.",
    epilog='Start with:  regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"',
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(command: Callable[..., None]) -> str:
    """Return a command's docstring with its lines joined: typer would keep their breaks."""
    return re.sub(r"(?<![:\n])\n(?!\n)", " ", inspect.getdoc(command) or "")


for _command in (
    explain,
    effects,
    passages,
    atlas,
    explore,
    report,
    prepare,
    train,
    generate,
    doctor,
):
    app.command(help=_help(_command))(_command)
app.command(help=_help(check), context_settings={"ignore_unknown_options": True})(check)  # for -1


def _show_version(*, is_set: bool) -> None:
    if is_set:
        typer.echo(f"regard {version('regard')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version),
    ] = False,
) -> None: ...


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
            status = app(words or ["--help"], prog_name="regard", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except MisuseError as error:
        return _fail(str(error), 2)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "regard"
        return _fail(f"{_usage_message(error)} (see {command} --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of our output has closed it
        _discard_output()
        return 1
    except OSError as error:  # such as a full disk
        _discard_output()
        return _fail(str(error), 1)
    return status if isinstance(status, int) else 0


# Errors of pydantic, with which typer parses values, and the expected values.
_KINDS = {"int_parsing": "a whole number", "float_parsing": "a number"}


def _usage_message(error: typer.BadParameter) -> str:
    message = error.format_message().rstrip(".")
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    for problem in problems:
        expected = _KINDS.get(problem["type"])
        if expected is not None:
            return f"{message.partition(': ')[0]}: {problem['input']!r} is not {expected}"
    return message


def _fail(message: str, status: int) -> int:
    _echo(message)
    return status


def _show_warning(message: Warning | str, *_: object, **_options: object) -> None:
    """Print a warning in the format of errors, without Python's line of code."""
    _echo(str(message))


def _echo(message: str) -> None:
    typer.echo(f"regard: {' '.join(message.split())}", err=True)


def _discard_output() -> None:
    """Redirect standard output, so that Python's flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
