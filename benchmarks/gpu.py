"""Attention and readouts on a GPU, from a checkout: ``python -m benchmarks.gpu``.

It needs torch, with the Triton that comes with it, and nothing else. First it compares with float64
what it is about to time; then it measures what the GPU can do, and prints for each shape the
forward of every backend, and the readouts beside the flash forward and beside their floor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from benchmarks.cases import Case
from benchmarks.report import Report, milliseconds
from regard.backends import NAMES, choose
from regard.backends.gpu import hardware
from regard.pattern import reading
from regard.pattern.readout import Sizes
from regard.problem import Scoring, check

if TYPE_CHECKING:
    from benchmarks.gpu_floor import Ceilings

CAUSAL = regard.causal()
LONG = 16384  # from here on targets hold
EAGER_COPIES = 6  # of the weights, in float32: what eager holds at its most
CHUNKED = 2**33  # weights: more would take the chunked readouts minutes


SHAPES = (
    Case(1, 32, 4096, 128),
    Case(1, 32, 16384, 128),
    Case(1, 32, 32768, 128, groups=8),
    Case(8, 16, 2048, 64),
    Case(1, 8, 131072, 128),
)


def main() -> None:
    """Check, measure, print; exit with 1 if a result is wrong."""
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and torch finds none that it can use through CUDA")
    missing = hardware.why_no_triton()
    if missing is not None:
        sys.exit(f"the readouts in Triton are what is measured, but {missing}")
    from benchmarks.gpu_floor import measured

    _describe()
    _check()
    ceilings = measured()
    _print_ceilings(ceilings)
    report = Report()
    with torch.no_grad():
        for shape in SHAPES:
            tensors = shape.tensors(torch.bfloat16, "cuda")
            flash = _forwards(report, shape, *tensors)
            _readouts(report, shape, ceilings, flash, tensors)
            torch.cuda.empty_cache()
    report.summary()


def _describe() -> None:
    print(f"GPU      {torch.cuda.get_device_name()}")
    print(f"torch    {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"Python   {sys.version.split()[0]}")


def _check() -> None:
    from benchmarks.gpu_checks import checks

    results = list(checks())
    wrong = [result for result in results if not result[1] <= result[2]]
    for label, error, allowed in wrong:
        print(f"wrong: {label}: off by {error:.2g}, and {allowed:.2g} is rounding")
    print(f"\n{len(results)} comparisons with float64, {len(wrong)} of them wrong")
    if wrong:
        sys.exit(1)


def _print_ceilings(ceilings: Ceilings) -> None:
    print(
        f"\nat most, as measured: {ceilings.products / 1e12:.0f} TFLOP/s of bfloat16 products, "
        f"{ceilings.exponentials / 1e12:.2f} T exponentials, "
        f"{ceilings.operations / 1e12:.1f} T float32 operations, "
        f"{ceilings.bytes / 1e12:.2f} TB a second"
    )


def _forwards(report: Report, shape: Case, query: Tensor, key: Tensor, value: Tensor) -> float:
    """Time the forward of every backend; the seconds of torch's flash kernel alone."""
    from benchmarks.gpu_floor import seconds

    def flash() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=shape.groups is not None
            )

    taken = {"torch's flash, called directly": seconds(flash)}
    problem = check(query, key, value, Scoring(mask=CAUSAL))
    for backend in NAMES:
        try:
            choice = choose(problem, backend)
        except ValueError:  # the backend can't run this problem
            continue
        if backend != "eager" or _fits(shape):
            attend = partial(regard.attention, query, key, value, mask=CAUSAL, backend=backend)
            taken[f"{choice}"] = seconds(attend)
    report.table(f"forward at {shape}", ("backend", 34), ("ms", 9), ("TFLOP/s", 8))
    for name, time in taken.items():
        speed = shape.operations / time / 1e12
        report.row(name, milliseconds(time), f"{speed:.0f}")
    return taken["torch's flash, called directly"]


def _readouts(
    report: Report,
    shape: Case,
    ceilings: Ceilings,
    flash: float,
    tensors: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Time each readout, all together, and what there was before them."""
    from benchmarks.gpu_checks import READOUTS
    from benchmarks.gpu_floor import one, seconds

    report.table(
        f"readouts at {shape}, one pass each",
        *(("what", 30), ("ms", 9), ("of flash's forward", 18)),
        *(("of the floor", 12), ("MiB more", 9)),
    )
    query, key, value = tensors
    pattern = regard.attention_with_pattern(query, key, value, mask=CAUSAL, backend="flash")[1]
    everything = tuple(READOUTS.values())
    sets = {name: (readout,) for name, readout in READOUTS.items()} | {"all eight": everything}
    targets = {"received": 0.7, "all eight": 1.2} if shape.length >= LONG else {}
    together = 0.0
    for name, readouts in sets.items():
        together, memory = _timed(partial(pattern.read, *readouts), seconds)
        floor = ceilings.floor(shape, READOUTS if name == "all eight" else (name,))
        ratio = report.at_most(f"{name} at {shape}", together / flash, targets.get(name))
        report.row(name, milliseconds(together), ratio, f"{together / floor:.1f}", f"{memory:.0f}")
    if shape.visible <= CHUNKED:
        taken, memory = _timed(lambda: _chunked(pattern, everything), one)
        row = milliseconds(taken), f"{taken / flash:.1f}", "", f"{memory:.0f}"
        report.row("in chunks, by torch", *row)
    if _fits(shape):
        taken, memory = _timed(lambda: eager_readouts(query, key), seconds)
        times = report.at_least(f"eager at {shape}", taken / together, 20, ".1f")
        row = milliseconds(taken), f"{taken / flash:.1f}", "", f"{memory:.0f}"
        report.row("eager, weights stored", *row)
        report.row("  times all eight", times)


def _fits(shape: Case) -> bool:
    stored = 4 * shape.batch * shape.heads * shape.length**2
    return EAGER_COPIES * stored < torch.cuda.mem_get_info()[0]


def _timed(
    task: Callable[[], object], clock: Callable[[Callable[[], object]], float]
) -> tuple[float, float]:
    """Seconds of a task, and the MiB that it takes beyond what is there already."""
    task()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    task()
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    return clock(task), memory


def _chunked(pattern: regard.Pattern, readouts: tuple[regard.Readout[Any, Any], ...]) -> object:
    problem = pattern.problem
    sizes = Sizes(problem.leading, problem.queries, problem.keys, pattern.dtype, pattern.device)
    logsumexp = pattern._logsumexp  # noqa: SLF001 - None where a pass is to compute it
    return reading._streamed(readouts, problem, sizes, logsumexp, None)  # noqa: SLF001 - what serves without Triton


def eager_readouts(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Do as one does without lazy weights: store them, then reduce them."""
    length = query.shape[-2]
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu_(1)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32)
    index = torch.arange(length, device=query.device, dtype=torch.float32)
    diagonals = [weights.diagonal(-back, -2, -1) for back in range(min(64, length))]
    return {
        "received": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
        "distance": index - weights @ index,
        "max": weights.amax(-1),
        "mass": weights[..., :4].sum(-1),
        "top 8": weights.topk(min(8, length)).values,
        "image 512 × 512": F.adaptive_avg_pool2d(weights, (min(512, length),) * 2),
        "offsets 64": torch.stack([diagonal.mean(-1) for diagonal in diagonals], -1),
    }


if __name__ == "__main__":
    main()
