"""Run the Python blocks of a page, as the tests do before anyone reads it.

A block that starts with ``>>>`` shows a session: what it prints must be what the page says. Any
other block is plain code, whose asserts must hold. All blocks of a page share one namespace.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from sybil import Document
from sybil.evaluators.doctest import NUMBER
from sybil.parsers.markdown import PythonCodeBlockParser

FOLDER = Path(__file__).resolve().parent


@cache
def run(page: Path) -> dict[str, Any]:
    """Run a page as a reader would who starts afresh.

    Numbers that a page prints are compared to as many digits as it prints: the last one may be off
    by one, since sums are rounded differently on different machines.

    Returns:
        The names that the page has defined.

    Raises:
        AssertionError: a claim does not hold, or an output differs; with page and line.
    """
    document = Document.parse(str(page), PythonCodeBlockParser(doctest_optionflags=NUMBER))
    document.namespace["__name__"] = "__main__"
    with _afresh():
        for example in document.examples():
            example.evaluate()
    return document.namespace


@contextlib.contextmanager
def _afresh() -> Iterator[None]:
    """An empty folder, torch as it starts but for a fixed seed, and one thread for small sums."""
    threads = torch.get_num_threads()
    torch.set_printoptions(profile="default")
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
