"""`regard doctor`."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import click

from regard._importing import importing
from regard.cli.errors import MisuseError, user_errors
from regard.cli.layout import fitted
from regard.cli.parameters import Option

if TYPE_CHECKING:
    import torch

    from regard.backends.native import Description
    from regard.cli.measure import Sizes
    from regard.inputs import Problem
    from regard.masks import Mask

__all__ = ["doctor"]

_EXPLAINED = {
    "amx": "AVX-512, and AMX for bfloat16",
    "avx512bf16": "AVX-512 and its bfloat16 dot products",
    "avx512vnni": "AVX-512 and its dot products of whole numbers",
    "avx512": "AVX-512",
    "avx2": "AVX2 and FMA",
    "baseline": "what every processor of this kind has",
}


def doctor(
    *,
    measure: Annotated[
        bool,
        Option(
            "--measure",
            help="Measure the machine's rates and six ratios beside torch in a minute, to be sent "
            "with a report; keep the machine idle meanwhile.",
        ),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print what --measure measures as JSON.")
    ] = False,
) -> None:
    """Show what computes attention on this machine, and why; or how fast.

    Examples:
    regard doctor

    REGARD_INSTRUCTIONS=avx2 regard doctor

    regard doctor --measure
    """
    if as_json and not measure:
        raise MisuseError("--json is for numbers: give --measure too")
    with importing():
        from regard.backends.native import describe

        if measure:
            from regard.cli.measure import Sizes

    if measure:
        with user_errors(ValueError):
            _print_measured(Sizes(), as_json=as_json)
        return
    with user_errors(ValueError):
        library = describe()
    for line in [*_columns(_facts(library)), "", *_columns(_choices())]:
        click.echo(line)


def _print_measured(sizes: Sizes, *, as_json: bool) -> None:
    """Print each number when it is measured, or all of them as JSON."""
    from regard.cli.measure import headlines, machine, rates

    start = time.perf_counter()
    content: dict[str, Any] = {"machine": machine(), "rates": [], "ratios": []}

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    for name, value in content["machine"].items():
        say(f"{name:14}{value}")
    say("")
    for rate in rates(sizes):
        content["rates"].append(rate._asdict())
        say(f"{rate.name:36}{rate.value:8.1f}  {rate.unit}")
    say(f"\n{'':36}{'median':>8}  half of the rounds")
    for name, ratio, unit in headlines(sizes):
        content["ratios"].append({"name": name, **ratio._asdict(), "unit": unit})
        within = f"{ratio.low:.2f} to {ratio.high:.2f}"
        say(f"{name:36}{ratio.median:8.2f}  {within:14}  {unit}")
    content["seconds"] = round(time.perf_counter() - start, 1)
    say(f"\nmeasured in {content['seconds']:.0f} s")
    if as_json:
        click.echo(json.dumps(content, ensure_ascii=False))


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Format rows to fit the terminal; only the last cell of a row is wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
    for *names, last in rows:
        start = "".join(f"{name:{width}}" for name, width in zip(names, widths, strict=True))
        for line in last.splitlines():
            yield fitted(f"{start}{line}", sum(widths))
            start = " " * sum(widths)


def _facts(library: Description | None) -> Iterator[tuple[str, str]]:
    from importlib.metadata import version

    import torch

    from regard.backends.native import why_missing
    from regard.cli.measure import processor

    yield "regard", version("regard")
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield "python", f"{platform.python_version()} on {platform.system()}"
    yield "processor", f"{processor()}, {os.cpu_count()} cores"
    yield from _gpu()
    if library is None:
        yield "kernels", f"torch's alone: {why_missing()}"
        return
    yield "kernels", library.path
    yield "instructions", _instructions(library)
    own = "of its own, since torch has loaded no OpenMP runtime"
    yield "threads", f"torch's, from {library.pool}" if library.pool else own


def _gpu() -> list[tuple[str, str]]:
    import torch

    from regard.backends.extensions import extension_of, why_no_extension

    if not torch.cuda.is_available():
        return [("GPU", "none that torch can use through CUDA")]
    major, minor = torch.cuda.get_device_capability()
    name = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
    extension = extension_of(torch.device("cuda"))
    if extension is not None:
        return [("GPU", name), *extension.facts()]
    kernels = "torch's choice, and readouts by torch, in blocks; not by kernels for both: "
    kernels += why_no_extension()
    return [("GPU", name), ("GPU kernels", kernels)]


def _instructions(library: Description) -> str:
    named = os.environ.get("REGARD_INSTRUCTIONS")
    reason = "named by REGARD_INSTRUCTIONS" if named else "the best that this processor runs"
    lines = [f"{library.instructions}: {_EXPLAINED[library.instructions]}; {reason}"]
    for name in library.built:
        if name not in library.supported:
            lines.append(f"{name}: not run by this processor")
        elif name != library.instructions:
            lines.append(f"{name}: chosen by REGARD_INSTRUCTIONS={name}")
    return "\n".join(lines)


def _choices() -> Iterator[tuple[str, str, str]]:
    from regard.backends import choose_checked

    yield "attention of", "computed by", "because"
    for name, problem in _problems():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the table shows the same
            choice = choose_checked(problem)
        why = [f"not {other}: {objection}" for other, objection in choice.objections]
        yield name, choice.label, "\n".join(why) or "it honours every argument"


def _problems() -> list[tuple[str, Problem]]:
    """Return small problems for which different backends are chosen."""
    import torch

    from regard.inputs import Scoring, check
    from regard.masks import causal

    def problem(dtype: torch.dtype, dim: int = 64) -> Problem:
        tensor = torch.zeros(1, 1, 1, dim, dtype=dtype)
        return check(tensor, tensor, tensor, Scoring(mask=causal()))

    problems = [
        ("float32", problem(torch.float32)),
        ("bfloat16", problem(torch.bfloat16)),
        ("float16", problem(torch.float16)),
        ("float64", problem(torch.float64)),
        ("head dimension 512", problem(torch.float32, dim=512)),
    ]
    return problems + _problems_on_cuda() if torch.cuda.is_available() else problems


def _problems_on_cuda() -> list[tuple[str, Problem]]:
    """Return such problems for a GPU, long enough for a window to hide keys."""
    import torch

    from regard.inputs import Scoring, check
    from regard.masks import causal, window

    length = 128

    def problem(
        dtype: torch.dtype, mask: Mask | None = None, dim: int = 64, softcap: float | None = None
    ) -> Problem:
        tensor = torch.zeros(1, 1, length, dim, dtype=dtype, device="cuda")
        mask = causal() if mask is None else mask
        return check(tensor, tensor, tensor, Scoring(mask=mask, softcap=softcap))

    half = torch.bfloat16
    return [
        ("bfloat16 on CUDA", problem(half)),
        ("float32 on CUDA", problem(torch.float32)),
        ("float64 on CUDA", problem(torch.float64)),
        ("head dimension 512 on CUDA", problem(half, dim=512)),
        ("a sliding window on CUDA", problem(half, causal() & window(50))),
        ("a softcap on CUDA", problem(half, softcap=30.0)),
    ]
