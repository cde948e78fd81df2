"""The command `python -m regard.conformance package.module:function`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from regard.conformance.cases import AREAS
from regard.conformance.forms import as_html, as_json, as_text
from regard.conformance.grading import Report, check
from regard.conformance.signatures import FAMILIES
from regard.conformance.target import load

__all__ = ["main"]

_FORMS: dict[str, Callable[[Report], str]] = {".html": as_html, ".json": as_json, ".txt": as_text}
_DTYPES = ("float32", "float64", "bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a function and print the report.

    Args:
        arguments: those of the command line; None for the ones that this process has.

    Returns:
        0 if nothing that the function offers differs from the definition, 1 if something does, 2
        where it could not be called.
    """
    options = _parser().parse_args(arguments)
    try:
        _check_places(options.out)
        _check_device(options.device)
        target = load(options.target)
        report = check(
            target.function,
            target=options.target,
            lines=target.lines,
            signature=options.signature,
            dtype=options.dtype,
            device=options.device,
            versions=target.versions,
            areas=options.area or AREAS,
        )
    except (TypeError, ValueError) as error:
        line = " ".join(str(error).split())
        print(f"Error: {line}", file=sys.stderr)  # noqa: T201  # a command
        return 2
    print(as_text(report))  # noqa: T201
    for file in options.out:
        file.write_text(_FORMS[file.suffix](report) + "\n", "utf-8")
    return 0 if report.conforms else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m regard.conformance",
        description="Compare an attention function with the definition in float64, area by area.",
        epilog="The exit status is 0 where nothing that the function offers differs, 1 where "
        "something does, 2 where it could not be called.",
    )
    add = parser.add_argument
    add(
        "target",
        metavar="TARGET",
        help="package.module:function, or file.py:function; it is imported, which runs its code",
    )
    add(
        "--signature",
        choices=FAMILIES,
        help="whose parameters and axes it has; found by their names if not given",
    )
    add("--dtype", choices=_DTYPES, default="float32", help="float32 if not given")
    add("--device", default="cpu", help="such as cuda; cpu if not given")
    add(
        "--area",
        action="append",
        choices=AREAS,
        metavar="AREA",
        help=f"grade only this area; may be repeated: {', '.join(AREAS)}",
    )
    add(
        "--out",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="write the report to a file too, .html, .json or .txt; may be repeated",
    )
    return parser


def _check_places(files: Sequence[Path]) -> None:
    for file in files:
        if file.suffix not in _FORMS:
            raise ValueError(f"--out must end in {', '.join(_FORMS)}, not {file}")
        if not file.absolute().parent.is_dir():
            raise ValueError(f"--out names a folder that is not there: {file.parent}")


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"--device {name} can't be used: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
