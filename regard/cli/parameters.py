"""A command of click from a function, whose annotations describe the parameters.

By click itself: what reads annotations on top of it, such as typer, reads values through pydantic,
whose import alone takes longer than an error about an argument should.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import click

__all__ = ["Argument", "Option", "make_command", "option_name"]


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument, in the annotation of a parameter: ``Annotated[str, Argument(help="…")]``."""

    help: str


@dataclass(frozen=True)
class Option:
    """An option, in the annotation of a parameter.

    Args:
        names: the option, such as ``--json``; by default that of the parameter's name.
        help: what it does.
        metavar: what the help shows in place of a value.
        exists: whether a path has to be there.
        heading: of its section of the help.
    """

    names: str | None = None
    _: KW_ONLY
    help: str
    metavar: str | None = None
    exists: bool = False
    heading: str = "Options"


def make_command(
    name: str, function: Callable[..., None], text: str, settings: dict[str, Any]
) -> click.Command:
    """Make a command that calls a function.

    Args:
        name: its name.
        function: the function. A parameter is a `str`, `int`, `float`, `Path`, `bool` or a tuple
            of any number of these, with an `Argument` or an `Option`.
        text: the text of the help.
        settings: click's settings of its context.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return _Command(
        name,
        callback=function,
        help=text,
        params=[_parameter(parameter) for parameter in parameters],
        context_settings=settings,
    )


def option_name(parameter: str) -> str:
    """Return the option of a parameter.

    >>> option_name("top_k")
    '--top-k'
    """
    return f"--{parameter.replace('_', '-')}"


class _Command(click.Command):
    """A command whose help has sections: arguments, options, and those under other headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not say whose option lacks a value
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = getattr(parameter, "heading", "Options")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Argument(click.Argument):
    heading = "Arguments"

    def __init__(self, *names: Any, about: Argument, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self._about = about

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002 - click's
        return self.human_readable_name, self._about.help


class _Option(click.Option):
    def __init__(self, *names: Any, heading: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.heading = heading


class _WholeNumber(click.types.IntParamType):
    name = "whole number"


class _Number(click.types.FloatParamType):
    name = "number"


class _Path(click.Path):
    """A path that is not empty, as of a shell's variable without a value: it would mean here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path is empty", param, ctx)
        return super().convert(value, param, ctx)


_TYPES: dict[type, tuple[Any, str]] = {
    int: (_WholeNumber(), "N"),
    float: (_Number(), "X"),
    str: (click.STRING, "TEXT"),
    Path: (_Path(path_type=Path), "PATH"),
}
"""The reader of a type's values, and what the help shows in place of a value."""


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    kind, about = get_args(parameter.annotation)
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    several = get_origin(kind) is tuple
    if several:
        kind = get_args(kind)[0]
    settings: dict[str, Any] = {"required": parameter.default is parameter.empty}
    if not settings["required"] and not several:  # of several, click's own is an empty tuple
        settings["default"] = parameter.default
    if isinstance(about, Argument):
        settings |= {"nargs": -1 if several else 1, "type": _TYPES[kind][0]}
        return _Argument([parameter.name], about=about, **settings)
    option = option_name(parameter.name)
    settings |= {"help": about.help, "heading": about.heading, "show_default": True}
    if kind is bool:
        names = about.names or f"{option}/--no-{option.removeprefix('--')}"
        return _Option([parameter.name, names], is_flag=True, **settings)
    reader, metavar = _TYPES[kind]
    if about.exists:
        reader = _Path(exists=True, path_type=kind)
    settings |= {"multiple": several, "type": reader, "metavar": about.metavar or metavar}
    return _Option([parameter.name, about.names or option], **settings)
