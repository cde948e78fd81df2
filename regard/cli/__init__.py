"""The command line: `regard explain`, `regard train`, `regard generate` and others.

It parses arguments and prints results; other rooms compute them.
"""

import sys
from typing import NoReturn

from regard._importing import importing

__all__ = ["main"]


def main(*first: str) -> NoReturn:
    """Run the command and exit.

    The status is 0 for success, 1 for failure, 2 for misuse, 130 for Ctrl-C, and 143 for a SIGTERM.

    Args:
        first: arguments that come before those of the process.
    """
    with importing():
        from regard.cli.app import run
    sys.exit(run([*first, *sys.argv[1:]]))
