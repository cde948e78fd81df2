"""The command, its subcommands and its exit status."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from regard.cli.errors import MisuseError

__all__ = ["app", "run"]

# click's UsageError: typer has its own copy of click since 0.26, and exports only this subclass.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

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
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,  # rich takes longer to import than all else that a help needs
    "pretty_exceptions_enable": False,
}


def _as_flag(option: Any) -> Any:
    """Give ``--help`` the default of a flag: to read a None, typer imports pydantic."""
    option.default = False
    return option


class _Command(TyperCommand):
    """A command whose help shows the options of a dataclass under that one's own heading."""

    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                title = getattr(parameter, "rich_help_panel", None) or kind
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Commands(TyperGroup):
    """Makes the one command that is called, since to make them all takes long."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("Any", dict.fromkeys(_COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        return _command(cmd_name) if cmd_name in self.commands else None

    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        rows = [(name, _about(name).partition("\n")[0]) for name in _COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _function(name: str) -> Callable[..., None]:
    return getattr(import_module(f"regard.cli.{name}"), name)


def _about(name: str) -> str:
    return inspect.getdoc(_function(name)) or ""


@cache
def _command(name: str) -> Any:
    """Make the command of a function, whose docstring is the help, in which click wraps paragraphs.

    Examples keep their lines, after click's sign for it.
    """
    about, _, examples = _about(name).partition("\n\nExample")
    heading, _, lines = examples.partition(":")
    shown = [f"  {line.strip()}" for line in lines.splitlines() if line.strip()]
    single = typer.Typer(**_PLAIN)
    single.command(
        name,
        cls=_Command,
        help="\n".join([about, "", "\b", f"Example{heading}:", *shown]),
        context_settings=_COMMANDS[name],
    )(_function(name))
    return get_command(single)


app = typer.Typer(
    name="regard",
    cls=_Commands,
    help="Causal self-attention that you can see inside.",
    epilog='Start with:  regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"',
    context_settings={"help_option_names": ["-h", "--help"]},
    **_PLAIN,
)


def _show_version(*, is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

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
