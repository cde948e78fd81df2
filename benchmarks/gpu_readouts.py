"""Readouts beside the flash forward, beside their floor, and beside how one does without them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from benchmarks.cases import Case
from benchmarks.gpu_checks import READOUTS, further
from benchmarks.gpu_clock import extra_mib, seconds
from benchmarks.gpu_peers import eager_readouts, peers
from benchmarks.gpu_result import Result
from regard.backends import NAMES, choose
from regard.inputs import Scoring, check

if TYPE_CHECKING:
    from benchmarks.gpu_floor import Ceilings

CAUSAL = regard.causal()
EVERYTHING = f"all {len(READOUTS)} in one pass"
TOGETHER = ("received", "entropy", "top 8")
TARGETS = {"received": 0.6, EVERYTHING: 1.2}
"""Times the flash forward, at the most."""
EAGER_COPIES = 6  # of the weights, in float32: what eager holds at its most

SHAPES = (
    Case(1, 32, 4096, 128),
    Case(1, 32, 16384, 128),
    Case(1, 32, 32768, 128, groups=8),
    Case(8, 16, 2048, 64),
    Case(1, 8, 131072, 128),
)
TINY = (Case(1, 4, 96, 16, groups=2),)


def readouts(result: Result, shapes: tuple[Case, ...], device: torch.device) -> None:
    """Measure each shape: every backend's forward, each readout, all together, and the peers."""
    ceilings = _ceilings(result, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for shape in shapes:
        if not result.has_time(f"the readouts at {shape}"):
            continue
        with result.attempt(f"readouts at {shape}"), torch.no_grad():
            torch.manual_seed(0)
            query, key, value = shape.tensors(dtype, str(device))
            flash = _forwards(result, shape, query, key, value)
            _of_shape(result, shape, flash, ceilings, (query, key, value))
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _ceilings(result: Result, device: torch.device) -> Ceilings | None:
    if device.type != "cuda":
        return None
    from benchmarks.gpu_floor import measured

    ceilings = measured()
    result.table(
        "What this GPU does at most, as measured, a second",
        *("bfloat16 products, TFLOP", "exponentials, T", "float32 operations, T", "memory, TB"),
    )
    every = (ceilings.products, ceilings.exponentials, ceilings.operations, ceilings.bytes)
    result.row(*(number / 1e12 for number in every))
    return ceilings


def _forwards(result: Result, shape: Case, query: Tensor, key: Tensor, value: Tensor) -> float:
    """Time the forward of every backend; the seconds of torch's flash kernel alone."""
    grouped = shape.groups is not None

    def flash() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=grouped
            )

    ways: dict[str, Callable[[], object]] = {}
    problem = check(query, key, value, Scoring(mask=CAUSAL))
    for backend in NAMES:
        try:
            choice = choose(problem, backend)
        except ValueError:  # the backend can't run this problem
            continue
        if backend != "eager" or _fits(shape):
            ways[str(choice)] = partial(
                regard.attention, query, key, value, mask=CAUSAL, backend=backend
            )
    result.table(f"Forward at {shape}", "backend", "ms", "TFLOP/s", "× flash")
    taken = seconds(flash)
    result.row("torch's flash, called directly", *_speed(shape, taken), 1.0)
    for name, attend in ways.items():
        if result.has_time(name):
            with result.attempt(f"{name} at {shape}"):
                own = seconds(attend)
                result.row(name, *_speed(shape, own), own / taken)
    return taken


def _speed(shape: Case, taken: float) -> tuple[float, float]:
    return taken * 1e3, shape.operations / taken / 1e12


def _of_shape(
    result: Result,
    shape: Case,
    flash: float,
    ceilings: Ceilings | None,
    tensors: tuple[Tensor, Tensor, Tensor],
) -> None:
    query, key, value = tensors
    backend = "flash" if query.is_cuda else None
    pattern = regard.attention_with_pattern(query, key, value, mask=CAUSAL, backend=backend)[1]
    sets = {name: (name,) for name in READOUTS} | {EVERYTHING: tuple(READOUTS)}
    result.table(
        f"Readouts at {shape}, after a forward by {backend or 'the CPU'}",
        *("what", "ms", "÷ flash's forward", "÷ its floor", "MiB more"),
    )

    def row(name: str, task: Callable[[], object], floor: float | None = None) -> None:
        if not result.has_time(name):
            return
        with result.attempt(f"{name} at {shape}"):
            memory, taken = extra_mib(task), seconds(task)
            target = TARGETS.get(name) if shape.length >= 4096 else None
            ratio = result.at_most(f"{name} at {shape}", taken / flash, target)
            over = None if floor is None else taken / floor
            result.row(name, taken * 1e3, ratio, over, memory)

    for name, names in sets.items():
        floor = None if ceilings is None else ceilings.floor(shape, names)
        row(name, partial(pattern.read, *(READOUTS[each] for each in names)), floor)
    for name, readout in further(shape.length).items():
        row(name, partial(pattern.read, readout))
    other = regard.Pattern(query, key.flip(-1), mask=CAUSAL)
    row("divergence from another pattern", partial(pattern.divergence, other))
    together = [READOUTS[name] for name in TOGETHER]
    row(
        f"a forward with {', '.join(TOGETHER)} by attention(read=[…])",
        partial(regard.attention, query, key, value, mask=CAUSAL, backend=backend, read=together),
    )
    ways: dict[str, Callable[[], object]] = {**peers(query, key, pattern.logsumexp)}
    ways = {f"received by {name}": way for name, way in ways.items()}
    ways["all of them, eager"] = partial(eager_readouts, query, key)
    for name, way in ways.items():
        if "eager" in name and not _fits(shape):
            result.left_out(f"{name} at {shape}", "the weights do not fit into memory")
        elif "backward" in name and not query.is_cuda:
            result.left_out(name, "FlexAttention has no backward pass on a CPU")
        else:
            row(name, way)


def _fits(shape: Case) -> bool:
    stored = 4 * shape.batch * shape.heads * shape.length**2
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 2**30
    return EAGER_COPIES * stored < free
