"""The command line of a benchmark."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Collection
from typing import Any


def take_none(module: str, description: str) -> None:
    """Show the help where it is asked for, and refuse arguments, before anything is measured.

    Args:
        module: what is run, for the help.
        description: what it measures.
    """
    epilog = "It takes no arguments; keep the machine idle meanwhile."
    _parser(module, description, epilog=epilog).parse_args()


def take(module: str, description: str, **kinds: type | Collection[str]) -> list[Any]:
    """The arguments of what a benchmark runs in a process of its own.

    Args:
        module: as for `take_none`.
        description: likewise.
        kinds: for each, in order, its type, or the names of which it is one.
    """
    parser = _parser(module, description)
    for name, kind in kinds.items():
        if isinstance(kind, type):
            parser.add_argument(name, metavar=name.upper(), type=kind)
        else:
            names = f"one of: {'; '.join(kind)}"
            parser.add_argument(name, metavar=name.upper(), choices=kind, help=names)
    return list(vars(parser.parse_args()).values())


def _parser(module: str, description: str, epilog: str = "") -> ArgumentParser:
    return ArgumentParser(prog=f"python -m {module}", description=description, epilog=epilog)
