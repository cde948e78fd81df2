"""The command line of a benchmark that takes no arguments."""

from __future__ import annotations

import argparse


def take_none(module: str, description: str) -> None:
    """Show the help where it is asked for, and refuse arguments, before anything is measured.

    Args:
        module: what is run, for the help.
        description: what it measures.
    """
    argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog="It takes no arguments; keep the machine idle meanwhile.",
    ).parse_args()
